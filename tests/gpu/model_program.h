/* SPDX-License-Identifier: Apache-2.0 */
/* A program that calls a driver, whole, on a thread of the model (model.h): its main under another name. */
#ifndef NIBBLE_TESTS_GPU_MODEL_PROGRAM_H
#define NIBBLE_TESTS_GPU_MODEL_PROGRAM_H

#include "model.h"

/* Virtual time that a look at the clock takes; 0, the default: none. Programs that wait without sleeping need some. */
extern int64_t model_look_ns;

/* Run it; its status, or 1 after a line that says what waits for what. Linked with --wrap=clock_gettime besides the model's. */
int model_program(const struct model_settings *settings, int (*program)(int, char **), int argc, char **argv);

#endif
