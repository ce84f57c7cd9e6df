/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the collective functions, sizes and names of NCCL's data types. */
#include "base/nccl_names.h"

const char *nb_func_name(enum nb_func func)
{
    static const char *const names[NB_FUNC_COUNT] = {"reduce_scatter", "all_gather", "all_reduce"};
    return (unsigned)func < NB_FUNC_COUNT ? names[func] : "unknown";
}

size_t nb_nccl_type_size(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
    }
}

const char *nb_nccl_type_name(ncclDataType_t type)
{
    switch (type) {
    case ncclInt8: return "int8";
    case ncclUint8: return "uint8";
    case ncclInt32: return "int32";
    case ncclUint32: return "uint32";
    case ncclInt64: return "int64";
    case ncclUint64: return "uint64";
    case ncclFloat16: return "float16";
    case ncclFloat32: return "float32";
    case ncclFloat64: return "float64";
    case ncclBfloat16: return "bfloat16";
    case ncclFloat8e4m3: return "float8e4m3";
    case ncclFloat8e5m2: return "float8e5m2";
    default: return "unknown type";
    }
}

int nb_exact_supported(ncclDataType_t type, ncclRedOp_t op)
{
    if (type == ncclFloat8e4m3 || type == ncclFloat8e5m2)
        return 0; /* a sum in 8 bits is as inexact as a quantized one, so it stays with NCCL */
    return nb_nccl_type_size(type) != 0 &&
           (op == ncclSum || op == ncclProd || op == ncclMax || op == ncclMin);
}
