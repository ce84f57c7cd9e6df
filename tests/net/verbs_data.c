/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs transport, over the fake stack: the data tests in each way of cutting, clearing and delivering
 * messages. */
#include <check.h>
#include <stdlib.h>

#include "data.h"
#include "fake_verbs.h"
#include "util.h"
#include "verbs_util.h"

static struct {
    const char *name;
    const char *settings[4]; /* ends with NULL */
    bool shuffle;
    int depth;        /* of the adapter's queues. 0: long */
    uint32_t max_msg; /* 0: 1 GiB */
} modes[] = {
    {.name = "verbs"},
    {.name = "verbs, out of order", .shuffle = true},
    {.name = "verbs, split, out of order", .settings = {"NCCL_IB_SPLIT_DATA_ON_QPS=1"}, .shuffle = true},
    {.name = "verbs, adaptive routing, split, inline",
     .settings = {"NCCL_IB_SPLIT_DATA_ON_QPS=1", "NCCL_IB_ADAPTIVE_ROUTING=1", "NCCL_IB_USE_INLINE=1"},
     .shuffle = true},
    {.name = "verbs, short queues, small requests",
     .settings = {"NCCL_IB_ADAPTIVE_ROUTING=1", "NCCL_IB_AR_THRESHOLD=1000"},
     .shuffle = true,
     .depth = 16,
     .max_msg = 262144},
};

static int mode;

static void before(void)
{
    verbs_before();
    fake.shuffle = modes[mode].shuffle;
    if (modes[mode].depth)
        fake.device[0].max_qp_wr = modes[mode].depth;
    if (modes[mode].max_msg)
        fake.device[0].port[0].max_msg = modes[mode].max_msg;
}

int main(void)
{
    bool quick = getenv("NB_TEST_QUICK") != NULL;
    int failed = 0;

    net_before = before;
    net_after = verbs_after;
    for (mode = 0; mode < (int)(sizeof(modes) / sizeof(modes[0])); mode++) {
        net_settings = modes[mode].settings;
        data_divisor = quick ? 40 : mode == 0 ? 1 : 4;
        data_counts = quick && mode > 0 ? 2 : 4;
        failed |= data_tests(modes[mode].name, modes[mode].depth ? DATA_FLOWS : DATA_ALL);
    }
    return failed;
}
