/* SPDX-License-Identifier: Apache-2.0 */
/* Tables, verdicts and files. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

extern char **environ;

/* The bars. Bytes: 4 bits with one 8-bit scale and one transform bit a group of 32 are 4.29 bits a value,
 * against which stand headers and tails; weights as exact differences take 2 to 5 bits at usual learning
 * rates. Fidelity: see docs/training.md. */
#define RS_RATIO_BF16 3.6
#define RS_RATIO_F32 7.2
#define AG_RATIO 3.0
#define QUANTIZED_SHARE 0.7 /* of the operations: the plugin first watches some fifty of them */
#define FEEDBACK_SHARE 0.75 /* of these: it begins when the plugin is certain whose error it is */
#define FEEDBACK_OFF 0.003  /* 1 - cos with feedback, every class */
#define FEEDBACK_GAIN 2.5   /* how many times less than without, matrices */
#define EXACT_OFF 1e-5      /* 1 - cos of the uncompressed run: BF16 rounding of the sums and nothing else */
#define LOSS_WITHIN 0.03    /* validation loss against the uncompressed run: far off means broken, not more */
#define LOSS_FALLS 1.0      /* nats that the training loss must fall by, else nothing was learned */

double nbt_plain_bytes(const struct nbt_settings *s, size_t steps, size_t size)
{
    return (double)steps * (double)(s->nodes - 1) * (double)s->nodes * (double)s->block * (double)size;
}

/* Of the quantized operations: a plugin that first watches an operation sends it raw for some steps, and how
 * many steps follow is this program's choice. Raw operations are taken at their plain size, so that headers
 * count. */
static double rs_ratio(const struct nbt_settings *s, const struct nbt_outcome *o)
{
    const double op =
        nbt_plain_bytes(s, 1, nb_dtype_size(s->grad_type)) / (double)s->nodes; /* one node's share */
    const double quantized = (double)o->traffic.quantized_ops;
    const double raw = (double)o->traffic.reduce_scatter.ops - quantized;
    if (o->run->coded && quantized > 0)
        return op * quantized / ((double)o->traffic.reduce_scatter.wire - op * raw);
    return op * (double)o->traffic.reduce_scatter.ops / (double)o->traffic.reduce_scatter.wire;
}

static double ag_ratio(const struct nbt_settings *s, const struct nbt_outcome *o)
{
    return nbt_plain_bytes(s, s->steps, sizeof(uint16_t)) / (double)o->traffic.all_gather.wire;
}

static int counted(const struct nbt_outcome *o)
{
    return o->traffic.known && o->traffic.reduce_scatter.wire > 0 && o->traffic.all_gather.wire > 0;
}

/* Mean training loss of the last tenth of the steps: a single batch is too noisy to print. */
static double final_loss(const struct nbt_board *b)
{
    const size_t n = b->steps_done / 10 + (b->steps_done > 0);
    double sum = 0;
    for (size_t i = b->steps_done - n; i < b->steps_done; i++)
        sum += b->step[i].loss;
    return n ? sum / (double)n : NAN;
}

static double final_valid(const struct nbt_board *b)
{
    return b->steps_done ? b->step[b->steps_done - 1].valid : NAN;
}

static const struct nbt_outcome *find(const struct nbt_outcome *runs, size_t n, int coded, int feedback)
{
    for (size_t i = 0; i < n; i++)
        if (runs[i].ok && runs[i].run->coded == coded && runs[i].run->feedback == feedback)
            return &runs[i];
    return NULL;
}

struct nbt_phases {
    double compute, rs, ag; /* ms a step, mean over nodes */
};

static struct nbt_phases phases(const struct nbt_settings *s, const struct nbt_board *b)
{
    const double k = b->steps_done ? 1e3 / ((double)b->steps_done * (double)s->nodes) : 0;
    struct nbt_phases p = {0};
    for (int r = 0; r < s->nodes; r++) {
        p.compute += k * b->node[r].seconds_compute;
        p.rs += k * b->node[r].seconds_rs;
        p.ag += k * b->node[r].seconds_ag;
    }
    return p;
}

