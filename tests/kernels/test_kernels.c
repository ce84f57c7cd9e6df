/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels give the bytes of the C codec: golden vectors, random data, edge data, malformed spans. The
 * test suite links this program with an emulation of a GPU, gpu-check with the driver.
 *
 *     test_kernels [rounds [seed]]
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernel_cases.h"
#include "tests/gpu/backend.h"

int main(int argc, char **argv)
{
    const char *top = getenv("NB_SRCDIR");
    unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : getenv("NB_TEST_QUICK") ? 8 : 36;
    unsigned seed = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
    char path[4096];
    int status;

    setvbuf(stdout, NULL, _IONBF, 0); /* so that a failure follows the cases that passed */
    status = backend_open();
    if (status)
        return status;
    snprintf(path, sizeof(path), "%s/tests/codec/golden/quant.bin", top ? top : ".");
    printf("kernels %s: ", backend_name());
    printf("%u golden cases, ", cases_golden(path));
    printf("%u spans coded, ", cases_encode(rounds, seed));
    printf("%u of whole tiles, ", cases_inside(rounds, seed));
    printf("%u near the bound, ", cases_bound(seed));
    printf("%u sums, ", cases_reduce(rounds / 2, seed));
    printf("%u malformed spans refused, ", cases_malformed(rounds, seed));
    printf("%u operations on bytes, ", cases_bytes(rounds / 4, seed));
    printf("%u spans of differences coded, ", cases_differences(rounds + rounds / 2, seed));
    printf("%u of usual ones, ", cases_usual_differences(rounds, seed));
    snprintf(path, sizeof(path), "%s/tests/codec/golden", top ? top : ".");
    printf("%u golden ones, ", cases_golden_differences(path));
    printf("%u guesses, ", cases_guess(rounds / 4, seed));
    printf("%u exact reductions, ", cases_exact(rounds, seed));
    printf("%u samples, ", cases_evidence(rounds / 4, seed));
    printf("%u blocks picked from, %u descriptors refused\n", cases_picks(rounds / 2, seed), cases_plan());
    backend_close();
    return 0;
}
