/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of a run that tables, verdicts and files share. */
#include <math.h>

#include "report.h"

double nbt_plain_bytes(const struct nbt_settings *s, size_t steps, size_t size)
{
    return (double)steps * (double)(s->nodes - 1) * (double)s->nodes * (double)s->block * (double)size;
}

/* Return the ratio over quantized operations. A plugin first watches an operation and sends it raw for some
 * steps, and the number of later steps is this program's choice. The function takes raw operations at their
 * plain size, so that headers count. */
double nbt_rs_ratio(const struct nbt_settings *s, const struct nbt_outcome *o)
{
    /* One node's share. In an all-reduce it sends as many bytes of results. */
    const double op = nbt_plain_bytes(s, 1, nb_dtype_size(s->grad_type)) / (double)s->nodes *
                      (o->run->method.all_reduce ? 2 : 1);
    const double quantized = (double)o->traffic.quantized_ops;
    const double raw = (double)o->traffic.reduce_scatter.ops - quantized;
    if (nbt_coded(o) && quantized > 0)
        return op * quantized / ((double)o->traffic.reduce_scatter.wire - op * raw);
    return op * (double)o->traffic.reduce_scatter.ops / (double)o->traffic.reduce_scatter.wire;
}

double nbt_ag_ratio(const struct nbt_settings *s, const struct nbt_outcome *o)
{
    return nbt_plain_bytes(s, s->steps, sizeof(uint16_t)) / (double)o->traffic.all_gather.wire;
}

double nbt_total_ratio(const struct nbt_settings *s, const struct nbt_outcome *o)
{
    const double gradients = (double)nb_dtype_size(s->grad_type), weights = sizeof(uint16_t);
    return (gradients + weights) / (gradients / nbt_rs_ratio(s, o) + weights / nbt_ag_ratio(s, o));
}

const char *nbt_sums(const struct nbt_outcome *o)
{
    return o->run->method.all_reduce ? "all-reduces" : "reduce-scatters";
}

int nbt_coded(const struct nbt_outcome *o)
{
    return o->run->method.gradients != NBT_GRADIENTS_RAW;
}

int nbt_fed_back(const struct nbt_outcome *o)
{
    return o->run->method.gradients == NBT_GRADIENTS_INT4 && o->run->method.feedback != NB_EF_OFF;
}

int nbt_counted(const struct nbt_outcome *o)
{
    return o->traffic.known && o->traffic.reduce_scatter.wire > 0 && o->traffic.all_gather.wire > 0;
}

/* Return the mean training loss of the last tenth of the steps: a single batch is too noisy to print. */
double nbt_final_loss(const struct nbt_board *b)
{
    const size_t n = b->steps_done / 10 + (b->steps_done > 0);
    double sum = 0;
    for (size_t i = b->steps_done - n; i < b->steps_done; i++)
        sum += b->step[i].loss;
    return n ? sum / (double)n : NAN;
}

double nbt_final_valid(const struct nbt_board *b)
{
    return b->steps_done ? b->step[b->steps_done - 1].valid : NAN;
}

struct nbt_phases nbt_phases_of(const struct nbt_settings *s, const struct nbt_board *b)
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
