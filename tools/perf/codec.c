/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-perf codec: measure every variant of the codecs and of the hash on one core, beside memcpy of as
 * many bytes in the same run. Speeds count uncompressed bytes of values: the input of encode, ulp, hash and
 * memcpy, or the values that the coded input stands for (decode, and for reduce8 all eight contributions).
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nibble/codec.h"
#include "perf.h"
#include "tools/output.h"

#define REDUCE_SOURCES 8
#define MOST_ROUNDS 400

struct bench {
    enum nb_dtype type;
    enum nb_codec codec;
    size_t n, bytes;
    uint8_t *src, *ref, *dst, *own;
    uint8_t *coded[REDUCE_SOURCES];
    size_t cap;
    size_t len[REDUCE_SOURCES], ulp_len;
    uint8_t *ulp_coded, *delta4_coded;
    size_t ulp_cap, delta4_len, sparse_len;
    uint8_t *sparse_coded;
    int8_t *err;
    uint8_t *scale;
    double seconds; /* time for one row */
    uint64_t sink;
};

typedef long op_fn(struct bench *b);

static long encode_with(struct bench *b, enum nb_ef_mode mode)
{
    const struct nb_ef ef = {.err = b->err, .scale = b->scale, .mode = mode, .beta = 0.8f, .bound = 0.2f};
    struct nb_encode_stats stats = {0};

    return nb_encode(b->codec, b->type, b->src, b->n, 0, mode == NB_EF_OFF ? NULL : &ef, b->dst, b->cap,
                     &stats);
}

static long op_encode(struct bench *b)
{
    return encode_with(b, NB_EF_OFF);
}

static long op_encode_ef(struct bench *b)
{
    return encode_with(b, NB_EF_FULL);
}

static long op_encode_ema(struct bench *b)
{
    return encode_with(b, NB_EF_EMA);
}

static long op_decode(struct bench *b)
{
    return nb_decode(b->codec, b->type, b->coded[0], b->len[0], b->n, 0, b->dst);
}

static long op_decode_add(struct bench *b)
{
    const struct nb_source s = {b->codec, b->coded[0], b->len[0]};

    return nb_reduce(b->type, &s, 1, b->own, b->n, 0, b->own);
}

static long op_reduce8(struct bench *b)
{
    struct nb_source s[REDUCE_SOURCES];

    for (int i = 0; i < REDUCE_SOURCES; i++)
        s[i] = (struct nb_source){b->codec, b->coded[i], b->len[i]};
    return nb_reduce(b->type, s, REDUCE_SOURCES, NULL, b->n, 0, b->dst);
}

static enum nb_ulp_width width_of(const struct bench *b)
{
    return nb_dtype_size(b->type) == 4 ? NB_ULP_32 : NB_ULP_16;
}

static long op_ulp_encode(struct bench *b)
{
    return nb_ulp_encode(width_of(b), b->src, b->ref, b->bytes, SIZE_MAX, b->ulp_coded, b->ulp_cap);
}

static long op_ulp_decode(struct bench *b)
{
    return nb_ulp_decode(width_of(b), b->ulp_coded, b->ulp_len, b->ref, b->bytes, b->dst);
}

static long op_sparse_encode(struct bench *b)
{
    return nb_ulp_encode_sparse(width_of(b), b->src, b->ref, b->bytes, SIZE_MAX, b->sparse_coded, b->ulp_cap);
}

static long op_sparse_decode(struct bench *b)
{
    return nb_ulp_decode_sparse(width_of(b), b->sparse_coded, b->sparse_len, b->ref, b->bytes, b->dst);
}

static long op_delta4_encode(struct bench *b)
{
    return nb_delta4_encode(b->type, b->src, b->ref, b->bytes, SIZE_MAX, b->delta4_coded, b->ulp_cap, NULL);
}

static long op_delta4_decode(struct bench *b)
{
    return nb_delta4_decode(b->type, b->delta4_coded, b->delta4_len, b->ref, b->bytes, b->dst);
}

static long op_hash(struct bench *b)
{
    b->sink += nb_hash64(b->src, b->bytes, b->sink);
    return 0;
}

