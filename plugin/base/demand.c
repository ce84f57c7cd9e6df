/* SPDX-License-Identifier: Apache-2.0 */
/* NIBBLE_REQUIRE. See demand.h. */
#include "base/demand.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/log.h"
#include "base/params.h"

static const char *const words[NB_DEMAND_COUNT] = {
    [NB_DEMAND_SETTINGS] = "settings", [NB_DEMAND_COLLNET] = "collnet", [NB_DEMAND_ALL_REDUCE] = "all-reduce",
    [NB_DEMAND_TUNER] = "tuner",       [NB_DEMAND_WINDOW] = "window",
};

/* Return the demand that a word of `len` characters names, or -1. */
static int demand_of(const char *word, size_t len)
{
    for (int i = 0; i < NB_DEMAND_COUNT; i++)
        if (strlen(words[i]) == len && memcmp(words[i], word, len) == 0)
            return i;
    return -1;
}

int nb_demand_check(const char *text, char *error, size_t cap)
{
    if (strcmp(text, "none") == 0)
        return 0;
    for (const char *at = text;; at++) {
        const size_t n = strcspn(at, ",");
        if (demand_of(at, n) < 0) {
            snprintf(error, cap,
                     "NIBBLE_REQUIRE: \"%.*s\" must be settings, collnet, all-reduce, tuner or window, or "
                     "the whole list none, in %s",
                     n < 40 ? (int)n : 40, at, text);
            return -EINVAL;
        }
        at += n;
        if (!*at)
            return 0;
    }
}

bool nb_demands(const struct nb_params *params, enum nb_demand what)
{
    for (const char *at = params->require;; at++) {
        const size_t n = strcspn(at, ",");
        if (demand_of(at, n) == (int)what)
            return true;
        at += n;
        if (!*at)
            return false;
    }
}

void nb_demand_fails(struct nb_context *ctx, enum nb_demand what, const char *why)
{
    if (!nb_demands(ctx->params, what) || atomic_exchange(&ctx->unmet, true))
        return;
    NB_ALERT(
        "the job stops, since NIBBLE_REQUIRE has %s: %s (NIBBLE_REQUIRE=none goes on without compression)",
        words[what], why);
}

bool nb_demand_unmet(const struct nb_context *ctx)
{
    return atomic_load_explicit(&ctx->unmet, memory_order_relaxed);
}
