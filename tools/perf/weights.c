/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-perf weights: the cost and loss of the weight gathers `exact` and `delta4`, over simulated training.
 * FP32 masters take steps of Adam on noisy gradients, are rounded to the type, and are gathered step after
 * step: for `exact` against the last step, for `delta4` against its own result of the last step. The model is
 * a stack of layers as frameworks flatten them: matrices whose rows differ in scale, gains about 1, biases
 * about 0.
 */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codec/fp.h"
#include "nibble/codec.h"
#include "perf.h"
#include "tools/output.h"

#define ROW 512u
#define ROWS 126u /* of a layer's matrix; then ROW gains and ROW biases */
#define WARM 30   /* steps until Adam's averages have settled */
#define MOST_RATIOS 64
#define UNIT 65536u /* values coded at once */

static uint64_t rng;

static double uniform(void)
{
    rng ^= rng >> 12;
    rng ^= rng << 25;
    rng ^= rng >> 27;
    return ((double)((rng * UINT64_C(0x2545f4914f6cdd1d)) >> 11) + 1) * 0x1p-53;
}

static float normal(void)
{
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

struct model {
    enum nb_dtype type;
    size_t n;
    float *w, *m, *v, *scale; /* masters, Adam's averages, scale of each gradient */
    uint8_t *now, *before, *held, *coded, *out;
    size_t cap;
};

struct tally {
    double exact_bits, delta4_bits; /* sums over values */
    double rounding2, error2, step2, weight2;
    double run2, run_most; /* errors of the runs over their roundings: sum of squares, largest */
    uint64_t measured;     /* runs */
    uint64_t values, inexact, signs, lossy, runs;
};

static void initialise(struct model *m)
{
    const size_t layer = (ROWS + 2) * ROW;
    float row = 1;

    for (size_t i = 0; i < m->n; i++) {
        const size_t at = i % layer;
        if (at % ROW == 0)
            row = expf(0.3f * normal());
        m->w[i] = at < ROWS * ROW         ? 0.02f * row * normal()
                  : at < (ROWS + 1) * ROW ? 1 + 0.05f * normal()
                                          : 0.005f * normal();
        m->scale[i] = row * expf(0.5f * normal());
        m->m[i] = m->v[i] = 0;
    }
}

/* Take one step of Adam (0.9, 0.95). Rate 0 only settles the averages. */
static void train(struct model *m, float rate, unsigned t, struct tally *sum)
{
    const float c1 = 1 - powf(0.9f, (float)t), c2 = 1 - powf(0.95f, (float)t);

    for (size_t i = 0; i < m->n; i++) {
        const float g = m->scale[i] * (normal() + 0.3f * m->w[i]);
        m->m[i] = 0.9f * m->m[i] + 0.1f * g;
        m->v[i] = 0.95f * m->v[i] + 0.05f * g * g;
        const float d = rate * (m->m[i] / c1) / sqrtf(m->v[i] / c2 + 1e-12f);
        sum->weight2 += (double)m->w[i] * m->w[i] * (i % ((ROWS + 2) * ROW) < ROWS * ROW);
        sum->step2 += (double)d * d * (i % ((ROWS + 2) * ROW) < ROWS * ROW);
        m->w[i] -= d;
    }
}

/* Gather once: count bits, and the errors of delta4's result. */
static bool gather(struct model *m, struct tally *sum)
{
    const size_t size = nb_dtype_size(m->type);

    for (size_t at = 0; at < m->n; at += UNIT) {
        const size_t bytes = (m->n - at < UNIT ? m->n - at : UNIT) * size;
        uint8_t *now = m->now + at * size, *held = m->held + at * size;
        struct nb_delta4_stats stats = {0, 0};
        ssize_t len = nb_ulp_encode(size == 4 ? NB_ULP_32 : NB_ULP_16, now, m->before + at * size, bytes,
                                    bytes, m->coded, m->cap);
        sum->exact_bits += 8.0 * (double)(len < 0 ? (ssize_t)bytes : len);
        len = nb_delta4_encode(m->type, now, held, bytes, bytes, m->coded, m->cap, &stats);
        sum->delta4_bits += 8.0 * (double)(len < 0 ? (ssize_t)bytes : len);
        sum->lossy += stats.lossy;
        sum->runs += stats.runs;
        if (len < 0)
            memcpy(held, now, bytes);
        else if (nb_delta4_decode(m->type, m->coded, (size_t)len, held, bytes, held))
            return false;
    }
    for (size_t at = 0; at < m->n; at += NB_DELTA4_RUN) {
        double error2 = 0, rounding2 = 0;
        for (size_t i = at; i < at + NB_DELTA4_RUN && i < m->n; i++) {
            const float now = nb_load_value(m->type, m->now, i), held = nb_load_value(m->type, m->held, i);
            const double e = (double)held - (double)now;
            int exponent;
            (void)frexpf(now, &exponent);
            const double rounding = ldexp(1, exponent - 8) / sqrt(12); /* to bfloat16, on the average */
            error2 += e * e;
            rounding2 += rounding * rounding;
            sum->inexact += held != now;
            sum->signs += (held > 0) != (now > 0) || (held < 0) != (now < 0);
        }
        sum->run_most = fmax(sum->run_most, sqrt(error2 / rounding2));
        sum->run2 += error2 / rounding2;
        sum->measured++;
        sum->error2 += error2;
        sum->rounding2 += rounding2;
    }
    sum->values += m->n;
    memcpy(m->before, m->now, m->n * size);
    return true;
}

static void round_all(struct model *m)
{
    for (size_t i = 0; i < m->n; i++)
        nb_store_value(m->type, m->now, i, m->w[i]);
}

static bool simulate(struct model *m, double ratio, unsigned steps, struct tally *sum)
{
    struct tally none = {0};
    double rate = 0;

    rng = 88172645463325252u;
    memset(sum, 0, sizeof(*sum));
    initialise(m);
    for (unsigned t = 1; t <= WARM + steps; t++) {
        if (t == WARM) { /* Adam's step at rate 1 gives the rate for the ratio */
            round_all(m);
            train(m, 1e-9f, t, &none);
            rate = ratio * sqrt(none.weight2 / (none.step2 * 1e18));
            memcpy(m->before, m->now, m->n * nb_dtype_size(m->type));
            memcpy(m->held, m->now, m->n * nb_dtype_size(m->type));
            continue;
        }
        train(m, t < WARM ? 0 : (float)rate, t, t < WARM ? &(struct tally){0} : sum);
        if (t < WARM) {
            none.weight2 = none.step2 = 0;
            continue;
        }
        round_all(m);
        if (!gather(m, sum))
            return false;
    }
    return true;
}

static const char help[] =
    "usage: nibble-perf weights [OPTION]...\n\n"
    "  --types LIST   of float32,bfloat16,float16 (default bfloat16)\n"
    "  --ratios LIST  rms of a step over rms of the weights, of matrices (default 0.0001 to 0.02)\n"
    "  --values N     (default 516096)\n"
    "  --steps N      gathers in a row (default 12)\n"
    "  --json FILE    write a list of objects\n\n"
    "Bits are those of a coded value. 'error' is the rms of what delta4 delivered less what was to be "
    "gathered, over that of\nrounding the weights to bfloat16; 'of runs' the rms of the same quotient taken "
    "for every 256 values, 'worst' its largest;\n'inexact' the share of values that arrived changed, 'signs' "
    "how many changed their sign.\n";

int perf_weights(int argc, char **argv)
{
    static const struct option longs[] = {{"types", required_argument, NULL, 't'},
                                          {"ratios", required_argument, NULL, 'r'},
                                          {"values", required_argument, NULL, 'n'},
                                          {"steps", required_argument, NULL, 's'},
                                          {"json", required_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    const char *types = "bfloat16", *json_path = NULL;
    const char *ratios = "0.0001,0.0002,0.0006,0.0015,0.0025,0.005,0.007,0.01,0.014,0.02";
    struct model m = {0};
    struct perf_json *json;
    double ratio[MOST_RATIOS];
    int steps = 12, values = 8 * (ROWS + 2) * ROW, nratios, c;
    bool ok;

    while ((c = getopt_long(argc, argv, "h", longs, NULL)) != -1) {
        bool good = true;
        switch (c) {
        case 't': types = optarg; break;
        case 'r': ratios = optarg; break;
        case 'n': good = option_whole("--values", optarg, 1024, 1 << 28, &values); break;
        case 's': good = option_whole("--steps", optarg, 1, 10000, &steps); break;
        case 'j': json_path = optarg; break;
        case 'h': fputs(help, stdout); return 0;
        default: fputs("try nibble-perf weights --help\n", stderr); return 2;
        }
        if (!good)
            return 2;
    }
    if (optind < argc) {
        option_wrong("an argument", argv[optind], "an option (see --help)");
        return 2;
    }
    m.n = (size_t)values;
    nratios = perf_numbers("--ratios", ratios, 0, 1000, ratio, MOST_RATIOS);
    if (!nratios || !perf_words("--types", types, perf_type_name))
        return 2;
    m.cap = nb_ulp_bound(NB_ULP_32, 4 * UNIT);
    float *f = malloc(4 * m.n * sizeof(float));
    uint8_t *b = malloc(12 * m.n + m.cap);
    if (!f || !b || !perf_json_open(json_path, &json)) {
        fprintf(stderr, "nibble-perf: not enough memory\n");
        return 1;
    }
    m.w = f, m.m = f + m.n, m.v = f + 2 * m.n, m.scale = f + 3 * m.n;
    m.now = b, m.before = b + 4 * m.n, m.held = b + 8 * m.n, m.coded = b + 12 * m.n;
    printf("%-9s %9s %8s %8s %8s %8s %8s %8s %8s %8s %6s\n", "type", "step/w", "exact", "ratio", "delta4",
           "ratio", "error", "of runs", "worst", "inexact", "signs");
    ok = true;
    for (unsigned t = 0; ok && t < NB_DTYPE_COUNT; t++) {
        m.type = (enum nb_dtype)t;
        if (!perf_listed(types, nb_dtype_name(m.type)))
            continue;
        for (int i = 0; ok && i < nratios; i++) {
            struct tally s;
            const double raw = 8.0 * (double)nb_dtype_size(m.type);
            ok = simulate(&m, ratio[i], (unsigned)steps, &s);
            const double n = (double)s.values, exact = s.exact_bits / n, delta4 = s.delta4_bits / n;
            const double error = sqrt(s.error2 / s.rounding2), step = sqrt(s.step2 / s.weight2);
            const double runs = sqrt(s.run2 / (double)s.measured);
            printf("%-9s %9.5f %8.3f %8.2f %8.3f %8.2f %8.4f %8.4f %8.4f %8.4f %6llu\n",
                   nb_dtype_name(m.type), step, exact, raw / exact, delta4, raw / delta4, error, runs,
                   s.run_most, (double)s.inexact / n, (unsigned long long)s.signs);
            fflush(stdout);
            perf_json_begin(json);
            perf_json_text(json, "type", nb_dtype_name(m.type));
            perf_json_number(json, "step", step);
            perf_json_number(json, "exact_bits", exact);
            perf_json_number(json, "delta4_bits", delta4);
            perf_json_number(json, "error", error);
            perf_json_number(json, "error_of_runs", runs);
            perf_json_number(json, "worst_run", s.run_most);
            perf_json_number(json, "inexact", (double)s.inexact / n);
            perf_json_number(json, "sign_changes", (double)s.signs);
            perf_json_number(json, "lossy_runs", (double)s.lossy / (double)s.runs);
            perf_json_end(json);
        }
    }
    if (!ok)
        fprintf(stderr, "nibble-perf: the decoder refused what the encoder made\n");
    if (perf_json_close(json))
        ok = false;
    free(f);
    free(b);
    return ok ? 0 : 1;
}
