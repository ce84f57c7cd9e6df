/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fields of causal evidence (policy/causal.h) of a process: shards of one size on one communicator. A field
 * begins with the first reduce-scatter of its size; all-gathers of as many values a rank join it.
 *
 * Pure, but for the memory of fields when they begin; the caller serialises.
 */
#ifndef NIBBLE_POLICY_FIELDS_H
#define NIBBLE_POLICY_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "nibble/nccl_types.h"
#include "policy/causal.h"

#define NB_FIELDS 64u

struct nb_field {
    uint64_t comm;
    uint64_t values; /* of a rank's block; 0: free */
    uint64_t used;
    struct nb_causal *causal;
};

struct nb_fields {
    struct nb_field field[NB_FIELDS];
    uint64_t now;
};

/* The field of blocks of `values` values, made when it is new and `make` is not 0: the longest unused makes
 * room. NULL: none, too small to be looked at, or no memory. */
struct nb_causal *nb_field_get(struct nb_fields *fields, uint64_t comm, uint64_t values, int make);
/* The field that a gathered block of `bytes` bytes belongs to, by its size, or NULL: *values values of *width
 * bytes each. Where the type says nothing (bytes), 2, 4 and 1 are tried. */
struct nb_causal *nb_field_of_bytes(struct nb_fields *fields, uint64_t comm, ncclDataType_t type,
                                    uint64_t bytes, uint64_t *values, size_t *width);
/* A communicator was destroyed. */
void nb_fields_forget(struct nb_fields *fields, uint64_t comm);
void nb_fields_clear(struct nb_fields *fields);

#endif