/* ---- tables ---- */

static void print_runs(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n)
{
    printf("\n%-26s %8s %10s   %-22s   %-22s %8s\n", "", "loss", "loss", "reduce-scatter", "all-gather",
           "time");
    printf("%-26s %8s %10s %11s %11s  %11s %11s  %8s\n", "run", "training", "validation", "MiB", "ratio",
           "MiB", "ratio", "s");
    for (size_t i = 0; i < n; i++) {
        const struct nbt_outcome *o = &runs[i];
        printf("%-26s %8.4f %10.4f", o->run->title, final_loss(o->board), final_valid(o->board));
        if (counted(o))
            printf(" %11.2f %11.2f  %11.2f %11.2f", (double)o->traffic.reduce_scatter.wire / 1048576,
                   rs_ratio(s, o), (double)o->traffic.all_gather.wire / 1048576, ag_ratio(s, o));
        else
            printf(" %11s %11s  %11s %11s", "-", "-", "-", "-");
        printf("  %8.1f%s\n", o->board->seconds, o->ok ? "" : "  FAILED");
    }
    printf("ms a step (mean over nodes; waiting for slower nodes counts as communication)\n");
    for (size_t i = 0; i < n; i++) {
        const struct nbt_phases p = phases(s, runs[i].board);
        printf("%-26s compute %.0f, reduce-scatter %.0f, all-gather %.0f\n", runs[i].run->title, p.compute,
               p.rs, p.ag);
    }
    printf("(bytes: sent by all nodes together, headers included; ratio: against %s gradients and BF16 "
           "weights as\n"
           "they are, of quantized reduce-scatters and of all all-gathers)\n",
           s->grad_type == NB_BF16 ? "BF16" : "FP32");
}

static void print_fidelity(const struct nbt_outcome *runs, size_t n)
{
    printf("\nDirection of Adam's update against exact gradients: 1 - cos (norm ratio), means over %zu "
           "instants\n%-22s",
           n ? runs[0].board->fidelity.instants : 0, "");
    for (size_t i = 0; i < n; i++)
        printf(" %24s", runs[i].run->title);
    putchar('\n');
    for (int c = 0; c < NBT_FID_CLASSES; c++) {
        printf("%-22s", nbt_fid_class_name(c));
        for (size_t i = 0; i < n; i++)
            printf("      %.6f (%8.4f)", runs[i].board->fidelity.off[c], runs[i].board->fidelity.ratio[c]);
        putchar('\n');
    }
    printf("NMSE of the reduced gradient\n");
    for (int c = 0; c < NBT_CLASSES; c++) {
        printf("%-22s", nbt_fid_class_name(c));
        for (size_t i = 0; i < n; i++)
            printf(" %24.6f", runs[i].board->fidelity.nmse[c]);
        putchar('\n');
    }
    printf(
        "(rare rows: rows of bytes that are absent from more than half of the steps; shown, not judged)\n");
}

/* ---- verdicts ---- */

struct verdicts {
    int failed;
    size_t count;
    struct {
        char text[300];
        int ok;
    } line[32];
};

