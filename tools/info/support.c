/* SPDX-License-Identifier: Apache-2.0 */
/* The content of docs/nccl-versions.md, release by release. */
#include "info.h"

static const struct {
    int from; /* first version of the row, which holds up to the next row */
    struct info_support support;
} releases[] = {
    {22000, {8, 0, 0, "CollNet where NCCL's own model prefers it"}},
    {22400, {9, 4, 0, ""}},
    {22600, {10, 4, 0, "NCCL_TUNER_PLUGIN=libnccl-net-nibble.so avoids that the plugin is unloaded"}},
    {22700,
     {10, 4, 4,
      "the tuner and the profiler need NCCL_TUNER_PLUGIN and NCCL_PROFILER_PLUGIN=libnccl-net-nibble.so"}},
    {22706, {10, 4, 4, "the profiler needs NCCL_PROFILER_PLUGIN=libnccl-net-nibble.so"}},
    {22800, {11, 5, 5, ""}},
    {22900, {11, 5, 6, ""}},
    {23000, {12, 6, 6, ""}},
    {23100, {12, 6, 7, ""}},
    {23300, {12, 6, 7, "later than the releases that this nibble knows"}},
};

bool info_support_of(int version, struct info_support *support)
{
    const int n = sizeof(releases) / sizeof(releases[0]);
    int i = n - 1;

    while (i >= 0 && version < releases[i].from)
        i--;
    if (i < 0)
        return false;
    *support = releases[i].support;
    return true;
}
