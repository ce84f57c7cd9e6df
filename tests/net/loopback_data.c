/* SPDX-License-Identifier: Apache-2.0 */
/* The example of docs/adding.md passes the data tests that every transport must pass. */
#include <stdlib.h>

#include "data.h"
#include "loopback.h"
#include "util.h"

static void none_left(void)
{
    ck_assert_int_eq(loopback_open_objects(), 0);
}

int main(void)
{
    net_transport = "loopback";
    net_ops = &loopback_ops;
    net_after = none_left;
    data_counts = 1; /* it has no streams */
    data_divisor = getenv("NB_TEST_QUICK") ? 10 : 1;
    return data_tests("net/loopback_data", DATA_ALL);
}
