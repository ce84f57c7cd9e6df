/* SPDX-License-Identifier: Apache-2.0 */
/* Mean and confidence of a few numbers. */
#ifndef NIBBLE_TRAIN_STATS_H
#define NIBBLE_TRAIN_STATS_H

#include <stddef.h>

struct nbt_stats {
    size_t n;
    double mean;
    double worst; /* the largest */
    double half;  /* half the width of the 95 % confidence interval of the mean (Student's t); NaN below 2 */
};

/* NaN when n is 0. */
struct nbt_stats nbt_stats(const double *x, size_t n);
/* 97.5 % quantile of Student's t with so many degrees of freedom; NaN for 0. */
double nbt_student(size_t freedom);

#endif
