/* SPDX-License-Identifier: Apache-2.0 */
/* Mean and confidence interval. */
#include "stats.h"

#include <math.h>

double nbt_student(size_t freedom)
{
    static const double t[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                               2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                               2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
    const size_t n = sizeof t / sizeof *t;
    const double z = 1.959964, d = (double)freedom;
    if (freedom == 0)
        return NAN;
    /* Beyond the table: the first term of the expansion in 1 / freedom is right to 0.002. */
    return freedom <= n ? t[freedom - 1] : z + (z * z * z + z) / (4 * d);
}

struct nbt_stats nbt_stats(const double *x, size_t n)
{
    struct nbt_stats s = {.n = n, .mean = NAN, .worst = NAN, .half = NAN};
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += x[i];
        s.worst = i == 0 ? x[0] : fmax(s.worst, x[i]);
    }
    if (n == 0)
        return s;
    s.mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - s.mean) * (x[i] - s.mean);
    if (n > 1)
        s.half = nbt_student(n - 1) * sqrt(squares / (double)(n - 1) / (double)n);
    return s;
}