static void verdict(struct verdicts *v, int ok, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void verdict(struct verdicts *v, int ok, const char *fmt, ...)
{
    va_list ap;
    v->failed += !ok;
    if (v->count == sizeof v->line / sizeof *v->line)
        return;
    va_start(ap, fmt);
    vsnprintf(v->line[v->count].text, sizeof v->line[0].text, fmt, ap);
    va_end(ap);
    v->line[v->count++].ok = ok;
}

static void judge_run(const struct nbt_settings *s, const struct nbt_outcome *o, struct verdicts *v,
                      int quality)
{
    const struct nbt_board *b = o->board;
    const double start = b->steps_done ? b->step[0].loss : NAN;
    if (o->ok && b->steps_done == s->steps)
        verdict(v, 1, "%s: all %zu steps ran", o->run->title, s->steps);
    else
        verdict(v, 0, "%s: %zu of %zu steps ran: %s", o->run->title, b->steps_done, s->steps, o->reason);
    if (b->weight_errors == 0 && b->weight_checks == b->steps_done && b->steps_done > 0)
        verdict(v, 1, "%s: weights equal on all nodes and to what their owners sent, after every step",
                o->run->title);
    else
        verdict(v, 0, "%s: weights differ between nodes or from what their owners sent (%llu times)",
                o->run->title, (unsigned long long)b->weight_errors);
    if (quality)
        verdict(v, start - final_loss(b) >= LOSS_FALLS,
                "%s: training loss fell from %.3f to %.3f (at least %.1f)", o->run->title, start,
                final_loss(b), LOSS_FALLS);
    if (!o->run->coded) {
        double worst = 0;
        for (int c = 0; c < NBT_CLASSES; c++)
            worst = fmax(worst, b->fidelity.off[c]);
        verdict(v, worst <= EXACT_OFF, "%s: update as from exact gradients, 1 - cos %.1e (at most %.0e)",
                o->run->title, worst, EXACT_OFF);
        return;
    }
    if (counted(o) && (quality || o->traffic.quantized_ops > 0)) {
        const double ops = (double)o->traffic.reduce_scatter.ops, coded = (double)o->traffic.quantized_ops;
        const double share = coded / ops, fed = coded > 0 ? (double)o->traffic.feedback_ops / coded : 0;
        const double bar = s->grad_type == NB_BF16 ? RS_RATIO_BF16 : RS_RATIO_F32;
        if (quality)
            verdict(v, share >= QUANTIZED_SHARE,
                    "%s: %.0f %% of the reduce-scatters quantized (at least %.0f %%)", o->run->title,
                    100 * share, 100 * QUANTIZED_SHARE);
        if (o->run->feedback && quality)
            verdict(v, fed >= FEEDBACK_SHARE, "%s: %.0f %% of these with feedback (at least %.0f %%)",
                    o->run->title, 100 * fed, 100 * FEEDBACK_SHARE);
        if (!o->run->feedback)
            verdict(v, fed == 0, "%s: none of the reduce-scatters with feedback", o->run->title);
        verdict(v, rs_ratio(s, o) >= bar,
                "%s: quantized reduce-scatters send %.2fx fewer bytes (at least %.1f)", o->run->title,
                rs_ratio(s, o), bar);
    }
    if (counted(o) && quality)
        verdict(v, ag_ratio(s, o) >= AG_RATIO, "%s: all-gather sends %.2fx fewer bytes (at least %.1f)",
                o->run->title, ag_ratio(s, o), AG_RATIO);
    if (!counted(o) && s->exchange != &nbt_exchange_shm)
        verdict(v, 0, "%s: the plugin did not say how many bytes it sent", o->run->title);
}

static void judge(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n, struct verdicts *v,
                  int quality)
{
    const struct nbt_outcome *raw = find(runs, n, 0, 0), *off = find(runs, n, 1, 0),
                             *on = find(runs, n, 1, 1);
    for (size_t i = 0; i < n; i++)
        judge_run(s, &runs[i], v, quality);
    if (!quality)
        return;
    if (on)
        for (int c = 0; c < NBT_CLASSES; c++)
            verdict(v, on->board->fidelity.off[c] <= FEEDBACK_OFF, "%s, %s: 1 - cos %.5f (at most %.3f)",
                    on->run->title, nbt_fid_class_name(c), on->board->fidelity.off[c], FEEDBACK_OFF);
    if (on && off) {
        const double gain = off->board->fidelity.off[NBT_MATRIX] / on->board->fidelity.off[NBT_MATRIX];
        verdict(v, gain >= FEEDBACK_GAIN, "feedback: matrices %.1fx closer than without (at least %.1f)",
                gain, FEEDBACK_GAIN);
    }
    for (size_t i = 0; raw && i < n; i++) {
        const double gap = final_valid(runs[i].board) / final_valid(raw->board) - 1;
        if (&runs[i] != raw && runs[i].ok)
            verdict(v, fabs(gap) <= LOSS_WITHIN,
                    "%s: validation loss %+.2f %% of uncompressed (within %.0f %%)", runs[i].run->title,
                    100 * gap, 100 * LOSS_WITHIN);
    }
}

/* ---- files ---- */

static FILE *create(const char *dir, const char *name, const char *suffix)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%s", dir, name, suffix);
    FILE *f = fopen(path, "w");
    if (!f)
        fprintf(stderr, "nibble-train: cannot write %s: %s\n", path, strerror(errno));
    return f;
}

