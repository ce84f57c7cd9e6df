/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of values. A rank's vector of an operation is a piece of one table. Its start follows from the seed,
 * and it wraps around at the table's end. See data.h.
 */
#include "tests/sim/data.h"

#include <stdlib.h>
#include <string.h>

#include "base/nccl_names.h"

#define PERIOD 16384u
#define VARIANTS 4 /* of weights: the steps of a training, which repeat */
#define TYPES 10   /* ncclInt8 .. ncclBfloat16 */
#define CHUNK 512u /* values processed at once */

static struct {
    uint8_t *typed[SIM_DATA_KINDS][TYPES]; /* [VARIANTS][PERIOD] values */
    int8_t small[PERIOD];
    double normal[PERIOD]; /* values after rounding to the type: [type] below */
    double *real[TYPES];   /* values of typed[SIM_DATA_NORMAL] */
    uint8_t sums[TYPES][2 * SIM_NODES_MAX + 1][8];
} tables;

static bool is_float(int type)
{
    return hx_type_is_float((ncclDataType_t)type);
}

static void store(uint8_t *at, int type, size_t i, double value)
{
    hx_store((ncclDataType_t)type, at, i, value);
}

/* Make the weights of a step: the first step's weights, of which some have moved by a little. */
static void weigh(uint8_t *out, int type, int variant)
{
    size_t size = hx_type_size((ncclDataType_t)type);
    uint64_t r = hx_seed(5, (uint64_t)type, 0);

    for (size_t i = 0; i < PERIOD; i++) {
        const uint64_t x = hx_rand(&r);
        if (is_float(type))
            store(out, type, i, 0.02 * tables.normal[(i * 7 + 3) % PERIOD]);
        else
            memcpy(out + i * size, &x, size);
        if (x >> 60 < 9) /* the last bits of the pattern */
            out[i * size] = (uint8_t)(out[i * size] + (unsigned)variant * (unsigned)(x >> 40 & 7));
    }
}

void sim_data_open(void)
{
    uint64_t r = hx_seed(1, 2, 3);

    for (size_t i = 0; i < PERIOD; i++) {
        double sum = 0;
        for (int k = 0; k < 12; k++) /* nearly a normal distribution, in exact arithmetic */
            sum += (double)(hx_rand(&r) >> 40) / 16777216.0;
        tables.normal[i] = sum - 6;
        tables.small[i] = (int8_t)((int)(hx_rand(&r) >> 33) % 3 - 1);
    }
    for (int t = 0; t < TYPES; t++) {
        size_t size = hx_type_size((ncclDataType_t)t);
        for (int k = 0; k < SIM_DATA_KINDS; k++) {
            uint8_t *out = malloc((k == SIM_DATA_WEIGHTS ? VARIANTS : 1) * PERIOD * size);
            if (!out)
                abort();
            tables.typed[k][t] = out;
            for (size_t i = 0; i < PERIOD && k != SIM_DATA_WEIGHTS; i++) {
                const uint64_t x = hx_rand(&r);
                if (k == SIM_DATA_SMALL)
                    store(out, t, i, tables.small[i]);
                else if (k == SIM_DATA_UNITS)
                    store(out, t, i, x >> 59 == 0 ? 2 : x >> 58 & 1 || t == ncclUint8 ? 1 : -1);
                else if (k == SIM_DATA_NORMAL && is_float(t))
                    store(out, t, i, tables.normal[i]);
                else
                    memcpy(out + i * size, &x, size);
            }
            for (int v = 0; v < VARIANTS && k == SIM_DATA_WEIGHTS; v++)
                weigh(out + (size_t)v * PERIOD * size, t, v);
        }
        tables.real[t] = malloc(PERIOD * sizeof(double));
        if (!tables.real[t])
            abort();
        for (size_t i = 0; i < PERIOD && is_float(t); i++)
            tables.real[t][i] = hx_load((ncclDataType_t)t, tables.typed[SIM_DATA_NORMAL][t], i);
        for (int v = -SIM_NODES_MAX; v <= SIM_NODES_MAX; v++)
            store(tables.sums[t][v + SIM_NODES_MAX], t, 0, v);
    }
}

void sim_data_close(void)
{
    for (int t = 0; t < TYPES; t++) {
        for (int k = 0; k < SIM_DATA_KINDS; k++)
            free(tables.typed[k][t]);
        free(tables.real[t]);
    }
}

/* Return where in its table a rank's vector begins. Buffers of one slot hold the same weights in every
 * step. */
static size_t start_of(const struct sim_op *op, int rank)
{
    const uint64_t seed = op->data == SIM_DATA_WEIGHTS ? (uint64_t)op->slot * 7919 : op->seed;

    return (size_t)(hx_seed(seed, (uint64_t)rank, 11) % PERIOD);
}

