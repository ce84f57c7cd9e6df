/* SPDX-License-Identifier: Apache-2.0 */
/* Write results.json, and loss curves as CSV and as a picture. */
#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "report.h"
#include "tools/output.h"

extern char **environ;

static char path[4096]; /* of the file that is being written */

static FILE *create(const char *dir, const char *name, const char *suffix)
{
    snprintf(path, sizeof path, "%s/%s%s", dir, name, suffix);
    FILE *f = fopen(path, "w");
    if (!f)
        fprintf(stderr, "nibble-train: cannot write %s: %s\n", path, strerror(errno));
    return f;
}

int nbt_write_curves(const struct nbt_settings *s, const struct nbt_outcome *o, const char *dir)
{
    char name[64];
    snprintf(name, sizeof name, "loss-%s", o->run->name);
    FILE *f = create(dir, name, ".csv");
    if (!f)
        return -EIO;
    fprintf(f, "step,learning_rate,loss,validation_loss,gradient_norm,exact_norm,weight_change,skipped");
    fputc('\n', f);
    for (size_t i = 0; i < o->board->steps_done && i < s->steps; i++) {
        const struct nbt_step *t = &o->board->step[i];
        fprintf(f, "%zu,%.6g,%.6f,", i + 1, (double)t->rate, t->loss);
        if (!isnan(t->valid))
            fprintf(f, "%.6f", t->valid);
        fprintf(f, ",%.6f,%.6f,%.6g,%d", t->norm, t->norm_exact, t->change, t->skipped);
        fputc('\n', f);
    }
    return output_close(f, path, 0, "") ? 0 : -EIO;
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
    const struct nbt_phases p = nbt_phases_of(s, b);
    json_number(f, "ms_compute", p.compute, ", ");
    json_number(f, "ms_reduce_scatter", p.rs, ", ");
    json_number(f, "ms_all_gather", p.ag, ",\n      ");
    json_number(f, "training_loss", nbt_final_loss(b), ", ");
    json_number(f, "validation_loss", nbt_final_valid(b), ",\n      ");
    json_number(f, "weight_error", nbt_board_weight_error(s, b), ", ");
    fprintf(f, "\"weight_checks\": %llu, \"weight_errors\": %llu,\n", (unsigned long long)b->weight_checks,
            (unsigned long long)b->weight_errors);
    if (nbt_counted(o)) {
        fprintf(f, "      \"reduce_scatter\": {\"wire_bytes\": %llu, ",
                (unsigned long long)o->traffic.reduce_scatter.wire);
        json_number(f, "ratio", nbt_rs_ratio(s, o), "},\n");
        fprintf(f, "      \"all_gather\": {\"wire_bytes\": %llu, ",
                (unsigned long long)o->traffic.all_gather.wire);
        json_number(f, "ratio", nbt_ag_ratio(s, o), "},\n      ");
        json_number(f, "total_ratio", nbt_total_ratio(s, o), ", ");
        fprintf(f, "\"operations\": %llu, \"quantized\": %llu, \"with_feedback\": %llu,\n",
                (unsigned long long)o->traffic.reduce_scatter.ops,
                (unsigned long long)o->traffic.quantized_ops, (unsigned long long)o->traffic.feedback_ops);
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

int nbt_write_json(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n,
                   const struct nbt_verdicts *v, const char *dir)
{
    FILE *f = create(dir, "results", ".json");
    if (!f)
        return -EIO;
    const struct nbt_config *c = &s->lay.cfg;
    fprintf(f,
            "{\n  \"nodes\": %d, \"exchange\": \"%s\", \"gradients\": \"%s\", \"seed\": %llu,\n"
            "  \"model\": {\"layers\": %zu, \"width\": %zu, \"heads\": %zu, \"context\": %zu, "
            "\"batch_per_node\": %zu, \"parameters\": %zu},\n  \"text\": {\"files\": %zu, "
            "\"training_bytes\": %zu, \"validation_bytes\": %zu},\n"
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
    return output_close(f, path, 0, "") ? 0 : -EIO;
}

/* Write gnuplot's lines. On the left are the training losses: the first run's wide and light, so that it
 * shows behind the others, which have dashes of their own. On the right are validation losses, of several
 * runs their differences from the first, on an axis of 0.4 % at least, since seeds differ by more. */
static void plot_lines(FILE *f, const struct nbt_outcome *const *runs, size_t n, const char *dir)
{
    static const char *const colors[] = {"#c9d1d9", "#e8a33d", "#0b7285", "#862e9c", "#2b8a3e"};
    const size_t n_colors = sizeof colors / sizeof *colors;

    fprintf(f,
            "set terminal pngcairo size 1200,500\nset output '%s/loss.png'\nset datafile separator ','\n"
            "set xlabel 'step'\nset grid ytics\nset key top right\nset multiplot layout 1,2\n"
            "set title 'training loss'\nset ylabel 'loss, nats a byte'\nplot ",
            dir);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%s'%s/loss-%s.csv' using 1:3 every ::1 with lines lw %s dt %zu lc rgb '%s' title '%s'",
                i ? ", " : "", dir, runs[i]->run->name, i ? "1.3" : "6", i ? i : 1, colors[i % n_colors],
                runs[i]->run->title);
    if (n == 1) {
        fprintf(f,
                "\nset title 'validation loss'\n"
                "plot '%s/loss-%s.csv' using 1:4 every ::1 with linespoints pt 7 lc rgb '#0b7285' notitle",
                dir, runs[0]->run->name);
        return;
    }
    fprintf(f,
            "\nset title 'validation loss beside that of %s'\nset ylabel 'difference, %%'\n"
            "set yrange [*<-0.2:0.2<*]\nset format y '%%+.2f'\nset key top left Left reverse\nplot 0 lc rgb "
            "'#868e96' notitle",
            runs[0]->run->title);
    for (size_t i = 1; i < n; i++) /* each row of the pasted file has 8 columns of the first run */
        fprintf(f,
                ", \"< paste -d, '%s/loss-%s.csv' '%s/loss-%s.csv'\" using 1:(100*($12-$4)/$4) every ::1 "
                "with linespoints pt 6 ps %.1f lc rgb '%s' title '%s'",
                dir, runs[0]->run->name, dir, runs[i]->run->name, 0.7 + 0.5 * (double)(n - 1 - i),
                colors[i % n_colors], runs[i]->run->title);
}

void nbt_plot(const struct nbt_outcome *runs, size_t n, const char *dir)
{
    FILE *f = create(dir, "loss", ".gnuplot");
    pid_t pid;
    int status = 1;
    const struct nbt_outcome *begun[NBT_RUNS_MAX];
    size_t curves = 0;
    if (!f)
        return;
    for (size_t i = 0; i < n; i++)
        if (runs[i].board->steps_done > 0)
            begun[curves++] = &runs[i];
    if (curves > 0)
        plot_lines(f, begun, curves, dir);
    fputc('\n', f);
    if (!output_close(f, path, 0, "") || curves == 0)
        return;
    char *const argv[] = {(char[]){"gnuplot"}, path, NULL};
    if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0 || waitpid(pid, &status, 0) != pid ||
        status != 0)
        fprintf(stderr, "nibble-train: no picture of the loss curves (gnuplot is missing or failed)\n");
    else
        printf("%s/loss.png\n", dir);
}
