/* SPDX-License-Identifier: Apache-2.0 */
/* Leave parts of a plan out. See shrink.h. */
#include "tests/sim/shrink.h"

#include <stdio.h>
#include <string.h>

#include "tests/sim/compare.h"

#define TRIES 400

struct shrink {
    struct sim_plan *plan;
    char kind[24]; /* beginning of the violation, without numbers of nodes */
    int tries;
    bool compares; /* only the run without lateness shows the failure */
};

/* Copy the kind of a violation. Two failures of one kind count as the same. */
static void kind_of(const char *violation, char kind[24])
{
    const char *at = strncmp(violation, "node ", 5) == 0 ? strchr(violation, ':') : violation;
    size_t n = 0;

    for (at = at ? at : violation; *at && n < 23; at++)
        if (*at < '0' || *at > '9')
            kind[n++] = *at;
    kind[n] = 0;
}

static bool still_fails(struct shrink *h)
{
    struct sim_outcome out;
    char kind[24];

    if (h->tries++ > TRIES)
        return false;
    sim_run(h->plan, false, false, &out);
    if (!out.failed && out.comparable && h->compares)
        sim_compare(h->plan, &out);
    if (!out.failed)
        return false;
    kind_of(out.violation, kind);
    return strcmp(kind, h->kind) == 0;
}

static void faults(struct shrink *h)
{
    for (int i = 0; i < h->plan->nfaults; i++) {
        if (h->plan->fault[i].skip)
            continue;
        h->plan->fault[i].skip = true;
        if (!still_fails(h))
            h->plan->fault[i].skip = false;
    }
}

/* Leave out operations, by halves, quarters and so on. */
static void operations(struct shrink *h, struct sim_comm *c)
{
    for (int size = c->nops; size > 0; size /= 2) {
        for (int from = 0; from < c->nops; from += size) {
            bool before[512];
            bool any = false;
            for (int i = from; i < from + size && i < c->nops; i++) {
                before[i] = c->op[i].skip;
                any |= !c->op[i].skip;
                c->op[i].skip = true;
            }
            if (!any || still_fails(h))
                continue;
            for (int i = from; i < from + size && i < c->nops; i++)
                c->op[i].skip = before[i];
        }
    }
}

/* Smaller ones. */
static void sizes(struct shrink *h, struct sim_comm *c)
{
    for (int i = 0; i < c->nops; i++) {
        while (!c->op[i].skip && c->op[i].count > 1) {
            const size_t before = c->op[i].count;
            c->op[i].count /= 2;
            if (!still_fails(h)) {
                c->op[i].count = before;
                break;
            }
        }
    }
}

/* Remove differences between nodes. */
static void differences(struct shrink *h)
{
    struct sim_plan *p = h->plan;
#define WITHOUT(field, plain) \
    do { \
        __typeof__(field) before_ = (field); \
        (field) = (plain); \
        if (memcmp(&before_, &(field), sizeof(before_)) && !still_fails(h)) \
            (field) = before_; \
    } while (0)
    WITHOUT(p->late_device, false);
    WITHOUT(p->gpu_ns, 0);
    WITHOUT(p->step_ns, 0);
    WITHOUT(p->eager, true);
    WITHOUT(p->window, 32);
    for (int i = 0; i < p->nnodes; i++) {
        WITHOUT(p->nic[i].jitter, 0);
        WITHOUT(p->start[i], 0);
        WITHOUT(p->clock[i], SIM_S);
        WITHOUT(p->vague[i], 0);
        if (!p->differs[0] && !p->differs[i])
            WITHOUT(p->params[i], p->params[0]);
    }
#undef WITHOUT
}

void sim_shrink(uint64_t seed, const struct sim_options *options, const char *violation)
{
    struct shrink h = {.plan = sim_plan_draw(seed, options)};
    struct sim_outcome out;

    kind_of(violation, h.kind);
    h.compares = strstr(violation, "same run without lateness") != NULL;
    if (!still_fails(&h)) {
        printf("it does not happen again\n");
        sim_plan_free(h.plan);
        return;
    }
    faults(&h);
    for (int c = 0; c < h.plan->ncomms; c++)
        operations(&h, &h.plan->comm[c]);
    differences(&h);
    faults(&h);
    for (int c = 0; c < h.plan->ncomms; c++)
        sizes(&h, &h.plan->comm[c]);
    printf("reduced, in %d runs, to:\n", h.tries);
    sim_plan_print(h.plan);
    sim_run(h.plan, false, true, &out);
    if (!out.failed && h.compares)
        sim_compare(h.plan, &out);
    printf("FAILED: %s\n", out.violation);
    sim_plan_free(h.plan);
}
