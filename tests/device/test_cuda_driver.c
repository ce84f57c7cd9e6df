/* SPDX-License-Identifier: Apache-2.0 */
/* Compare numbers and layouts of device/cuda/driver.c with NVIDIA's header, where it is installed. The
 * compiler compares them. Skipped elsewhere. */
#include <stddef.h>
#include <stdio.h>

#include "device/cuda/driver.h"

#if defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#define HAVE_CUDA_H 1
#endif
#endif

#ifdef HAVE_CUDA_H

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #ours " is not " #theirs)
#define FIELD(ours, field, theirs, their_field) \
    SAME(offsetof(ours, field), offsetof(theirs, their_field)); \
    SAME(sizeof(((ours *)0)->field), sizeof(((theirs *)0)->their_field))

SAME(NB_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(NB_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(NB_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(NB_CU_ATTR_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(NB_CU_ATTR_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(NB_CU_ATTR_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(NB_CU_ATTR_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(NB_CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(NB_CU_HOST_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
SAME(NB_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(NB_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(NB_CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(NB_CU_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(NB_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(NB_CU_POINTER_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME(NB_CU_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(NB_CU_POINTER_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(NB_CU_FUNC_LOCAL_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME(NB_CU_LAUNCH_MEM_SYNC_DOMAIN, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN);
SAME(NB_CU_LAUNCH_DOMAIN_REMOTE, CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
SAME(NB_CU_ALLOC_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(NB_CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(NB_CU_ACCESS_READWRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(NB_CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

SAME(sizeof(nb_cu_device), sizeof(CUdevice));
SAME(sizeof(nb_cu_ptr), sizeof(CUdeviceptr));
SAME(sizeof(nb_cu_result), sizeof(CUresult));
SAME(sizeof(unsigned long long), sizeof(CUmemGenericAllocationHandle));
SAME(sizeof(uint64_t), sizeof(cuuint64_t));

SAME(sizeof(struct nb_cu_launch_attr), sizeof(CUlaunchAttribute));
FIELD(struct nb_cu_launch_attr, id, CUlaunchAttribute, id);
SAME(offsetof(struct nb_cu_launch_attr, value), offsetof(CUlaunchAttribute, value));
SAME(sizeof(((struct nb_cu_launch_attr *)0)->value.mem_sync_domain),
     sizeof(((CUlaunchAttributeValue *)0)->memSyncDomain));

SAME(sizeof(struct nb_cu_launch_config), sizeof(CUlaunchConfig));
FIELD(struct nb_cu_launch_config, grid_x, CUlaunchConfig, gridDimX);
FIELD(struct nb_cu_launch_config, grid_z, CUlaunchConfig, gridDimZ);
FIELD(struct nb_cu_launch_config, block_x, CUlaunchConfig, blockDimX);
FIELD(struct nb_cu_launch_config, block_z, CUlaunchConfig, blockDimZ);
FIELD(struct nb_cu_launch_config, shared_bytes, CUlaunchConfig, sharedMemBytes);
FIELD(struct nb_cu_launch_config, stream, CUlaunchConfig, hStream);
FIELD(struct nb_cu_launch_config, attrs, CUlaunchConfig, attrs);
FIELD(struct nb_cu_launch_config, nattrs, CUlaunchConfig, numAttrs);

SAME(sizeof(struct nb_cu_location), sizeof(CUmemLocation));
FIELD(struct nb_cu_location, type, CUmemLocation, type);
FIELD(struct nb_cu_location, id, CUmemLocation, id);

SAME(sizeof(struct nb_cu_alloc_prop), sizeof(CUmemAllocationProp));
FIELD(struct nb_cu_alloc_prop, type, CUmemAllocationProp, type);
FIELD(struct nb_cu_alloc_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
FIELD(struct nb_cu_alloc_prop, location, CUmemAllocationProp, location);
FIELD(struct nb_cu_alloc_prop, win32, CUmemAllocationProp, win32HandleMetaData);
FIELD(struct nb_cu_alloc_prop, compression, CUmemAllocationProp, allocFlags.compressionType);
FIELD(struct nb_cu_alloc_prop, gpu_direct_rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
FIELD(struct nb_cu_alloc_prop, usage, CUmemAllocationProp, allocFlags.usage);

SAME(sizeof(struct nb_cu_access), sizeof(CUmemAccessDesc));
FIELD(struct nb_cu_access, location, CUmemAccessDesc, location);
FIELD(struct nb_cu_access, flags, CUmemAccessDesc, flags);

int main(void)
{
    printf("the compiler compared them with version %d\n", CUDA_VERSION);
    return 0;
}

#else

int main(void)
{
    printf("skipped: cuda.h is not installed\n");
    return 77;
}

#endif
