/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons of the kernels' tests. A difference ends the program with a message that names the case. */
#ifndef NIBBLE_TESTS_KERNELS_KERNEL_CHECK_H
#define NIBBLE_TESTS_KERNELS_KERNEL_CHECK_H

#include <stddef.h>
#include <stdint.h>

void at_case(const char *format, ...) __attribute__((format(printf, 1, 2)));
void differs(const char *part) __attribute__((noreturn));
void same(const char *part, const void *is, const void *should, size_t bytes);
void same_number(const char *part, int64_t is, int64_t should);
/* Compare energies, which are sums in another order. Skip sums of denormal numbers, which prove no error. */
void near(const char *part, double is, double should);

/* A file of golden vectors (codec/golden.h), read record by record. */
struct golden_file {
    uint8_t *data;
    const uint8_t *at, *end;
};
void golden_open(struct golden_file *f, const char *path);
const uint8_t *golden_next(struct golden_file *f, size_t *bytes);
void golden_close(struct golden_file *f);

static inline uint64_t address(const void *p)
{
    return (uintptr_t)p;
}

#endif
