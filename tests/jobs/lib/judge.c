/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a job and compares the plugin's decisions with the truth. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll/comm/node.h"
#include "coll/engine.h"
#include "internal.h"
#include "model.h"
#include "policy/job/job.h"
#include "policy/recognise/recognise.h"
#include "policy/rules/rules.h"
#include "tests/base/hear.h"
#include "tests/net/loopback.h"

/* ---- one operation ------------------------------------------------------------------------------------- */

static const char *const func_name[] = {[NB_FUNC_REDUCE_SCATTER] = "reduce_scatter",
                                        [NB_FUNC_ALL_GATHER] = "all_gather",
                                        [NB_FUNC_ALL_REDUCE] = "all_reduce"};

static void wrong(struct verdict *v, const struct posted *p, const struct nb_observation *o, int node,
                  const char *what)
{
    if (v->first_wrong >= 0)
        return;
    v->first_wrong = p->step;
    snprintf(v->wrong, sizeof(v->wrong), "step %d, node %d, %s of %zu: %s (\"%s\")", p->step, node,
             func_name[p->func], p->n, what, nb_class_reason_text((enum nb_class_reason)o->class_reason));
}

static void judge(struct watcher *w, const struct comm *c, const struct posted *p,
                  const struct nb_observation *o)
{
    struct verdict *v = w->job->verdict;
    const int quantized = o && o->codec != NB_CODEC_RAW, fed = quantized && o->fed && o->tracked >= 0;
    const int64_t buffer = p->what < 0 ? -p->what : p->what;
    const struct nb_facts facts = {.params = w->job->cluster.node[0].ctx.params,
                                   .func = p->func,
                                   .type = p->type,
                                   .redop = ncclSum,
                                   .bytes = p->bytes,
                                   .recorded = true};
    struct told told = {.step = p->step,
                        .node = w->node,
                        .func = p->func,
                        .n = p->n,
                        .what = p->what,
                        .recognised = o && o->class_kind == NB_CLASS_GRADIENT,
                        .quantized = quantized,
                        .fed = fed,
                        .why = o ? o->class_reason : -1,
                        .whose = o ? o->id_reason : -1};

    if (p->func == NB_FUNC_ALL_GATHER)
        return;
    v->sums++;
    if (p->what == EXACT) {
        v->quantized_wrongly += (uint64_t)quantized;
        if (quantized)
            wrong(v, p, o, w->node, "quantized, and is no gradient");
    } else {
        v->gradients++;
    }
    if (fed && (uint64_t)o->tracked < TRACKED_MOST) {
        int64_t *holder = &w->holder[o->tracked];
        if (!o->empty && *holder && *holder != buffer) {
            v->fed_wrongly++;
            told.wrongly_fed = 1;
            wrong(v, p, o, w->node, "fed with another buffer's error");
        }
        *holder = p->what == EXACT ? -1 : buffer;
    }
    if (w->job->listen)
        w->job->listen(w->job->arg, &told);
    if (p->what <= 0 || p->step < c->since + LATE || nb_decide(&facts, NB_STAGE_CALL).codec == NB_CODEC_RAW)
        return;
    v->late_bytes += p->bytes;
    if (quantized)
        v->late_coded += p->bytes;
    else if (!v->uncompressed[0] || p->step == c->since + LATE)
        snprintf(v->uncompressed, sizeof(v->uncompressed), "step %d, %s of %zu: %s", p->step,
                 func_name[p->func], p->n,
                 o ? nb_class_reason_text((enum nb_class_reason)o->class_reason) : "no record");
    if (fed)
        v->late_fed += p->bytes;
}

static struct comm *comm_of(struct job *job, int node, const struct nb_coll_comm *coll)
{
    for (int i = 0; i < COMMS; i++)
        if (job->comm[i].job && job->comm[i].member[node].coll == coll)
            return &job->comm[i];
    return NULL;
}

void judge_observe(void *arg, const struct nb_observation *what)
{
    struct watcher *w = arg;
    struct comm *c = comm_of(w->job, w->node, what->comm);
    struct member *m;

    if (!c) {
        w->job->verdict->confused++;
        return;
    }
    m = &c->member[w->node];
    /* All-reduces without a record are raw and go unreported. */
    while (m->observed < c->posted && c->done[m->observed].func != what->func &&
           c->done[m->observed].func == NB_FUNC_ALL_REDUCE)
        judge(w, c, &c->done[m->observed++], NULL);
    if (m->observed == c->posted || c->done[m->observed].func != what->func) {
        w->job->verdict->confused++;
        return;
    }
    judge(w, c, &c->done[m->observed++], what);
}

