/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fidelity of the optimizer's update: how far the update from the delivered gradients points away from the
 * update that the exact gradients would have given. A run keeps two sets of Adam moments, one fed with each,
 * and compares m / (sqrt(v) + eps). Chance makes the losses of a single pair of runs differ far more than a
 * codec does. This measure has no such noise.
 */
#ifndef NIBBLE_TRAIN_FIDELITY_H
#define NIBBLE_TRAIN_FIDELITY_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"

/* The model's classes. Rows of token embedding and head that belong to bytes absent from most batches are
 * apart from them. Their gradient is zero or nearly so in most steps, and Adam turns its rest into steps of
 * full size, with every codec and without one. */
enum { NBT_RARE_EMBED = NBT_CLASSES, NBT_RARE_HEAD, NBT_FID_CLASSES };
const char *nbt_fid_class_name(int c);

/* Sums over one shard at one instant. */
struct nbt_fidelity_sums {
    struct {
        double dot, coded2, exact2; /* sums over the updates */
        double noise2, signal2;     /* sums over the gradients: delivered minus exact, exact */
    } c[NBT_FID_CLASSES];
};

/* Means over the instants of a run. */
struct nbt_fidelity {
    size_t instants;
    double off[NBT_FID_CLASSES];   /* 1 - cosine */
    double ratio[NBT_FID_CLASSES]; /* norm of the coded update over norm of the exact one */
    double nmse[NBT_FID_CLASSES];  /* NMSE of the reduced gradient at these instants */
};

/* Number of steps in which each byte occurred in the batches of all nodes. */
struct nbt_usage {
    uint32_t steps[NBT_VOCAB];
    uint32_t total;
};
void nbt_usage_step(struct nbt_usage *u, const uint8_t seen[NBT_VOCAB]);
/* Return whether a row is in use: its byte occurred in at least half of the steps. */
int nbt_usage_in_use(const struct nbt_usage *u, size_t token);

/* Compute sums over the values [first, first + n) of the flat buffer. All arrays point at value `first`. */
void nbt_fidelity_measure(const struct nbt_layout *lay, const struct nbt_usage *usage, size_t first, size_t n,
                          const float *coded, const float *exact, const float *gcoded, const float *gexact,
                          struct nbt_fidelity_sums *sums);
/* Add one instant, given as the sums of all shards. */
void nbt_fidelity_add(struct nbt_fidelity *f, const struct nbt_fidelity_sums *shards, int nshards);
void nbt_fidelity_finish(struct nbt_fidelity *f);

#endif
