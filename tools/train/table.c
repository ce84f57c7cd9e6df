/* SPDX-License-Identifier: Apache-2.0 */
/* Records of runs, and the table over seeds that is made of them. */
#include "table.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stats.h"

#define BAR_OFF 0.0015    /* with feedback, at most */
#define BAR_CONTROL 0.003 /* the negative control, at least */
#define BAR_EXACT 1e-5
#define MAX_RECORDS 4096u

/* What a record holds after the name of its run, in this order. */
enum {
    F_SEED,
    F_STEPS,
    F_RATE,
    F_VALID,
    F_TRAIN,
    F_OFF,
    F_RATIO = F_OFF + NBT_CLASSES,
    F_RS_BITS = F_RATIO + NBT_CLASSES,
    F_AG_BITS,
    F_WEIGHT_ERROR,
    F_CHANGE_PEAK,
    F_BITS_PEAK,
    F_CHANGE_END,
    F_BITS_END,
    F_COUNT
};
static const char *const field_names[F_COUNT] = {"seed",
                                                 "steps",
                                                 "rate",
                                                 "valid",
                                                 "train",
                                                 "off_matrix",
                                                 "off_embedding",
                                                 "off_layernorm",
                                                 "off_bias",
                                                 "off_head",
                                                 "ratio_matrix",
                                                 "ratio_embedding",
                                                 "ratio_layernorm",
                                                 "ratio_bias",
                                                 "ratio_head",
                                                 "rs_bits",
                                                 "ag_bits",
                                                 "weight_error",
                                                 "change_peak",
                                                 "bits_peak",
                                                 "change_end",
                                                 "bits_end"};

struct record {
    char run[32];
    double x[F_COUNT];
};

/* ---- writing ---- */

static void fill(const struct nbt_settings *s, const struct nbt_outcome *o, struct record *r)
{
    const struct nbt_board *b = o->board;
    const size_t steps = b->steps_done, end = steps - steps / 20;
    size_t peak = s->warmup;
    while (peak < steps && b->step[peak].rate > 0.9f * s->rate)
        peak++;
    snprintf(r->run, sizeof r->run, "%s", o->run->name);
    r->x[F_SEED] = (double)s->seed;
    r->x[F_STEPS] = (double)steps;
    r->x[F_RATE] = (double)s->rate;
    r->x[F_VALID] = nbt_final_valid(b);
    r->x[F_TRAIN] = nbt_final_loss(b);
    for (int c = 0; c < NBT_CLASSES; c++) {
        r->x[F_OFF + c] = b->fidelity.off[c];
        r->x[F_RATIO + c] = b->fidelity.ratio[c];
    }
    const double values = (double)steps * (double)(s->nodes - 1) * (double)s->lay.params;
    r->x[F_RS_BITS] = nbt_counted(o) ? 8 * (double)o->traffic.reduce_scatter.wire / values : NAN;
    r->x[F_AG_BITS] = nbt_counted(o) ? 8 * (double)o->traffic.all_gather.wire / values : NAN;
    r->x[F_WEIGHT_ERROR] = nbt_board_weight_error(s, b);
    r->x[F_CHANGE_PEAK] = nbt_weight_change(b, s->warmup, peak);
    r->x[F_BITS_PEAK] = nbt_gather_bits(s, b, s->warmup, peak);
    r->x[F_CHANGE_END] = nbt_weight_change(b, end, steps);
    r->x[F_BITS_END] = nbt_gather_bits(s, b, end, steps);
}

int nbt_record(const struct nbt_settings *s, const struct nbt_outcome *o, const char *path)
{
    struct record r;
    FILE *f = fopen(path, "a");
    if (!f) {
        const int rc = -errno;
        fprintf(stderr, "nibble-train: cannot write %s: %s\n", path, strerror(errno));
        return rc;
    }
    fill(s, o, &r);
    if (fseek(f, 0, SEEK_END) == 0 && ftell(f) == 0) {
        fprintf(f, "run");
        for (int i = 0; i < F_COUNT; i++)
            fprintf(f, "\t%s", field_names[i]);
        fputc('\n', f);
    }
    fprintf(f, "%s", r.run);
    for (int i = 0; i < F_COUNT; i++)
        fprintf(f, "\t%.9g", r.x[i]);
    fputc('\n', f);
    return fclose(f) == 0 ? 0 : -EIO;
}

/* ---- reading ---- */

/* Records of a file, at most `max`; a negative errno value when it cannot be read or a line is no record. */
static ssize_t load(const char *path, struct record *records, size_t max)
{
    char line[1024];
    size_t n = 0, lines = 0;
    FILE *f = fopen(path, "r");
    if (!f)
        return -errno;
    while (fgets(line, sizeof line, f)) {
        struct record *r = &records[n];
        char *at = strchr(line, '\t');
        if (lines++ == 0)
            continue;
        if (n == max || !at || (size_t)(at - line) >= sizeof r->run)
            break;
        memcpy(r->run, line, (size_t)(at - line));
        r->run[at - line] = 0;
        int i = 0;
        for (; i < F_COUNT; i++) {
            char *end;
            r->x[i] = strtod(at, &end); /* skips the tab */
            if (end == at)
                break;
            at = end;
        }
        if (i < F_COUNT)
            break;
        n++;
    }
    const int whole = feof(f) && lines == n + 1;
    fclose(f);
    return whole ? (ssize_t)n : -EBADMSG;
}

