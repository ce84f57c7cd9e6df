/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel in plain C, as kernels.h describes it: one thread and the C codec. */
#ifndef NIBBLE_TESTS_GPU_FAKE_KERNEL_H
#define NIBBLE_TESTS_GPU_FAKE_KERNEL_H

#include "kernels/kernels.h"

/* Run until told to end. With `stuck` the kernel takes no descriptors. */
void fake_kernel(const struct nb_gpu_launch *launch, int stuck);

#endif
