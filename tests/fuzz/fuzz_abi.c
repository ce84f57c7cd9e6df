/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target: sequences of NCCL's calls (abi_calls.h) on two nodes in one thread, under virtual time. No
 * sequence may crash or hang the plugin, and at the end it must have given back all memory.
 *
 * Input: settings u8, then calls.
 */
#include "abi_calls.h"

#define CALLS 400u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    const unsigned settings = (unsigned)fuzz_take(&in, 1);

    abi_open(settings, NULL);
    cluster_connect(&abi_cluster);
    for (unsigned i = 0; i < CALLS && in.left; i++)
        abi_call(&in, -1);
    /* The end, as NCCL makes it. Open requests have failed, or complete when both nodes go on. */
    for (int n = 0; n < ABI_NODES; n++) {
        abi_cluster.node[n].asleep = false;
        if (settings & 128)
            abi_close_one(n);
    }
    cluster_disconnect(&abi_cluster);
    abi_close();
    return 0;
}