static int write_curves(const struct nbt_settings *s, const struct nbt_outcome *o, const char *dir)
{
    char name[64];
    snprintf(name, sizeof name, "loss-%s", o->run->name);
    FILE *f = create(dir, name, ".csv");
    if (!f)
        return -EIO;
    fprintf(f, "step,learning_rate,loss,validation_loss,gradient_norm\n");
    for (size_t i = 0; i < o->board->steps_done && i < s->steps; i++) {
        const struct nbt_step *t = &o->board->step[i];
        fprintf(f, "%zu,%.6g,%.6f,", i + 1, (double)t->rate, t->loss);
        if (!isnan(t->valid))
            fprintf(f, "%.6f", t->valid);
        fprintf(f, ",%.6f\n", t->norm);
    }
    return fclose(f) == 0 ? 0 : -EIO;
}

static void json_number(FILE *f, const char *key, double x, const char *end)
{
    if (isfinite(x))
        fprintf(f, "\"%s\": %.9g%s", key, x, end);
    else
        fprintf(f, "\"%s\": null%s", key, end);
}

static void json_run(FILE *f, const struct nbt_settings *s, const struct nbt_outcome *o)
{
    const struct nbt_board *b = o->board;
    fprintf(f, "    {\n      \"name\": \"%s\", \"ok\": %s, \"steps\": %zu,\n      ", o->run->name,
            o->ok ? "true" : "false", b->steps_done);
    json_number(f, "seconds", b->seconds, ", ");
    const struct nbt_phases p = phases(s, b);
    json_number(f, "ms_compute", p.compute, ", ");
    json_number(f, "ms_reduce_scatter", p.rs, ", ");
    json_number(f, "ms_all_gather", p.ag, ",\n      ");
    json_number(f, "training_loss", final_loss(b), ", ");
    json_number(f, "validation_loss", final_valid(b), ",\n      ");
    fprintf(f, "\"weight_checks\": %llu, \"weight_errors\": %llu,\n", (unsigned long long)b->weight_checks,
            (unsigned long long)b->weight_errors);
    if (counted(o)) {
        fprintf(f, "      \"reduce_scatter\": {\"wire_bytes\": %llu, ",
                (unsigned long long)o->traffic.reduce_scatter.wire);
        json_number(f, "ratio", rs_ratio(s, o), "},\n");
        fprintf(f, "      \"all_gather\": {\"wire_bytes\": %llu, ",
                (unsigned long long)o->traffic.all_gather.wire);
        json_number(f, "ratio", ag_ratio(s, o), "},\n");
    }
    fprintf(f, "      \"update\": {\"instants\": %zu", b->fidelity.instants);
    for (int c = 0; c < NBT_FID_CLASSES; c++) {
        fprintf(f, ",\n        \"%s\": {", nbt_fid_class_name(c));
        json_number(f, "one_minus_cos", b->fidelity.off[c], ", ");
        json_number(f, "norm_ratio", b->fidelity.ratio[c], ", ");
        json_number(f, "gradient_nmse", b->fidelity.nmse[c], "}");
    }
    fprintf(f, "}\n    }");
}

