/* SPDX-License-Identifier: Apache-2.0 */
/* TCP transport: the data tests. */
#include <stdlib.h>

#include "data.h"
#include "util.h"

int main(void)
{
    data_divisor = getenv("NB_TEST_QUICK") ? 10 : 1;
    return data_tests("net/tcp_data", DATA_ALL);
}
