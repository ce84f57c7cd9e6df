/* SPDX-License-Identifier: Apache-2.0 */
/* The progress line. */
#include "progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/harness/lib/harness.h"

#define PLAIN_EVERY_S 10.0
#define BAR_EVERY_S 0.2
#define BAR_WIDTH 30

void nbt_progress_run(struct nbt_progress *p, size_t run, const char *title)
{
    p->run = run;
    p->title = title;
    p->begin = p->drawn = hx_now();
}

void nbt_progress_step(struct nbt_progress *p, size_t done, double loss, double valid)
{
    const double now = hx_now(), every = p->terminal ? BAR_EVERY_S : PLAIN_EVERY_S;
    if (p->quiet || (now - p->drawn < every && done < p->steps))
        return;
    p->drawn = now;
    const double left = (double)(p->steps - done) + (double)(p->runs - p->run - 1) * (double)p->steps;
    const int eta = (int)((now - p->begin) / (double)done * left + 0.5);
    char bar[BAR_WIDTH + 1] = "", val[32] = "";
    if (!isnan(valid))
        snprintf(val, sizeof val, "  validation %.3f", valid);
    if (p->terminal) {
        const size_t full = done * BAR_WIDTH / p->steps;
        for (size_t i = 0; i < BAR_WIDTH; i++)
            bar[i] = i < full ? '#' : '.';
        fprintf(stderr, "\r[%zu/%zu] %-26s %s %4zu/%zu  loss %.3f%s  %d:%02d left \033[K%s", p->run + 1,
                p->runs, p->title, bar, done, p->steps, loss, val, eta / 60, eta % 60,
                done == p->steps ? "\n" : "");
    } else {
        fprintf(stderr, "[%zu/%zu] %s: step %zu of %zu, loss %.3f%s, %d:%02d left\n", p->run + 1, p->runs,
                p->title, done, p->steps, loss, val, eta / 60, eta % 60);
    }
}
