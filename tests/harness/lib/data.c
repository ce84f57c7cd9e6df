/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types, fills, reference reductions and measures of error for tests. They are independent of the plugin's
 * codec on purpose, and simple. Harness programs spend most of their time here, so the functions take values
 * apart by their bits instead of calling <math.h>. Sanitizers do not watch this file: it touches only memory
 * of the calling thread, never a buffer that the plugin has. gpu.c fills and drains such buffers.
 */
#include <math.h>
#include <string.h>

#include "internal.h"

size_t hx_type_size(ncclDataType_t type)
{
    static const size_t size[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return (unsigned)type < ncclNumTypes ? size[type] : 0;
}

const char *hx_type_name(ncclDataType_t type)
{
    static const char *const name[ncclNumTypes] = {"int8",    "uint8",    "int32",   "uint32",
                                                   "int64",   "uint64",   "float16", "float32",
                                                   "float64", "bfloat16", "e4m3",    "e5m2"};

    return (unsigned)type < ncclNumTypes ? name[type] : "?";
}

bool hx_type_is_float(ncclDataType_t type)
{
    return type >= ncclFloat16;
}

/* Small floats: exponent bits, mantissa bits. E4M3 is the "fn" kind, without infinities and with one NaN
 * pattern for each sign. */
struct small_float {
    int ebits, mbits, bias;
    bool fn;
};

static struct small_float small_format(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat16: return (struct small_float){5, 10, 15, false};
    case ncclBfloat16: return (struct small_float){8, 7, 127, false};
    case ncclFloat8e4m3: return (struct small_float){4, 3, 7, true};
    default: return (struct small_float){5, 2, 15, false};
    }
}

