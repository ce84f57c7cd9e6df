/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel in plain C, as kernels.h describes it: one thread and the C codec. */
#ifndef NIBBLE_TESTS_GPU_FAKE_KERNEL_H
#define NIBBLE_TESTS_GPU_FAKE_KERNEL_H

#include "kernels/kernels.h"

/* Run until told to end. With `stuck` the kernel takes no descriptors. */
void fake_kernel(const struct nb_gpu_launch *launch, int stuck);

/* Write zeros. Large mapped memory gives its whole pages back to Linux, which hands out zeros at the next
 * access. Tests read few of these pages, and filling all of them would take most of a test's time. */
void fake_zero(void *at, size_t n);

#endif