void judge_rest(struct comm *c)
{
    for (int r = 0; r < NODES; r++)
        while (c->member[r].observed < c->posted) {
            struct posted *p = &c->done[c->member[r].observed++];
            c->job->verdict->confused += p->func != NB_FUNC_ALL_REDUCE;
            judge(&c->job->watcher[r], c, p, NULL);
        }
}

/* ---- a job --------------------------------------------------------------------------------------------- */

static struct job *logged;

static void hear(ncclDebugLogLevel level, const char *text)
{
    if (!logged || (level != NCCL_LOG_WARN && !logged->loud))
        return;
    if (logged->loud)
        printf("    step %d: %s\n", logged->step, text);
    if (level != NCCL_LOG_WARN || logged->verdict->warning[0])
        return;
    snprintf(logged->verdict->warning, sizeof(logged->verdict->warning), "%.190s", text);
    logged->verdict->confused++;
}

/* A rule includes all communicators. The plugin must distinguish tensor parallelism from gradients, too,
 * where the communicator's name does not show it. Sizes are an eighth of the defaults, as tensors of a job
 * are as much smaller than real ones. */
static void set(struct cluster_node *node, const struct job_settings *settings)
{
    const struct nb_params *usual = nb_params_defaults();
    struct nb_params *p = &node->params;

    if (settings->grad)
        p->grad = settings->grad;
    if (settings->no_warmup)
        p->warmup_steps = 0;
    if (settings->by_signature)
        p->ef_identity = NB_EF_IDENTITY_SIGNATURE;
    p->comms = "nnodes=2-64";
    p->unit_bytes = usual->unit_bytes;
    p->ref_max_mb = settings->ref_max_mb ? settings->ref_max_mb : 4;
    p->rs_min_bytes = usual->rs_min_bytes / 8;
    p->ar_min_bytes = usual->ar_min_bytes / 8;
    p->ag_min_bytes = settings->ag_min ? settings->ag_min : usual->ag_min_bytes / 8;
    p->tuner_min_bytes = usual->tuner_min_bytes / 8;
    for (int b = 0; b < NB_BUDGET_COUNT; b++)
        node->left[b] = nb_budget_left(node->ctx.budgets, (enum nb_budget)b);
}

void job_play(const struct job_entry *entry, uint64_t seed, int loud, struct verdict *verdict)
{
    struct job *job = calloc(1, sizeof(*job));

    if (!job)
        abort();
    memset(verdict, 0, sizeof(*verdict));
    verdict->first_wrong = -1;
    job->verdict = verdict;
    job->loud = loud;
    job->step = -1;
    job->buffers = (truth)(seed % 1000) * 1000;
    job->steps = entry->settings.steps ? entry->settings.steps : 90;
    job->ahead = entry->settings.ahead < 0 ? 0 : entry->settings.ahead ? entry->settings.ahead : 8;
    job->silent = entry->settings.silent;
    job->all_collnet = entry->settings.all_collnet;
    job->listen = entry->settings.listen;
    job->arg = entry->settings.arg;
    logged = job;
    nb_log_set(hear_log);
    values_open();
    memory_open(&job->memory);
    cluster_open(&job->cluster, NODES);
    job->cluster.most_rounds = UINT64_MAX;
    for (int r = 0; r < NODES; r++) {
        struct watcher *w = &job->watcher[r];
        set(&job->cluster.node[r], &entry->settings);
        *w = (struct watcher){.job = job, .node = r, .holder = calloc(TRACKED_MOST, sizeof(*w->holder))};
        if (!w->holder)
            abort();
        nb_observe(&nb_engine_node(job->cluster.node[r].ctx.engine)->observer, judge_observe, w);
    }
    entry->play(job);
    network_drain(job);
    for (int i = 0; i < COMMS; i++)
        if (job->comm[i].job)
            comm_close(&job->comm[i]);
    cluster_close(&job->cluster);
    memory_close(&job->memory);
    while (job->kept) {
        struct kept *next = job->kept->next;
        free(job->kept);
        job->kept = next;
    }
    for (int r = 0; r < NODES; r++)
        free(job->watcher[r].holder);
    nb_log_set(NULL);
    nb_log_label(NULL);
    logged = NULL;
    free(job);
}
