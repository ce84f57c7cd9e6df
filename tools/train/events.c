/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of events. */
#include "events.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[NBT_EVENT_KINDS] = {"spike", "overflow",   "skip",
                                                   "eval",  "checkpoint", "restart"};

static int parse_one(const char *text, size_t n, struct nbt_event *event)
{
    for (int k = 0; k < NBT_EVENT_KINDS; k++) {
        const size_t len = strlen(names[k]);
        const char *at = text + len;
        char *end;
        if (n <= len || strncmp(text, names[k], len) != 0)
            continue;
        *event = (struct nbt_event){.kind = (enum nbt_event_kind)k};
        if (k == NBT_EVENT_SPIKE) {
            event->factor = strtod(at, &end);
            if (end == at || !(event->factor > 0 && event->factor <= 1e6))
                return -EINVAL;
            at = end;
        }
        if (*at != '@' || at[1] < '0' || at[1] > '9')
            return -EINVAL;
        errno = 0;
        event->step = strtoull(at + 1, &end, 10);
        return errno == 0 && end == text + n ? 0 : -EINVAL;
    }
    return -EINVAL;
}

int nbt_events_parse(const char *list, struct nbt_events *events, FILE *complaints)
{
    while (*list) {
        const size_t n = strcspn(list, ",");
        if (events->count == NBT_EVENTS_MAX) {
            fprintf(complaints, "nibble-train: --event: more than %d events\n", NBT_EVENTS_MAX);
            return -EINVAL;
        }
        if (parse_one(list, n, &events->event[events->count]) != 0) {
            fprintf(
                complaints,
                "nibble-train: --event: \"%.*s\" is none of spike<times>@<step>, overflow@, skip@, eval@, "
                "checkpoint@, restart@<step>\n",
                (int)n, list);
            return -EINVAL;
        }
        events->count++;
        list += n + (list[n] == ',');
    }
    return 0;
}

const struct nbt_event *nbt_event_at(const struct nbt_events *events, enum nbt_event_kind kind, size_t step)
{
    for (size_t i = 0; i < events->count; i++)
        if (events->event[i].kind == kind && events->event[i].step == step)
            return &events->event[i];
    return NULL;
}

int nbt_events_save(const struct nbt_events *events, size_t step)
{
    for (size_t i = 0; i < events->count; i++)
        if (events->event[i].kind == NBT_EVENT_CHECKPOINT && events->event[i].step / 2 == step)
            return 1;
    return 0;
}

void nbt_event_name(const struct nbt_event *event, char *name, size_t cap)
{
    char factor[24] = "";
    if (event->kind == NBT_EVENT_SPIKE)
        snprintf(factor, sizeof factor, "%g", event->factor);
    snprintf(name, cap, "%s%s@%zu", names[event->kind], factor, event->step);
}
