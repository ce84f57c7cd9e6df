/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The result of a set of runs: tables and verdicts on stdout. The output folder gets results.json, loss
 * curves as CSV and, where gnuplot is installed, as a picture.
 */
#ifndef NIBBLE_TRAIN_REPORT_H
#define NIBBLE_TRAIN_REPORT_H

#include "job.h"

/* Make the folder `out` for results unless it is there. Return 0, or a negative errno value after a line that
 * says why no file can be written there. */
int nbt_report_folder(const char *out);

/* Print and write all results. `judge_quality`: the runs are long enough for the bars on fidelity and loss.
 * Return the number of bars that failed, or a negative errno value when the folder cannot be written. */
int nbt_report(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t nruns, const char *out,
               int judge_quality);

/* ---- figures.c ---- */

/* Return the bytes that a direct exchange of values of `size` bytes without coding sends: steps x (nodes - 1)
 * blocks from every node. */
double nbt_plain_bytes(const struct nbt_settings *s, size_t steps, size_t size);
/* Return whether gradients were quantized, whether they had error feedback, whether bytes were counted. */
int nbt_coded(const struct nbt_outcome *o);
/* Return the name of the operations that sum its gradients, in the plural. */
const char *nbt_sums(const struct nbt_outcome *o);
int nbt_fed_back(const struct nbt_outcome *o);
int nbt_counted(const struct nbt_outcome *o);
/* Return how many times fewer bytes were sent: in quantized reduce-scatters, in all all-gathers. */
double nbt_rs_ratio(const struct nbt_settings *s, const struct nbt_outcome *o);
double nbt_ag_ratio(const struct nbt_settings *s, const struct nbt_outcome *o);
/* Return the ratio of a step with quantized gradients, both functions together. The first, uncoded gather
 * counts. */
double nbt_total_ratio(const struct nbt_settings *s, const struct nbt_outcome *o);
/* Return the mean training loss of the last tenth of the steps, and the last validation loss. NaN when no
 * step ran. */
double nbt_final_loss(const struct nbt_board *b);
double nbt_final_valid(const struct nbt_board *b);
struct nbt_phases {
    double compute, rs, ag; /* ms a step, mean over nodes */
};
struct nbt_phases nbt_phases_of(const struct nbt_settings *s, const struct nbt_board *b);

/* ---- judge.c ---- */

struct nbt_verdicts {
    int failed;
    size_t count;
    struct {
        char text[300];
        int ok;
    } line[128];
};
void nbt_judge(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n, struct nbt_verdicts *v,
               int quality);

/* ---- files.c: functions return 0, or a negative errno value after a line on stderr ---- */

int nbt_write_curves(const struct nbt_settings *s, const struct nbt_outcome *o, const char *dir);
int nbt_write_json(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n,
                   const struct nbt_verdicts *v, const char *dir);
/* Draw the picture when gnuplot is installed. Its absence is not an error. */
void nbt_plot(const struct nbt_outcome *runs, size_t n, const char *dir);

#endif