static int write_json(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n,
                      const struct verdicts *v, const char *dir)
{
    FILE *f = create(dir, "results", ".json");
    if (!f)
        return -EIO;
    const struct nbt_config *c = &s->lay.cfg;
    fprintf(f,
            "{\n  \"nodes\": %d, \"exchange\": \"%s\", \"gradients\": \"%s\", \"seed\": %llu,\n"
            "  \"model\": {\"layers\": %zu, \"width\": %zu, \"heads\": %zu, \"context\": %zu, "
            "\"batch_per_node\": %zu, "
            "\"parameters\": %zu},\n  \"text\": {\"files\": %zu, \"training_bytes\": %zu, "
            "\"validation_bytes\": %zu},\n"
            "  \"runs\": [\n",
            s->nodes, s->exchange->name, nb_dtype_name(s->grad_type), (unsigned long long)s->seed, c->layers,
            c->width, c->heads, c->context, c->batch, s->lay.params, s->text.files, s->text.train_bytes,
            s->text.valid_bytes);
    for (size_t i = 0; i < n; i++) {
        json_run(f, s, &runs[i]);
        fprintf(f, i + 1 < n ? ",\n" : "\n  ],\n");
    }
    fprintf(f, "  \"verdicts\": [\n");
    for (size_t i = 0; i < v->count; i++)
        fprintf(f, "    {\"ok\": %s, \"text\": \"%s\"}%s\n", v->line[i].ok ? "true" : "false",
                v->line[i].text, i + 1 < v->count ? "," : "");
    fprintf(f, "  ],\n  \"failed\": %d\n}\n", v->failed);
    return fclose(f) == 0 ? 0 : -EIO;
}

/* The picture, when gnuplot is there: its absence is no error. */
static void plot(const struct nbt_outcome *runs, size_t n, const char *dir)
{
    FILE *f = create(dir, "loss", ".gnuplot");
    pid_t pid;
    int status = 1, curves = 0;
    char path[4096];
    if (!f)
        return;
    fprintf(f,
            "set terminal pngcairo size 1100,650\nset output '%s/loss.png'\nset datafile separator ','\n"
            "set xlabel 'step'\nset ylabel 'loss (nats a byte)'\nset grid\nset key top right\nplot ",
            dir);
    for (size_t i = 0; i < n; i++) {
        const size_t wide = 2 * (n - i) - 1; /* the curves lie upon each other: later ones thinner */
        if (runs[i].board->steps_done == 0)
            continue;
        fprintf(f,
                "%s'%s/loss-%s.csv' using 1:3 every ::1 with lines lw %zu lc %zu title '%s, training', "
                "'' using 1:4 every ::1 with linespoints lw %zu pt 7 lc %zu title '%s, validation'",
                curves++ ? ", \\\n     " : "", dir, runs[i].run->name, wide, i + 1, runs[i].run->title, wide,
                i + 1, runs[i].run->title);
    }
    fputc('\n', f);
    if (fclose(f) != 0 || curves == 0)
        return;
    snprintf(path, sizeof path, "%s/loss.gnuplot", dir);
    char *const argv[] = {(char[]){"gnuplot"}, path, NULL};
    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0 || waitpid(pid, &status, 0) != pid ||
        status != 0)
        fprintf(stderr, "nibble-train: no picture of the loss curves (gnuplot is missing or failed)\n");
    else
        printf("%s/loss.png\n", dir);
}

int nbt_report(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n, const char *out,
               int judge_quality)
{
    struct verdicts v = {0};
    int rc = mkdir(out, 0777) != 0 && errno != EEXIST ? -errno : 0;
    if (rc)
        fprintf(stderr, "nibble-train: cannot make %s: %s\n", out, strerror(-rc));
    judge(s, runs, n, &v, judge_quality);
    print_runs(s, runs, n);
    print_fidelity(runs, n);
    putchar('\n');
    for (size_t i = 0; i < v.count; i++)
        printf("%-4s %s\n", v.line[i].ok ? "ok" : "FAIL", v.line[i].text);
    if (!judge_quality)
        printf("     (too short for a verdict on quality)\n");
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = write_curves(s, &runs[i], out);
    if (rc == 0)
        rc = write_json(s, runs, n, &v, out);
    if (rc)
        return rc;
    printf("\n%s/results.json\n", out);
    fflush(stdout);
    plot(runs, n, out);
    return v.failed;
}
