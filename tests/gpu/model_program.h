/* SPDX-License-Identifier: Apache-2.0 */
/* Run a whole program that calls a driver on a thread of the model (model.h), with its main under another
 * name. */
#ifndef NIBBLE_TESTS_GPU_MODEL_PROGRAM_H
#define NIBBLE_TESTS_GPU_MODEL_PROGRAM_H

#include "model.h"

/* Virtual time of a look at the clock, by default 0. Programs that wait without sleeping need some. */
extern int64_t model_look_ns;

/* Run a program. Return its status, or 1 after a line with the circle of waits. Link with
 * --wrap=clock_gettime besides the model's options. */
int model_program(const struct model_settings *settings, int (*program)(int, char **), int argc, char **argv);

#endif