int nbt_record_has(const struct nbt_settings *s, const struct nbt_run *run, const char *path)
{
    struct record *records = calloc(MAX_RECORDS, sizeof *records);
    const ssize_t n = records ? load(path, records, MAX_RECORDS) : 0;
    int found = 0;
    for (ssize_t i = 0; i < n; i++)
        found |= strcmp(records[i].run, run->name) == 0 && records[i].x[F_SEED] == (double)s->seed &&
                 records[i].x[F_STEPS] == (double)s->steps &&
                 fabs(records[i].x[F_RATE] / (double)s->rate - 1) < 1e-6;
    free(records);
    return found;
}

/* ---- the table ---- */

struct set {
    const struct record *r;
    size_t n;
};

/* One field of a run's records, of those with the learning rate `rate` (0: any); returns how many. */
static size_t column(const struct set *set, const char *run, int field, double rate, double *x)
{
    size_t n = 0;
    for (size_t i = 0; i < set->n; i++)
        if (strcmp(set->r[i].run, run) == 0 && (rate == 0 || set->r[i].x[F_RATE] == rate))
            x[n++] = set->r[i].x[field];
    return n;
}

/* 100 (x / x of the uncompressed run of the same seed - 1). */
static size_t against_raw(const struct set *set, const char *run, int field, double rate, double *x)
{
    size_t n = 0;
    for (size_t i = 0; i < set->n; i++)
        for (size_t k = 0; k < set->n && strcmp(set->r[i].run, run) == 0 && set->r[i].x[F_RATE] == rate; k++)
            if (strcmp(set->r[k].run, "raw") == 0 && set->r[k].x[F_SEED] == set->r[i].x[F_SEED] &&
                set->r[k].x[F_RATE] == rate) {
                x[n++] = 100 * (set->r[i].x[field] / set->r[k].x[field] - 1);
                break;
            }
    return n;
}

static void fidelity(const struct set *set, double rate, double *x)
{
    printf(
        "1 - cos of Adam's update against exact gradients: mean over seeds (worst seed)\n\n| run | seeds |");
    for (int c = 0; c < NBT_CLASSES; c++)
        printf(" %s |", nbt_class_name((enum nbt_class)c));
    printf("\n|---|---|---|---|---|---|---|\n");
    for (size_t k = 0; k < nbt_runs_count; k++) {
        const char *name = nbt_runs[k].name;
        const size_t n = column(set, name, F_SEED, rate, x);
        if (n == 0)
            continue;
        printf("| %s | %zu |", nbt_runs[k].title, n);
        for (int c = 0; c < NBT_CLASSES; c++) {
            const struct nbt_stats s = nbt_stats(x, column(set, name, F_OFF + c, rate, x));
            printf(" %.5f (%.5f) |", s.mean, s.worst);
        }
        putchar('\n');
    }
    printf("\nNorm of Adam's update over that from exact gradients: mean over seeds\n\n| run |");
    for (int c = 0; c < NBT_CLASSES; c++)
        printf(" %s |", nbt_class_name((enum nbt_class)c));
    printf("\n|---|---|---|---|---|---|\n");
    for (size_t k = 0; k < nbt_runs_count; k++) {
        if (column(set, nbt_runs[k].name, F_SEED, rate, x) == 0)
            continue;
        printf("| %s |", nbt_runs[k].title);
        for (int c = 0; c < NBT_CLASSES; c++)
            printf(" %.4f |", nbt_stats(x, column(set, nbt_runs[k].name, F_RATIO + c, rate, x)).mean);
        putchar('\n');
    }
}

static void cell(double x)
{
    if (isnan(x))
        printf(" - |");
    else
        printf(" %.2f |", x);
}

static void losses(const struct set *set, double rate, double *x)
{
    printf(
        "\nLosses, and their differences from the uncompressed run of the same seed: means, 95 %% confidence "
        "intervals. Bits a value on\nthe wire, and the RMS error of gathered weights over that of rounding "
        "them to BF16\n\n| run | validation loss | against uncompressed, %% | training loss, %% | gradients, "
        "bits | weights, bits | weight error |\n|---|---|---|---|---|---|---|\n");
    for (size_t k = 0; k < nbt_runs_count; k++) {
        const char *name = nbt_runs[k].name;
        const struct nbt_stats valid = nbt_stats(x, column(set, name, F_VALID, rate, x));
        if (valid.n == 0)
            continue;
        const struct nbt_stats gap = nbt_stats(x, against_raw(set, name, F_VALID, rate, x));
        const struct nbt_stats train = nbt_stats(x, against_raw(set, name, F_TRAIN, rate, x));
        printf("| %s | %.4f ± %.4f |", nbt_runs[k].title, valid.mean, valid.half);
        if (strcmp(name, "raw") == 0)
            printf(" 0 | 0 |");
        else
            printf(" %+.2f ± %.2f | %+.2f ± %.2f |", gap.mean, gap.half, train.mean, train.half);
        cell(nbt_stats(x, column(set, name, F_RS_BITS, rate, x)).mean);
        cell(nbt_stats(x, column(set, name, F_AG_BITS, rate, x)).mean);
        printf(" %.3f |\n", nbt_stats(x, column(set, name, F_WEIGHT_ERROR, rate, x)).mean);
    }
}

