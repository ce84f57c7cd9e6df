/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fidelity of the optimizer's update: how far the update that training makes of the delivered gradients
 * points away from the update that the exact gradients would have given. Two sets of Adam moments live along
 * one run, one fed with each; compared is m / (sqrt(v) + eps). Losses of a single pair of runs differ by
 * chance far more than a codec changes them; this does not.
 */
#ifndef NIBBLE_TRAIN_FIDELITY_H
#define NIBBLE_TRAIN_FIDELITY_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"

/* The model's classes, and apart from them the rows (of token embedding and head) of bytes that are absent
 * from most batches: their gradient is zero or nearly so in most steps, and Adam turns whatever is there into
 * steps of full size, with every codec and without one. */
enum { NBT_RARE_EMBED = NBT_CLASSES, NBT_RARE_HEAD, NBT_FID_CLASSES };
const char *nbt_fid_class_name(int c);

/* Sums over one shard at one instant. */
struct nbt_fidelity_sums {
    struct {
        double dot, coded2, exact2; /* of the updates */
        double noise2, signal2;     /* of the gradients: delivered minus exact, exact */
    } c[NBT_FID_CLASSES];
};

/* Means over the instants of a run. */
struct nbt_fidelity {
    size_t instants;
    double off[NBT_FID_CLASSES];   /* 1 - cosine */
    double ratio[NBT_FID_CLASSES]; /* norm of the coded update over that of the exact one */
    double nmse[NBT_FID_CLASSES];  /* of the reduced gradient at these instants */
};

/* In how many steps each byte occurred in the batches of all nodes. */
struct nbt_usage {
    uint32_t steps[NBT_VOCAB];
    uint32_t total;
};
void nbt_usage_step(struct nbt_usage *u, const uint8_t seen[NBT_VOCAB]);
/* A row is in use when its byte occurred in at least half of the steps. */
int nbt_usage_in_use(const struct nbt_usage *u, size_t token);

/* Sums over the values [first, first + n) of the flat buffer; all arrays point at value `first`. */
void nbt_fidelity_measure(const struct nbt_layout *lay, const struct nbt_usage *usage, size_t first, size_t n,
                          const float *coded, const float *exact, const float *gcoded, const float *gexact,
                          struct nbt_fidelity_sums *sums);
/* Add one instant, given as the sums of all shards. */
void nbt_fidelity_add(struct nbt_fidelity *f, const struct nbt_fidelity_sums *shards, int nshards);
void nbt_fidelity_finish(struct nbt_fidelity *f);

#endif
