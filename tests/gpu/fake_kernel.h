/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel in plain C, as kernels.h describes it: one thread, the C codec. */
#ifndef NIBBLE_TESTS_GPU_FAKE_KERNEL_H
#define NIBBLE_TESTS_GPU_FAKE_KERNEL_H

#include "kernels/kernels.h"

/* Runs until it is told to end. `stuck`: carries nothing. */
void fake_kernel(const struct nb_gpu_launch *launch, int stuck);

#endif