/* Compute the check value of the payload that the other operations make or read. */
static long op_check(struct bench *b)
{
    b->sink += nb_hash64(b->coded[0], b->len[0], b->sink);
    return 0;
}

static long op_check_raw(struct bench *b)
{
    b->sink += nb_hash64(b->src, b->bytes, b->sink);
    return 0;
}

static long op_memcpy(struct bench *b)
{
    memcpy(b->dst, b->src, b->bytes);
    __asm__ volatile("" ::"r"(b->dst) : "memory");
    return 0;
}

static const struct {
    const char *name;
    op_fn *run;
    unsigned times; /* bytes that the operation counts, in sizes of the buffer */
    bool weights;   /* input is weights and their earlier state, instead of gradients */
    bool once;      /* the type does not matter */
} ops[] = {
    {"encode", op_encode, 1, false, false},
    {"encode_ef", op_encode_ef, 1, false, false},
    {"encode_ema", op_encode_ema, 1, false, false},
    {"decode", op_decode, 1, false, false},
    {"decode_add", op_decode_add, 1, false, false},
    {"reduce8", op_reduce8, REDUCE_SOURCES, false, false},
    {"check", op_check, 1, false, false},
    {"check_raw", op_check_raw, 1, false, false},
    {"ulp_encode", op_ulp_encode, 1, true, false},
    {"ulp_decode", op_ulp_decode, 1, true, false},
    {"sparse_encode", op_sparse_encode, 1, true, false},
    {"sparse_decode", op_sparse_decode, 1, true, false},
    {"delta4_encode", op_delta4_encode, 1, true, false},
    {"delta4_decode", op_delta4_decode, 1, true, false},
    {"hash", op_hash, 1, true, true},
};

static const char *op_name(int i)
{
    return i < (int)(sizeof(ops) / sizeof(ops[0])) ? ops[i].name : NULL;
}

static const char *variant_name(int i)
{
    return NB_VARIANT_PORTABLE + i < NB_VARIANT_COUNT
               ? nb_variant_name((enum nb_variant)(NB_VARIANT_PORTABLE + i))
               : NULL;
}

static uint64_t rng = 88172645463325252u;

static double uniform(void)
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return ((double)((rng * UINT64_C(0x2545f4914f6cdd1d)) >> 11) + 1) * 0x1p-53;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static void store(enum nb_dtype type, uint8_t *buf, size_t i, double value)
{
    float f = (float)value;
    uint32_t u;
    uint16_t h;

    memcpy(&u, &f, 4);
    if (type == NB_F32) {
        memcpy(buf + 4 * i, &u, 4);
        return;
    }
    if (type == NB_BF16) {
        h = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    } else { /* binary16 up to its largest value */
        const float magnitude = fabsf(f);
        h = (uint16_t)(u >> 16 & 0x8000);
        if (magnitude >= 0x1p-14f) {
            h |= (uint16_t)(((u & 0x7fffffff) - (112u << 23) + 0x1000) >> 13);
        } else { /* denormal: in the low bits of a sum with 1/2 */
            const float sum = magnitude + 0.5f;
            memcpy(&u, &sum, 4);
            h |= (uint16_t)(u - 0x3f000000u);
        }
    }
    memcpy(buf + 2 * i, &h, 2);
}

/* How weights differ from their earlier state. */
struct change {
    double step;  /* rms of the change over the weights' own */
    double share; /* or at least 0: of the values that change, by one unit of the last place, up or down */
    double rows;  /* part of the rows in which all these changes are */
};

#define ROW 4096u

/* Move a value by one unit of the last place, away from zero or towards it. */
static void nudge(struct bench *b, size_t i, bool up)
{
    const size_t w = nb_dtype_size(b->type);
    uint32_t x = 0;

    memcpy(&x, b->src + w * i, w);
    x = up || !(x & 0x7fff) ? x + 1 : x - 1;
    memcpy(b->src + w * i, &x, w);
}