static int by_rate(const void *a, const void *b)
{
    const double x = ((const struct record *)a)->x[F_RATE], y = ((const struct record *)b)->x[F_RATE];
    return (x < y) - (x > y);
}

/* Runs of the exact gather with several learning rates: bits against how far weights move. */
static void learning_rates(const struct set *set, const char *run, const char *title, double *x)
{
    double last = 0;
    size_t rates = 0;
    for (size_t i = 0; i < set->n; i++)
        if (strcmp(set->r[i].run, run) == 0 && set->r[i].x[F_RATE] != last) {
            last = set->r[i].x[F_RATE];
            rates++;
        }
    if (rates < 2)
        return;
    printf(
        "\n%s: bits a BF16 value of the gathers against how far a step moves the weights. At the peak: steps "
        "with at least\n0.9 of the peak learning rate; at the end: the last twentieth of the steps, about a "
        "tenth "
        "of it\n\n| peak learning rate | rms(dW)/rms(W), peak | bits | ratio to BF16 | rms(dW)/rms(W), end | "
        "bits | "
        "ratio to BF16 |\n|---|---|---|---|---|---|---|\n",
        title);
    last = 0;
    for (size_t i = 0; i < set->n; i++) {
        const double rate = set->r[i].x[F_RATE];
        if (strcmp(set->r[i].run, run) != 0 || rate == last)
            continue;
        last = rate;
        printf("| %g |", rate);
        for (int f = F_CHANGE_PEAK; f <= F_CHANGE_END; f += F_CHANGE_END - F_CHANGE_PEAK) {
            const double bits = nbt_stats(x, column(set, run, f + 1, rate, x)).mean;
            printf(" %.5f | %.2f | %.1f |", nbt_stats(x, column(set, run, f, rate, x)).mean, bits, 16 / bits);
        }
        putchar('\n');
    }
}

/* The bars hold on every seed: the default run's, and the control's by failing it. */
static int judge(const struct set *set)
{
    int failed = 0;
    putchar('\n');
    for (size_t k = 0; k < nbt_runs_count; k++) {
        const struct nbt_run *run = &nbt_runs[k];
        const int raw = strcmp(run->name, "raw") == 0, control = run->method.wrong_slot;
        double worst = 0, best = INFINITY;
        for (size_t i = 0; i < set->n; i++) {
            double most = 0;
            if (strcmp(set->r[i].run, run->name) != 0)
                continue;
            for (int c = 0; c < NBT_CLASSES; c++)
                most = fmax(most, set->r[i].x[F_OFF + c]);
            worst = fmax(worst, most);
            best = fmin(best, most);
        }
        if (isinf(best) || !(raw || control || run->judged))
            continue;
        const double bar = raw ? BAR_EXACT : control ? BAR_CONTROL : BAR_OFF;
        const int ok = control ? best > bar : worst <= bar;
        failed += !ok;
        printf("- %s: %s, %s: 1 - cos of the worst class is %s %g in every seed (%s %.2g)\n",
               ok ? "ok" : "FAILED", run->title, control ? "the negative control" : "bar",
               control ? "above" : "at most", bar, control ? "least" : "most", control ? best : worst);
    }
    return failed;
}

int nbt_table(const char *path)
{
    struct record *records = calloc(MAX_RECORDS, sizeof *records);
    double *x = calloc(MAX_RECORDS, sizeof *x);
    ssize_t n = records && x ? load(path, records, MAX_RECORDS) : -ENOMEM;
    int failed = -ENODATA;
    if (n <= 0) {
        fprintf(stderr, "nibble-train: no records in %s%s%s\n", path, n < 0 ? ": " : "",
                n < 0 ? strerror((int)-n) : "");
    } else {
        qsort(records, (size_t)n, sizeof *records, by_rate);
        const struct set set = {records, (size_t)n};
        const double rate = records[0].x[F_RATE]; /* the largest: the runs that are compared */
        fidelity(&set, rate, x);
        losses(&set, rate, x);
        for (size_t k = 0; k < nbt_runs_count; k++)
            learning_rates(&set, nbt_runs[k].name, nbt_runs[k].title, x);
        failed = judge(&set);
    }
    free(records);
    free(x);
    return failed;
}