static const uint8_t *table_of(const struct sim_op *op)
{
    const uint8_t *t = tables.typed[op->data][op->type];

    if (op->data == SIM_DATA_WEIGHTS)
        t += (size_t)(op->step % VARIANTS) * PERIOD * hx_type_size(op->type);
    return t;
}

/* Loop over the values, in pieces that do not wrap around. */
#define EACH_PIECE(at, n_, first_, start_) \
    for (size_t done_ = 0, at, piece; \
         done_ < (n_) && (at = ((start_) + (first_) + done_) % PERIOD, \
                         piece = (n_)-done_ < PERIOD - at ? (n_)-done_ : PERIOD - at, true); \
         done_ += piece)

void sim_data_fill(const struct sim_op *op, int rank, size_t first, size_t n, void *dst)
{
    const size_t size = hx_type_size(op->type), start = start_of(op, rank);
    const uint8_t *table = table_of(op);

    EACH_PIECE(at, n, first, start)
    memcpy((uint8_t *)dst + done_ * size, table + at * size, piece * size);
}

/* Sum small values, with the table of sums. */
static void sum_small(const struct sim_op *op, int nranks, size_t first, size_t n, uint8_t *out)
{
    const size_t size = hx_type_size(op->type);
    int16_t sum[CHUNK];

    memset(sum, 0, sizeof(sum));
    for (int r = 0; r < nranks; r++) {
        const size_t start = start_of(op, r);
        EACH_PIECE(at, n, first, start)
        for (size_t i = 0; i < piece; i++)
            sum[done_ + i] = (int16_t)(sum[done_ + i] + tables.small[at + i]);
    }
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * size, tables.sums[op->type][sum[i] + SIM_NODES_MAX], size);
}

static void reduce_any(const struct sim_op *op, int nranks, size_t first, size_t n, uint8_t *out)
{
    uint8_t one[CHUNK * 8];

    sim_data_fill(op, 0, first, n, out);
    for (int r = 1; r < nranks; r++) {
        sim_data_fill(op, r, first, n, one);
        hx_accumulate(op->type, op->redop, out, one, n);
    }
}

long sim_data_check_sum(const struct sim_op *op, int nranks, size_t first, size_t n, const void *got)
{
    const size_t size = hx_type_size(op->type);
    uint8_t want[CHUNK * 8];

    for (size_t done = 0, k; done < n; done += k) {
        const uint8_t *have = (const uint8_t *)got + done * size;
        k = n - done < CHUNK ? n - done : CHUNK;
        if (op->data == SIM_DATA_SMALL && op->redop == ncclSum)
            sum_small(op, nranks, first + done, k, want);
        else
            reduce_any(op, nranks, first + done, k, want);
        if (memcmp(have, want, k * size)) {
            long i = hx_first_difference(op->type, have, want, k);
            return (long)done + (i < 0 ? 0 : i);
        }
    }
    return -1;
}

static double load(int type, const uint8_t *p, size_t i)
{
    if (type == ncclFloat32) {
        float f;
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    return hx_load((ncclDataType_t)type, p, i);
}

void sim_data_measure_sum(const struct sim_op *op, int nranks, size_t first, size_t n, const void *got,
                          double *error, double *energy)
{
    const size_t size = hx_type_size(op->type);
    double sum[CHUNK];

    for (size_t done = 0, k; done < n; done += k) {
        const uint8_t *have = (const uint8_t *)got + done * size;
        k = n - done < CHUNK ? n - done : CHUNK;
        for (size_t i = 0; i < k; i++)
            sum[i] = 0;
        for (int r = 0; r < nranks; r++) {
            const size_t start = start_of(op, r);
            const double *real = tables.real[op->type];
            EACH_PIECE(at, k, first + done, start)
            for (size_t i = 0; i < piece; i++) {
                sum[done_ + i] += real[at + i];
                *energy += real[at + i] * real[at + i];
            }
        }
        for (size_t i = 0; i < k; i++) {
            double d = load(op->type, have, i) - sum[i];
            *error += d * d;
            *energy += sum[i] * sum[i];
        }
    }
}

long sim_data_check_gather(const struct sim_op *op, int nranks, size_t first, size_t n, const void *got)
{
    const size_t size = hx_type_size(op->type), block = op->count * size;
    const uint8_t *table = table_of(op);

    for (size_t done = 0, k; done < n; done += k) {
        const size_t owner = (first + done) / block, off = (first + done) % block;
        const size_t start = start_of(op, (int)owner) * size;
        k = block - off < n - done ? block - off : n - done;
        if (owner >= (size_t)nranks)
            return (long)done;
        for (size_t piece, o = 0; o < k; o += piece) {
            const size_t at = (start + off + o) % (PERIOD * size);
            piece = k - o < PERIOD * size - at ? k - o : PERIOD * size - at;
            if (memcmp((const uint8_t *)got + done + o, table + at, piece))
                return (long)(done + o);
        }
    }
    return -1;
}
