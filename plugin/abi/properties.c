/* SPDX-License-Identifier: Apache-2.0 */
/* Devices as each version of NCCL's tables describes them. */
#include "abi/properties.h"

#include <stdint.h>

#include "abi/instance.h"
#include "abi/result.h"

ncclResult_t nb_abi_devices_v8(int *ndev)
{
    NB_REQUIRE(ndev);
    *ndev = 0;
    return nb_result(nb_instance_devices(ndev));
}

/* Fields of all versions. NCCL's structs are not const-correct; it only reads the strings. */
#define NB_FILL_V8(info) \
    .name = (char *)(uintptr_t)(info)->net.name, \
    .pciPath = (info)->net.pci_path[0] ? (char *)(uintptr_t)(info)->net.pci_path : NULL, \
    .guid = (info)->net.guid, .ptrSupport = (info)->mem_support, \
    .regIsGlobal = 0, /* a registration belongs to its comm */ \
    .speed = (info)->net.speed_mbps, .port = (info)->net.port, .latency = (info)->net.latency_us, \
    .maxComms = (info)->net.max_comms, .maxRecvs = (info)->net.max_recvs, \
    .netDeviceType = NCCL_NET_DEVICE_HOST, .netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION
#define NB_FILL_V9(info, dev) \
    NB_FILL_V8(info), .forceFlush = (info)->net.force_flush, .vProps = {.ndevs = 1, .devs = {dev}}, \
    .maxP2pBytes = (info)->net.max_bytes, .maxCollBytes = (info)->max_coll_bytes

#define NB_LOOK_UP(dev, info) \
    const struct nb_device_info *info = nb_instance_device(dev); \
    if (!(info)) \
    return ncclInternalError

ncclResult_t nb_abi_properties_v8(int dev, ncclNetProperties_v8_t *props)
{
    NB_REQUIRE(props);
    NB_LOOK_UP(dev, info);
    *props = (ncclNetProperties_v8_t){NB_FILL_V8(info)};
    return ncclSuccess;
}

ncclResult_t nb_abi_properties_v9(int dev, ncclNetProperties_v9_t *props)
{
    NB_REQUIRE(props);
    NB_LOOK_UP(dev, info);
    *props = (ncclNetProperties_v9_t){NB_FILL_V9(info, dev)};
    return ncclSuccess;
}

ncclResult_t nb_abi_properties_v11(int dev, ncclNetProperties_v11_t *props)
{
    NB_REQUIRE(props);
    NB_LOOK_UP(dev, info);
    *props = (ncclNetProperties_v11_t){NB_FILL_V9(info, dev), .maxMultiRequestSize = 1};
    return ncclSuccess;
}

ncclResult_t nb_abi_properties_v12(int dev, ncclNetProperties_v12_t *props)
{
    NB_REQUIRE(props);
    NB_LOOK_UP(dev, info);
    *props = (ncclNetProperties_v12_t){
        NB_FILL_V9(info, dev),
        .maxMultiRequestSize = 1,
        .railId = NCCL_NET_ID_UNDEF,
        .planeId = NCCL_NET_ID_UNDEF,
    };
    return ncclSuccess;
}
