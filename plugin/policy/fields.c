/* SPDX-License-Identifier: Apache-2.0 */
/* See fields.h. */
#include "policy/fields.h"

#include <string.h>

#include "base/nccl_names.h"

static void end(struct nb_field *f)
{
    nb_causal_destroy(f->causal);
    memset(f, 0, sizeof(*f));
}

struct nb_causal *nb_field_get(struct nb_fields *fields, uint64_t comm, uint64_t values, int make)
{
    struct nb_field *victim = fields->field;

    for (struct nb_field *f = fields->field; f < fields->field + NB_FIELDS; f++) {
        if (f->values == values && f->comm == comm && values) {
            f->used = ++fields->now;
            return f->causal;
        }
        if (victim->values && (!f->values || f->used < victim->used))
            victim = f;
    }
    if (!make || !nb_picks_of(values))
        return NULL;
    end(victim);
    victim->causal = nb_causal_create(nb_picks_of(values));
    if (!victim->causal)
        return NULL;
    victim->comm = comm;
    victim->values = values;
    victim->used = ++fields->now;
    return victim->causal;
}

struct nb_causal *nb_field_of_bytes(struct nb_fields *fields, uint64_t comm, ncclDataType_t type,
                                    uint64_t bytes, uint64_t *values, size_t *width)
{
    static const size_t widths[] = {2, 4, 1};
    const size_t known = type == ncclInt8 || type == ncclUint8 ? 0 : nb_nccl_type_size(type);

    for (unsigned i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        if (known && known != widths[i])
            continue;
        struct nb_causal *f = bytes % widths[i] ? NULL : nb_field_get(fields, comm, bytes / widths[i], 0);
        if (f) {
            *values = bytes / widths[i];
            *width = widths[i];
            return f;
        }
    }
    return NULL;
}

void nb_fields_forget(struct nb_fields *fields, uint64_t comm)
{
    for (struct nb_field *f = fields->field; f < fields->field + NB_FIELDS; f++)
        if (f->values && f->comm == comm)
            end(f);
}

void nb_fields_clear(struct nb_fields *fields)
{
    for (struct nb_field *f = fields->field; f < fields->field + NB_FIELDS; f++)
        end(f);
}
