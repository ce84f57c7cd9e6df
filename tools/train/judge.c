/* SPDX-License-Identifier: Apache-2.0 */
/* The bars, and the verdict which of them a set of runs holds. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "report.h"

/* The bars. Bytes: 4 bits with one 8-bit scale and one transform bit a group of 32 are 4.29 bits a value.
 * Headers and tails add to that. Weights as exact differences take 2 to 5 bits at usual learning rates.
 * Fidelity: see docs/training.md. */
#define RS_RATIO_16 3.6 /* BF16, FP16 */
#define RS_RATIO_F32 7.2
#define FINER_RATIO 0.67 /* of these, where up to half of the values travel with 8.26 bits */
#define AG_RATIO 3.0
#define AG_RATIO_DELTA4 3.6
#define WEIGHT_ERROR 0.3    /* RMS of delta4's error over RMS of BF16's own rounding */
#define TOTAL_RATIO 3.3     /* 16-bit gradients and weights */
#define QUANTIZED_SHARE 0.7 /* share of the operations: the plugin first watches some fifty of them */
#define FEEDBACK_SHARE 0.75 /* share of these: feedback begins when the plugin is certain whose error it is */
#define FEEDBACK_OFF 0.0015 /* 1 - cos with feedback, every class */
#define FEEDBACK_GAIN 2.5   /* factor over the run without feedback, matrices */
#define EXACT_OFF 1e-5      /* 1 - cos of the uncompressed run, from BF16 rounding of the sums alone */
#define LOSS_WITHIN 0.03    /* validation loss against the uncompressed run: beyond it the run is broken */
#define LOSS_FALLS 1.0      /* nats that the training loss must fall by to show that the model learned */

static const struct nbt_outcome *find(const struct nbt_outcome *runs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (runs[i].ok && strcmp(runs[i].run->name, name) == 0)
            return &runs[i];
    return NULL;
}

static __attribute__((format(printf, 3, 4))) void nbt_verdict(struct nbt_verdicts *v, int ok, const char *fmt,
                                                              ...)
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