/* Return 2^exp, for exponents of normal numbers. */
static double power(int exp)
{
    uint64_t bits = (uint64_t)(exp + 1023) << 52;
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

static double small_load(struct small_float f, unsigned bits)
{
    unsigned mant = bits & ((1u << f.mbits) - 1);
    int exp = (int)(bits >> f.mbits & ((1u << f.ebits) - 1)), emax = (1 << f.ebits) - 1;
    double sign = bits >> (f.ebits + f.mbits) & 1 ? -1.0 : 1.0;

    if (exp == emax && !f.fn)
        return mant ? (double)NAN : sign * (double)INFINITY;
    if (exp == emax && mant == (1u << f.mbits) - 1)
        return (double)NAN;
    if (exp == 0)
        return sign * mant * power(1 - f.bias - f.mbits);
    return sign * (mant | 1u << f.mbits) * power(exp - f.bias - f.mbits);
}

static unsigned small_store(struct small_float f, double v)
{
    unsigned sign = (unsigned)(signbit(v) != 0) << (f.ebits + f.mbits);
    unsigned emax = (1u << f.ebits) - 1, inf = emax << f.mbits;
    unsigned nan = f.fn ? inf | ((1u << f.mbits) - 1) : inf | 1u << (f.mbits - 1);
    double a = fabs(v), mant;
    uint64_t a_bits;
    int exp;

    if (isnan(v))
        return sign | nan;
    if (isinf(v))
        return sign | (f.fn ? nan : inf);
    memcpy(&a_bits, &a, sizeof a_bits);
    exp = (int)(a_bits >> 52) - 1023; /* a = 1.xxx * 2^exp, or less than any small float */
    if (exp < 1 - f.bias)
        exp = 1 - f.bias;
    /* A number below 2^52, added to 2^52, is rounded to a whole number, nearest even: units of the last
     * place. */
    mant = a * power(f.mbits - exp) + 0x1p52 - 0x1p52;
    if (mant >= 2u << f.mbits) {
        mant /= 2;
        exp++;
    }
    unsigned bits = mant < 1u << f.mbits
                        ? (unsigned)mant
                        : ((unsigned)(exp + f.bias) << f.mbits) + ((unsigned)mant - (1u << f.mbits));
    if (bits >= (f.fn ? nan : inf))
        bits = f.fn ? nan : inf;
    return sign | bits;
}

double hx_load(ncclDataType_t type, const void *buf, size_t i)
{
    const unsigned char *at = (const unsigned char *)buf + i * hx_type_size(type);
    union {
        int8_t i8;
        uint8_t u8;
        uint16_t u16;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
        float f32;
        double f64;
    } v = {.u8 = *at};

    switch (hx_type_size(type)) {
    case 2: memcpy(&v, at, 2); break;
    case 4: memcpy(&v, at, 4); break;
    case 8: memcpy(&v, at, 8); break;
    default: break;
    }
    switch (type) {
    case ncclInt8: return v.i8;
    case ncclUint8: return v.u8;
    case ncclInt32: return v.i32;
    case ncclUint32: return v.u32;
    case ncclInt64: return (double)v.i64;
    case ncclUint64: return (double)v.u64;
    case ncclFloat32: return (double)v.f32;
    case ncclFloat64: return v.f64;
    case ncclFloat16:
    case ncclBfloat16: return small_load(small_format(type), v.u16);
    default: return small_load(small_format(type), v.u8);
    }
}

void hx_store(ncclDataType_t type, void *buf, size_t i, double value)
{
    unsigned char *at = (unsigned char *)buf + i * hx_type_size(type);
    float f = (float)value;
    uint64_t whole;
    uint16_t u16;

    switch (type) {
    case ncclFloat32: memcpy(at, &f, 4); return;
    case ncclFloat64: memcpy(at, &value, 8); return;
    case ncclFloat16:
    case ncclBfloat16:
        u16 = (uint16_t)small_store(small_format(type), value);
        memcpy(at, &u16, 2);
        return;
    case ncclFloat8e4m3:
    case ncclFloat8e5m2: *at = (unsigned char)small_store(small_format(type), value); return;
    default:
        whole = value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
        memcpy(at, &whole, hx_type_size(type)); /* little-endian: the low bytes */
    }
}

/* Return a nearly Gaussian number with the same bits on every machine: Irwin-Hall with 12 terms. */
static double normal(uint64_t *state)
{
    double sum = -6;

    for (int i = 0; i < 4; i++) {
        uint64_t x = hx_next_random(state);

        for (int k = 0; k < 3; k++, x >>= 21)
            sum += (double)(x & 0x1fffff) / 2097152.0;
    }
    return sum;
}

void hx_fill(ncclDataType_t type, void *buf, size_t n, uint64_t seed, enum hx_fill kind)
{
    static const double pow2[] = {1, -1, 2, 0.5, -2, -0.5, 1, -1};
    uint64_t state = hx_seed(seed, 0x66696c6c, (uint64_t)kind);
    size_t bytes = n * hx_type_size(type);
    bool is_float = hx_type_is_float(type);

    if (kind == HX_FILL_BITS || (!is_float && kind != HX_FILL_EXACT)) {
        for (size_t at = 0; at < bytes; at += 8) {
            uint64_t x = hx_next_random(&state);

            memcpy((char *)buf + at, &x, bytes - at < 8 ? bytes - at : 8);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t x;

        if (kind == HX_FILL_NORMAL) {
            hx_store(type, buf, i, normal(&state) * exp2(6.64 * (double)i / (double)n - 5.0));
            continue;
        }
        x = hx_next_random(&state) >> 40;
        if (kind == HX_FILL_EXACT) /* unsigned types: 255 and the like, which wraps as it should */
            hx_store(type, buf, i, (double)(int)(x % 3) - 1);
        else
            hx_store(type, buf, i, pow2[x & 7]);
    }
}

#define INT_CASE(tag, ctype, utype) \
    case tag: \
        for (size_t i = 0; i < n; i++) { \
            ctype a, b, r; \
            memcpy(&a, (char *)acc + i * sizeof a, sizeof a); \
            memcpy(&b, (const char *)x + i * sizeof b, sizeof b); \
            switch (op) { \
            case ncclSum: r = (ctype)((utype)a + (utype)b); break; \
            case ncclProd: r = (ctype)((utype)a * (utype)b); break; \
            case ncclMax: r = a > b ? a : b; break; \
            default: r = a < b ? a : b; \
            } \
            memcpy((char *)acc + i * sizeof r, &r, sizeof r); \
        } \
        return;

void hx_accumulate(ncclDataType_t type, ncclRedOp_t op, void *acc, const void *x, size_t n)
{
    switch (type) {
        INT_CASE(ncclInt8, int8_t, unsigned)
        INT_CASE(ncclUint8, uint8_t, unsigned)
        INT_CASE(ncclInt32, int32_t, uint32_t)
        INT_CASE(ncclUint32, uint32_t, uint32_t)
        INT_CASE(ncclInt64, int64_t, uint64_t)
        INT_CASE(ncclUint64, uint64_t, uint64_t)
    default: break;
    }
    for (size_t i = 0; i < n; i++) {
        double a = hx_load(type, acc, i), b = hx_load(type, x, i);

        switch (op) {
        case ncclSum: a += b; break;
        case ncclProd: a *= b; break;
        case ncclMax: a = a > b ? a : b; break;
        default: a = a < b ? a : b;
        }
        hx_store(type, acc, i, a);
    }
}

double hx_add(ncclDataType_t type, const void *x, size_t n, double *sum)
{
    double energy = 0;

    for (size_t i = 0; i < n; i++) {
        double v = hx_load(type, x, i);

        sum[i] += v;
        energy += v * v;
    }
    return energy;
}

double hx_squared_error(const double *ref, ncclDataType_t type, const void *got, size_t n)
{
    double err = 0;

    for (size_t i = 0; i < n; i++) {
        double d = hx_load(type, got, i) - ref[i];

        err += d * d;
    }
    return err;
}

double hx_nmse(const double *ref, ncclDataType_t type, const void *got, size_t n)
{
    double err = hx_squared_error(ref, type, got, n), sig = 0;

    for (size_t i = 0; i < n; i++)
        sig += ref[i] * ref[i];
    if (sig == 0)
        return err == 0 ? 0 : (double)INFINITY;
    return err / sig;
}
