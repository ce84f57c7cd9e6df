/* SPDX-License-Identifier: Apache-2.0 */
/* See replay.h. */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

#define HOLDERS 65536u
#define PROFILED 8192u /* smallest number of elements with a profile: 256 groups of 32 */

/* Return an order in which the operations of one communicator keep their order, and each waits for at most
 * `ahead` operations of other communicators. */
static size_t *shuffled(const struct trace *trace, const struct replay *how)
{
    size_t *order = malloc(trace->n * sizeof(*order)), n = 0;
    unsigned char *done = calloc(trace->n, 1);
    uint64_t seed = how->seed;

    if (!order || !done)
        abort();
    for (size_t first = 0; first < trace->n;) {
        size_t at = first;
        for (unsigned hops = (unsigned)(rnd(&seed) % (how->ahead + 1)); hops; hops--) {
            size_t next = at + 1; /* a later one of another communicator, then that communicator's earliest */
            while (next < trace->n && next <= first + how->ahead &&
                   (done[next] || trace->event[next].call.comm == trace->event[at].call.comm ||
                    trace->event[next].call.comm == trace->event[first].call.comm))
                next++;
            if (next >= trace->n || next > first + how->ahead)
                break;
            for (size_t j = first; j < next; j++)
                if (!done[j] && trace->event[j].call.comm == trace->event[next].call.comm)
                    next = j;
            at = next;
        }
        order[n++] = at;
        done[at] = 1;
        while (first < trace->n && done[first])
            first++;
    }
    free(done);
    return order;
}

struct outcome replay(const struct trace *trace, const struct replay *how)
{
    struct nb_identity *id = nb_identity_create(&how->config);
    size_t *order = how->beside ? shuffled(trace, how) : NULL;
    uint64_t *number = calloc(trace->n, sizeof(*number));
    int64_t *holder = malloc(HOLDERS * sizeof(*holder)); /* the buffer whose error each slot holds */
    uint32_t *asked = calloc(trace->steps, sizeof(*asked)), *fed = calloc(trace->steps, sizeof(*fed));
    struct outcome o = {.first = -1};
    size_t announced = 0;

    if (!id || !number || !holder || !asked || !fed)
        abort();
    memset(holder, 0xff, HOLDERS * sizeof(*holder));
    for (size_t k = 0; k < trace->n; k++) {
        const size_t i = order ? order[k] : k;
        const struct event *e = &trace->event[i];
        struct nb_identity_decision d;
        float value[NB_PROFILE_GROUPS];
        struct nb_profile profile = {value, how->known, e->call.count};
        int late;

        while (announced < trace->n && announced <= (i > k ? i : k) + how->ahead) {
            number[announced] = nb_identity_call(id, &trace->event[announced].call);
            announced++;
        }
        if (!e->call.passes)
            continue;
        if (e->call.func == NB_FUNC_ALL_GATHER) {
            nb_identity_gather(id, number[i], e->unit, e->changed, NULL, 0);
            continue;
        }
        if (e->content == C_GRADIENT || e->content == C_SQUARES)
            model_gradient(e, how->seed + i, value);
        else
            model_profile(255, e->step, how->seed + i, value);
        for (unsigned g = 0; e->content == C_SQUARES && g < NB_PROFILE_GROUPS; g++)
            value[g] *= 2.0f; /* logarithms */
        d = nb_identity_reduce(id, number[i], how->known && e->call.count >= PROFILED ? &profile : NULL, 0);
        o.decided[d.reason]++;
        if (how->tamper)
            how->tamper(&d, e, how->tamper_arg);
        late = e->step >= WARMUP;
        if (e->content != C_GRADIENT) {
            o.others += (uint64_t)(late && d.tracked >= 0);
            if (d.tracked >= 0)
                holder[d.tracked] = -2; /* the error of no gradient */
            continue;
        }
        if (e->zeros != 0xff) { /* feedback leaves zeros unchanged */
            o.gradients += (uint64_t)late;
            asked[e->step]++;
        }
        if (d.tracked < 0)
            continue;
        if (e->zeros != 0xff) {
            fed[e->step]++;
            o.fed += (uint64_t)late;
        }
        if (!d.empty && holder[d.tracked] != (int64_t)e->truth) {
            o.misapplied += (uint64_t)late;
            o.early += (uint64_t)!late;
        }
        holder[d.tracked] = e->truth;
    }
    o.first = trace_first_fed(asked, fed, trace->steps);
    nb_identity_destroy(id);
    free(order);
    free(number);
    free(holder);
    free(asked);
    free(fed);
    return o;
}
