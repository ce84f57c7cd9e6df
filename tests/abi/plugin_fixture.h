/* SPDX-License-Identifier: Apache-2.0 */
/* Open the built plugin as NCCL does, and find its tables by name. */
#ifndef NIBBLE_TESTS_ABI_PLUGIN_FIXTURE_H
#define NIBBLE_TESTS_ABI_PLUGIN_FIXTURE_H

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "nibble/nccl_net.h"
#include "tests/base/capture.h"
#include "tests/base/environment.h"

static void *plugin_lib;

static inline void setup(void)
{
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    capture_reset();
    plugin_lib = dlopen(environment_plugin(), RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(plugin_lib, "%s", dlerror());
}

static inline const void *table(const char *family, int version)
{
    char name[64];
    snprintf(name, sizeof(name), "%s_v%d", family, version);
    return dlsym(plugin_lib, name);
}

static inline const void *table_of(const char *name)
{
    return dlsym(plugin_lib, name);
}

#define NET(v) ((const ncclNet_v##v##_t *)table("ncclNetPlugin", v))
#define COLLNET(v) ((const ncclCollNet_v##v##_t *)table("ncclCollNetPlugin", v))

static inline void ok(ncclResult_t res)
{
    ck_assert_msg(res == ncclSuccess, "result %d; %s", res, capture_text);
}

static void *net_ctx, *coll_ctx;

static inline void init_v12(void)
{
    ncclNetCommConfig_v12_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
    ok(NET(12)->init(&net_ctx, 0x1234, &config, capture_log, NULL));
    ok(COLLNET(12)->init(&coll_ctx, 0x1234, capture_log));
    ck_assert_ptr_nonnull(net_ctx);
    ck_assert_ptr_nonnull(coll_ctx);
}

#endif
