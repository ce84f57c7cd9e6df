/* SPDX-License-Identifier: Apache-2.0 */
/* TCP transport: the data tests, with and without helper threads. */
#include <stdlib.h>

#include "data.h"
#include "util.h"

int main(void)
{
    const bool quick = getenv("NB_TEST_QUICK") != NULL;
    int failed;

    data_divisor = quick ? 10 : 1;
    failed = data_tests("net/tcp_data", DATA_ALL);
    net_threads = 2;
    data_counts = quick ? 2 : data_counts;
    failed += data_tests("net/tcp_data with helper threads", DATA_ALL);
    return failed ? 1 : 0;
}
