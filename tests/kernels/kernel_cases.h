/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the kernels against the C codec, for any backend. Each returns the number of its comparisons. A
 * difference ends the program with a message that names the case. */
#ifndef NIBBLE_TESTS_KERNELS_KERNEL_CASES_H
#define NIBBLE_TESTS_KERNELS_KERNEL_CASES_H

unsigned cases_golden(const char *path); /* tests/codec/golden/quant.bin */
unsigned cases_encode(unsigned rounds, unsigned seed);
unsigned cases_inside(unsigned rounds, unsigned seed); /* whole tiles inside a span, all kinds of data */
unsigned cases_bound(unsigned seed);                   /* feedback, with some tiles measured */
unsigned cases_reduce(unsigned rounds, unsigned seed);
unsigned cases_malformed(unsigned rounds, unsigned seed);
unsigned cases_bytes(unsigned rounds, unsigned seed);
unsigned cases_plan(void);                                        /* refused descriptors */
unsigned cases_differences(unsigned rounds, unsigned seed);       /* ulp and delta4, both ways */
unsigned cases_usual_differences(unsigned rounds, unsigned seed); /* ulp of two bytes, many whole blocks */
unsigned cases_golden_differences(const char *folder); /* tests/codec/golden: delta4.bin, ulp.bin */
unsigned cases_guess(unsigned rounds, unsigned seed);
unsigned cases_exact(unsigned rounds, unsigned seed);
unsigned cases_evidence(unsigned rounds, unsigned seed);
unsigned cases_picks(unsigned rounds, unsigned seed);

#endif