static void judge_run(const struct nbt_settings *s, const struct nbt_outcome *o, struct nbt_verdicts *v,
                      int quality)
{
    const struct nbt_board *b = o->board;
    const double start = b->steps_done ? b->step[0].loss : NAN;
    size_t taken = 0;
    for (size_t i = 0; i < b->steps_done; i++)
        taken += !b->step[i].skipped;
    if (o->ok && b->steps_done == s->steps)
        nbt_verdict(v, 1, "%s: all %zu steps ran", o->run->title, s->steps);
    else
        nbt_verdict(v, 0, "%s: %zu of %zu steps ran: %s", o->run->title, b->steps_done, s->steps, o->reason);
    if (b->weight_errors == 0 && b->weight_checks >= taken && taken > 0)
        nbt_verdict(v, 1, "%s: weights equal on all %s, after every step", o->run->title,
                    nbt_weights_lossy(o->run->method.weights) ? "receivers"
                                                              : "nodes and to what their owners sent");
    else
        nbt_verdict(v, 0, "%s: weights differ between nodes or from what their owners sent (%llu times)",
                    o->run->title, (unsigned long long)b->weight_errors);
    if (quality)
        nbt_verdict(v, start - nbt_final_loss(b) >= LOSS_FALLS,
                    "%s: training loss fell from %.3f to %.3f (at least %.1f)", o->run->title, start,
                    nbt_final_loss(b), LOSS_FALLS);
    if (!nbt_coded(o)) {
        int worst = 0;
        for (int c = 1; c < NBT_CLASSES; c++)
            worst = b->fidelity.off[c] > b->fidelity.off[worst] ? c : worst;
        nbt_verdict(v, b->fidelity.off[worst] <= EXACT_OFF,
                    "%s: update as from exact gradients, 1 - cos %.1e (at most %.0e), norm ratio %.4f",
                    o->run->title, b->fidelity.off[worst], EXACT_OFF, b->fidelity.ratio[worst]);
        return;
    }
    if (nbt_counted(o) && (quality || o->traffic.quantized_ops > 0)) {
        const double ops = (double)o->traffic.reduce_scatter.ops, coded = (double)o->traffic.quantized_ops;
        const double share = coded / ops, fed = coded > 0 ? (double)o->traffic.feedback_ops / coded : 0;
        const double bar =
            (s->grad_type == NB_F32 ? RS_RATIO_F32 : RS_RATIO_16) * (o->run->method.finer ? FINER_RATIO : 1);
        if (quality)
            nbt_verdict(v, share >= QUANTIZED_SHARE, "%s: %.0f %% of the %s quantized (at least %.0f %%)",
                        o->run->title, 100 * share, nbt_sums(o), 100 * QUANTIZED_SHARE);
        if (nbt_fed_back(o) && quality)
            nbt_verdict(v, fed >= FEEDBACK_SHARE, "%s: %.0f %% of these with feedback (at least %.0f %%)",
                        o->run->title, 100 * fed, 100 * FEEDBACK_SHARE);
        if (!nbt_fed_back(o))
            nbt_verdict(v, fed == 0, "%s: none of the %s with feedback", o->run->title, nbt_sums(o));
        nbt_verdict(v, nbt_rs_ratio(s, o) >= bar, "%s: quantized %s send %.2fx fewer bytes (at least %.1f)",
                    o->run->title, nbt_sums(o), nbt_rs_ratio(s, o), bar);
    }
    const int delta4 = o->run->method.weights == NBT_WEIGHTS_DELTA4;
    const double ag_bar = delta4 ? AG_RATIO_DELTA4 : AG_RATIO;
    if (delta4 && b->steps_done > 0)
        nbt_verdict(v, nbt_board_weight_error(s, b) <= WEIGHT_ERROR,
                    "%s: gathered weights off by %.3f of what rounding to BF16 changes (at most %.1f)",
                    o->run->title, nbt_board_weight_error(s, b), WEIGHT_ERROR);
    if (nbt_counted(o) && quality)
        nbt_verdict(v, nbt_ag_ratio(s, o) >= ag_bar, "%s: all-gather sends %.2fx fewer bytes (at least %.1f)",
                    o->run->title, nbt_ag_ratio(s, o), ag_bar);
    if (nbt_counted(o) && quality && s->grad_type != NB_F32 && !o->run->method.finer)
        nbt_verdict(v, nbt_total_ratio(s, o) >= TOTAL_RATIO,
                    "%s: all traffic after the first, raw steps %.2fx fewer bytes (at least %.1f)",
                    o->run->title, nbt_total_ratio(s, o), TOTAL_RATIO);
    if (!nbt_counted(o) && s->exchange != &nbt_exchange_shm)
        nbt_verdict(v, 0, "%s: the plugin did not say how many bytes it sent", o->run->title);
}

void nbt_judge(const struct nbt_settings *s, const struct nbt_outcome *runs, size_t n, struct nbt_verdicts *v,
               int quality)
{
    const struct nbt_outcome *raw = find(runs, n, "raw"), *off = find(runs, n, "nofeedback"),
                             *on = find(runs, n, "feedback");
    for (size_t i = 0; i < n; i++)
        judge_run(s, &runs[i], v, quality);
    if (!quality)
        return;
    for (size_t i = 0; i < n; i++) {
        const struct nbt_fidelity *f = &runs[i].board->fidelity;
        const double most = runs[i].run->judged * FEEDBACK_OFF;
        for (int c = 0; c < NBT_CLASSES && runs[i].ok && most > 0; c++)
            nbt_verdict(v, f->off[c] <= most, "%s, %s: 1 - cos %.5f (at most %.4g), norm ratio %.4f",
                        runs[i].run->title, nbt_fid_class_name(c), f->off[c], most, f->ratio[c]);
    }
    if (on && off) {
        const double gain = off->board->fidelity.off[NBT_MATRIX] / on->board->fidelity.off[NBT_MATRIX];
        nbt_verdict(v, gain >= FEEDBACK_GAIN,
                    "feedback: matrices %.1fx closer than without (at least %.1f), norm ratio %.4f and %.4f",
                    gain, FEEDBACK_GAIN, on->board->fidelity.ratio[NBT_MATRIX],
                    off->board->fidelity.ratio[NBT_MATRIX]);
    }
    for (size_t i = 0; raw && i < n; i++) {
        const double gap = nbt_final_valid(runs[i].board) / nbt_final_valid(raw->board) - 1;
        if (&runs[i] != raw && runs[i].ok)
            nbt_verdict(v, fabs(gap) <= LOSS_WITHIN,
                        "%s: validation loss %+.2f %% of uncompressed (within %.0f %%)", runs[i].run->title,
                        100 * gap, 100 * LOSS_WITHIN);
    }
}
