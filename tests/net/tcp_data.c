/* SPDX-License-Identifier: Apache-2.0 */
/* TCP transport: the data tests, with and without helper threads. */
#include "data.h"
#include "util.h"

int main(void)
{
    int failed = data_tests("net/tcp_data", DATA_ALL);

    net_threads = 2;
    failed += data_tests("net/tcp_data with helper threads", DATA_ALL);
    return failed ? 1 : 0;
}