static int in_order(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* Print the share of the weights that change, and the entropy of their differences as ordered integers. */
static void print_entropy(const struct bench *b)
{
    const size_t w = nb_dtype_size(b->type);
    const int64_t half = INT64_C(1) << (8 * w - 1);
    int64_t *d = malloc(b->n * sizeof(*d));
    size_t equal = 0;
    double bits = 0;

    if (!d)
        return;
    for (size_t i = 0; i < b->n; i++) {
        int64_t x = 0, r = 0;
        memcpy(&x, b->src + w * i, w);
        memcpy(&r, b->ref + w * i, w);
        d[i] = (x < half ? x : half - 1 - x) - (r < half ? r : half - 1 - r);
        equal += d[i] == 0;
    }
    qsort(d, b->n, sizeof(*d), in_order);
    for (size_t i = 0, j; i < b->n; i = j) {
        for (j = i; j < b->n && d[j] == d[i]; j++)
            ;
        bits -= (double)(j - i) / (double)b->n * log2((double)(j - i) / (double)b->n);
    }
    free(d);
    printf("# %s: %.2f %% of the weights change, entropy of the differences %.3f bits a value\n",
           nb_dtype_name(b->type), 100 - 100 * (double)equal / (double)b->n, bits);
}

/* Make data. Gradients are normal with a scale that drifts over the vector, and a share `zeros` of them is 0.
 * Weights are rows of normal values, with their state one step of the optimizer ago. */
static void fill(struct bench *b, bool weights, const struct change *change, double zeros)
{
    bool row = true;

    for (size_t i = 0; i < b->n; i++) {
        const double x = normal();
        if (weights && change->share >= 0) {
            if (i % ROW == 0)
                row = uniform() < change->rows;
            store(b->type, b->src, i, 0.02 * x);
            store(b->type, b->ref, i, 0.02 * x);
            if (row && uniform() < change->share / change->rows)
                nudge(b, i, uniform() < 0.5);
        } else if (weights) {
            store(b->type, b->src, i, 0.02 * x);
            store(b->type, b->ref, i, 0.02 * (x + change->step * normal()));
        } else {
            const bool zero = zeros > 0 && uniform() < zeros;
            store(b->type, b->src, i, zero ? 0 : x * 1e-3 * exp2(4 * sin((double)(i / 1000) * 0.37)));
        }
    }
}

/* Make coded inputs for decoders with the selected variant (all variants make the same bytes). */
static bool prepare(struct bench *b)
{
    for (int i = 0; i < REDUCE_SOURCES; i++) {
        /* Eight contributions of one content would help caches and branch predictors. */
        const size_t turn = b->bytes / REDUCE_SOURCES * (size_t)i / 4096 * 4096;
        memcpy(b->dst, b->src + turn, b->bytes - turn);
        memcpy(b->dst + b->bytes - turn, b->src, turn);
        const long len = nb_encode(b->codec, b->type, b->dst, b->n, 0, NULL, b->coded[i], b->cap, NULL);
        if (len < 0)
            return false;
        b->len[i] = (size_t)len;
    }
    memset(b->own, 0, b->bytes);
    memset(b->err, 0, nb_ef_err_bytes(b->n));
    memset(b->scale, 0, nb_ef_scale_bytes(b->n));
    return true;
}

/* Measure median speeds of the operation and of memcpy in turn, so that both see the same machine. */
static bool measure(struct bench *b, op_fn *op, unsigned times, double *gbps, double *memcpy_gbps)
{
    static double t_op[MOST_ROUNDS], t_copy[MOST_ROUNDS];
    const double start = perf_now();
    size_t rounds = 0;

    if (op(b) < 0) /* once unmeasured: caches, error state */
        return false;
    op_memcpy(b);
    do {
        const double t0 = perf_now();
        op(b);
        const double t1 = perf_now();
        op_memcpy(b);
        t_op[rounds] = t1 - t0;
        t_copy[rounds++] = perf_now() - t1;
    } while (rounds < MOST_ROUNDS && (rounds < 5 || perf_now() - start < b->seconds));
    *gbps = 1e-9 * (double)(b->bytes * times) / perf_median(t_op, rounds);
    *memcpy_gbps = 1e-9 * (double)b->bytes / perf_median(t_copy, rounds);
    return true;
}

struct one_run {
    struct bench *b;
    op_fn *op;
};

static void run_once(void *arg)
{
    const struct one_run *one = arg;

    one->op(one->b);
}

/* Count the instructions per value of one call. */
static bool count_once(struct bench *b, op_fn *op, unsigned times, FILE *trace, double *instructions)
{
    struct one_run one = {b, op};

    if (op(b) < 0)
        return false;
    *instructions = perf_count_instructions(run_once, &one, trace) / ((double)b->n * times);
    return isfinite(*instructions);
}

static const char help[] =
    "usage: nibble-perf codec [OPTION]...\n\n"
    "  --variants LIST  of portable,avx2,avx512,avx512-vbmi,neon (default: all that this CPU runs)\n"
    "  --ops LIST       of "
    "encode,encode_ef,encode_ema,decode,decode_add,reduce8,check,check_raw,ulp_encode,\n"
    "                   ulp_decode,sparse_encode,sparse_decode,delta4_encode,delta4_decode,hash\n"
    "  --types LIST     of float32,bfloat16,float16\n"
    "  --codec NAME     int4 (default), int6 or int8, for the quantizing operations\n"
    "  --bytes SIZE     of the values of one call (default 8M)\n"
    "  --seconds S      for each row (default 0.3)\n"
    "  --step R         ulp, sparse, delta4: rms of a weight's change over its own (default 0.0015)\n"
    "  --changed P      instead: P per cent of the weights change by one unit of the last place, at random\n"
    "                   places; first prints the entropy of the differences\n"
    "  --rows SHARE     with --changed: the changes are in this share of the rows of 4096 (default 1)\n"
    "  --zeros SHARE    of the gradients that are 0 (default 0): groups of few values take other paths\n"
    "  --count          count the instructions of each row instead, one by one: per value (of all eight for\n"
    "                   reduce8) the same figure every time; --bytes 64K is enough, as it is slow\n"
    "  --trace FILE     with --count: also write the address of each instruction in the program's file, a "
    "line each (0:\n"
    "                   in a library), input of mca.sh\n"
    "  --json FILE      write a list of objects: variant op type gbps memcpy_gbps codec ratio clock_ghz, or "
    "instructions\n\n"
    "Speeds are medians in GB/s (10^9) of uncompressed values; ratio is to memcpy of as many bytes in the "
    "same run.\n"
    "reduce8 sums eight coded contributions and counts the bytes of all eight. check computes the check "
    "value of\n"
    "one such payload, check_raw of as many raw bytes.\n";

int perf_codec(int argc, char **argv)
{
    static const struct option longs[] = {{"variants", required_argument, NULL, 'v'},
                                          {"ops", required_argument, NULL, 'o'},
                                          {"types", required_argument, NULL, 't'},
                                          {"codec", required_argument, NULL, 'c'},
                                          {"bytes", required_argument, NULL, 'b'},
                                          {"seconds", required_argument, NULL, 's'},
                                          {"step", required_argument, NULL, 'r'},
                                          {"changed", required_argument, NULL, 'g'},
                                          {"rows", required_argument, NULL, 'w'},
                                          {"json", required_argument, NULL, 'j'},
                                          {"zeros", required_argument, NULL, 'z'},
                                          {"count", no_argument, NULL, 'n'},
                                          {"trace", required_argument, NULL, 'a'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    const char *variants = "portable,avx2,avx512,avx512-vbmi,neon", *op_list = NULL, *types = NULL,
               *json_path = NULL;
    struct bench b = {.codec = NB_CODEC_INT4, .seconds = 0.3};
    size_t bytes = 8 << 20;
    struct change change = {.step = 0.0015, .share = -1, .rows = 1};
    double zeros = 0;
    bool count = false;
    FILE *trace = NULL;
    struct perf_json *json;
    int c, rows = 0;

    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        bool good = true;
        switch (c) {
        case 'v': variants = optarg; break;
        case 'o': op_list = optarg; break;
        case 't': types = optarg; break;
        case 'c':
            good = strcmp(optarg, "int4") == 0 || strcmp(optarg, "int6") == 0 ||
                   strcmp(optarg, "int8") == 0 || option_wrong("--codec", optarg, "int4, int6 or int8");
            b.codec = optarg[3] == '8' ? NB_CODEC_INT8 : optarg[3] == '6' ? NB_CODEC_INT6 : NB_CODEC_INT4;
            break;
        case 'b':
            good = perf_parse_size(optarg, &bytes) ||
                   option_wrong("--bytes", optarg, "a size in bytes; K, M, G or T may follow the number");
            break;
        case 's': good = option_number("--seconds", optarg, 0, 3600, &b.seconds); break;
        case 'r': good = option_number("--step", optarg, 0, 1e6, &change.step); break;
        case 'g':
            good = option_number("--changed", optarg, 0, 100, &change.share);
            change.share /= 100;
            break;
        case 'w': good = option_number("--rows", optarg, 0.0001, 1, &change.rows); break;
        case 'z': good = option_number("--zeros", optarg, 0, 1, &zeros); break;
        case 'n': count = true; break;
        case 'a':
            trace = trace ? trace : fopen(optarg, "w");
            if (!trace) {
                fprintf(stderr, "nibble-perf: cannot write %s: %s\n", optarg, strerror(errno));
                return 2;
            }
            break;
        case 'j': json_path = optarg; break;
        case 'h': fputs(help, stdout); return 0;
        default: fputs("try nibble-perf codec --help\n", stderr); return 2;
        }
        if (!good)
            return 2;
    }
    if (optind < argc) {
        option_wrong("an argument", argv[optind], "an option (see --help)");
        return 2;
    }
    if (!perf_words("--ops", op_list, op_name) || !perf_words("--types", types, perf_type_name) ||
        !perf_words("--variants", variants, variant_name))
        return 2;
    /* A size too small for a speed is large enough for a count. */
    if (bytes < (count ? 8192 : 65536) || bytes > (size_t)1 << 32) {
        fprintf(stderr, "nibble-perf: --bytes is 64K to 4G, with --count 8K to 4G\n");
        return 2;
    }
    bytes = bytes / 4096 * 4096;
    b.cap = 2 * bytes + 65536;
    b.ulp_cap = 2 * bytes + 65536;
    b.src = malloc(bytes);
    b.ref = malloc(bytes);
    b.dst = malloc(b.cap);
    b.own = malloc(bytes);
    b.ulp_coded = malloc(b.ulp_cap);
    b.sparse_coded = malloc(b.ulp_cap);
    b.delta4_coded = malloc(b.ulp_cap);
    b.err = malloc(nb_ef_err_bytes(bytes));
    b.scale = malloc(nb_ef_scale_bytes(bytes));
    bool ok = b.src && b.ref && b.dst && b.own && b.ulp_coded && b.sparse_coded && b.delta4_coded && b.err &&
              b.scale;
    for (int i = 0; i < REDUCE_SOURCES; i++)
        ok = (b.coded[i] = malloc(b.cap)) && ok;
    if (!ok || !perf_json_open(json_path, &json)) {
        if (!ok)
            fprintf(stderr, "nibble-perf: not enough memory\n");
        return 1;
    }
    const double clock = count ? NAN : perf_clock_ghz();
    if (count)
        printf("%-10s %-13s %-9s %12s %12s\n", "variant", "op", "type", "instructions", "bits/value");
    else
        printf("%-10s %-13s %-9s %8s %8s %7s %12s\n", "variant", "op", "type", "GB/s", "memcpy", "ratio",
               "bits/value");
    for (unsigned t = 0; ok && t < NB_DTYPE_COUNT; t++) {
        b.type = (enum nb_dtype)t;
        b.bytes = bytes;
        b.n = bytes / nb_dtype_size(b.type);
        for (int weights = 0; ok && weights < 2; weights++) {
            bool filled = false;
            for (unsigned o = 0; ok && o < sizeof(ops) / sizeof(ops[0]); o++) {
                const bool wanted = ops[o].once ? t == 0 : perf_listed(types, nb_dtype_name(b.type));
                if (ops[o].weights != (weights == 1) || !wanted || !perf_listed(op_list, ops[o].name))
                    continue;
                for (int v = NB_VARIANT_PORTABLE; ok && v < NB_VARIANT_COUNT; v++) {
                    const char *name = nb_variant_name((enum nb_variant)v);
                    const bool delta4 = strncmp(ops[o].name, "delta4", 6) == 0,
                               sparse = strncmp(ops[o].name, "sparse", 6) == 0;
                    double gbps = NAN, copy = NAN, bits = NAN, instructions = NAN;
                    if (!perf_listed(variants, name) || nb_codec_select((enum nb_variant)v) != 0)
                        continue;
                    if (!filled) {
                        /* Prepare with the fastest variant. */
                        nb_codec_select(NB_VARIANT_AUTO);
                        fill(&b, weights == 1, &change, zeros);
                        if (weights && change.share >= 0)
                            print_entropy(&b);
                        ok = weights || prepare(&b);
                        b.ulp_len = weights ? (size_t)op_ulp_encode(&b) : 0;
                        b.sparse_len = weights ? (size_t)op_sparse_encode(&b) : 0;
                        b.delta4_len = weights ? (size_t)op_delta4_encode(&b) : 0;
                        nb_codec_select((enum nb_variant)v);
                        filled = true;
                    }
                    output_progress("%s of %s with %s", ops[o].name, nb_dtype_name(b.type), name);
                    ok = ok && (count ? count_once(&b, ops[o].run, ops[o].times, trace, &instructions)
                                      : measure(&b, ops[o].run, ops[o].times, &gbps, &copy));
                    if (!ok)
                        break;
                    output_progress_end();
                    if (!ops[o].once)
                        bits = 8.0 *
                               (double)(!weights ? b.len[0]
                                        : delta4 ? b.delta4_len
                                        : sparse ? b.sparse_len
                                                 : b.ulp_len) /
                               (double)b.n;
                    const char *type = ops[o].once ? "bytes" : nb_dtype_name(b.type);
                    printf("%-10s %-13s %-9s", name, ops[o].name, type);
                    if (count)
                        printf(" %12.3f", instructions);
                    else
                        printf(" %8.2f %8.2f %7.2f", gbps, copy, gbps / copy);
                    if (isfinite(bits))
                        printf(" %12.2f\n", bits);
                    else
                        printf(" %12s\n", "-");
                    fflush(stdout);
                    perf_json_begin(json);
                    perf_json_text(json, "variant", name);
                    perf_json_text(json, "op", ops[o].name);
                    perf_json_text(json, "type", type);
                    perf_json_text(json, "codec",
                                   ops[o].once ? "hash"
                                   : delta4    ? "delta4"
                                   : sparse    ? "sparse"
                                   : weights   ? "ulp"
                                               : nb_codec_name(b.codec));
                    if (count) {
                        perf_json_number(json, "instructions", instructions);
                    } else {
                        perf_json_number(json, "gbps", gbps);
                        perf_json_number(json, "memcpy_gbps", copy);
                        perf_json_number(json, "ratio", gbps / copy);
                        perf_json_number(json, "clock_ghz", clock);
                    }
                    perf_json_number(json, "bits_per_value", bits);
                    perf_json_end(json);
                    rows++;
                }
            }
        }
    }
    if (!ok)
        fprintf(stderr, "nibble-perf: a codec refused its input\n");
    else if (!rows)
        fprintf(stderr, "nibble-perf: nothing to measure: no such variant, operation or type here\n");
    if (perf_json_close(json) || !rows || (trace && fclose(trace) != 0))
        ok = false;
    for (int i = 0; i < REDUCE_SOURCES; i++)
        free(b.coded[i]);
    free(b.src);
    free(b.ref);
    free(b.dst);
    free(b.own);
    free(b.ulp_coded);
    free(b.sparse_coded);
    free(b.delta4_coded);
    free(b.err);
    free(b.scale);
    return ok ? 0 : 1;
}
