/* SPDX-License-Identifier: Apache-2.0 */
/* Tables. */
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void print_runs(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n)
{
    printf("\n%-26s %8s %10s   %-22s   %-22s %8s\n", "", "loss", "loss", "reduce-scatter", "all-gather",
           "time");
    printf("%-26s %8s %10s %11s %11s  %11s %11s  %8s\n", "run", "training", "validation", "MiB", "ratio",
           "MiB", "ratio", "s");
    for (size_t i = 0; i < n; i++) {
        const struct nbt_outcome *o = &runs[i];
        printf("%-26s %8.4f %10.4f", o->run->title, nbt_final_loss(o->board), nbt_final_valid(o->board));
        if (nbt_counted(o))
            printf(" %11.2f %11.2f  %11.2f %11.2f", (double)o->traffic.reduce_scatter.wire / 1048576,
                   nbt_rs_ratio(s, o), (double)o->traffic.all_gather.wire / 1048576, nbt_ag_ratio(s, o));
        else
            printf(" %11s %11s  %11s %11s", "-", "-", "-", "-");
        printf("  %8.1f%s\n", o->board->seconds, o->ok ? "" : "  FAILED");
    }
    printf("ms a step (mean over nodes; waiting for slower nodes counts as communication)\n");
    for (size_t i = 0; i < n; i++) {
        const struct nbt_phases p = nbt_phases_of(s, runs[i].board);
        printf("%-26s compute %.0f, reduce-scatter %.0f, all-gather %.0f\n", runs[i].run->title, p.compute,
               p.rs, p.ag);
    }
    printf("(bytes: sent by all nodes together, headers included; ratio: against %s gradients and BF16 "
           "weights as\n"
           "they are, of quantized reduce-scatters and of all all-gathers)\n",
           nb_dtype_name(s->grad_type));
}

/* Print when the plugin recognized the gradients, and its treatment until then, in the words of its log. */
static void print_stories(const struct nbt_outcome *runs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (nbt_coded(&runs[i]) && runs[i].story[0])
            printf("\n%s, as node 0 decided:\n%s", runs[i].run->title, runs[i].story);
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

int nbt_report_folder(const char *out)
{
    struct stat st = {0};
    int rc = 0;

    if ((mkdir(out, 0777) != 0 && errno != EEXIST) || stat(out, &st) != 0)
        rc = -errno;
    else if (!S_ISDIR(st.st_mode))
        rc = -ENOTDIR;
    else if (access(out, W_OK | X_OK) != 0)
        rc = -errno;
    if (rc)
        fprintf(stderr, "nibble-train: --out: no results can be written to %s: %s\n", out, strerror(-rc));
    return rc;
}

int nbt_report(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n, const char *out,
               int judge_quality)
{
    struct nbt_verdicts v = {0};
    int rc = nbt_report_folder(out);
    nbt_judge(s, runs, n, &v, judge_quality);
    print_runs(s, runs, n);
    print_stories(runs, n);
    print_fidelity(runs, n);
    putchar('\n');
    for (size_t i = 0; i < v.count; i++)
        printf("%-4s %s\n", v.line[i].ok ? "ok" : "FAIL", v.line[i].text);
    if (!judge_quality)
        printf("     (too short for a verdict on quality)\n");
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = nbt_write_curves(s, &runs[i], out);
    if (rc == 0)
        rc = nbt_write_json(s, runs, n, &v, out);
    if (rc)
        return rc;
    printf("\n%s/results.json\n", out);
    fflush(stdout);
    nbt_plot(runs, n, out);
    return v.failed;
}
