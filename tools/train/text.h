/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training text: files concatenated in a fixed order, a part held out.
 */
#ifndef NIBBLE_TRAIN_TEXT_H
#define NIBBLE_TRAIN_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct nbt_text {
    uint8_t *train, *valid;
    size_t train_bytes, valid_bytes;
    size_t files;
};

/* Every 16th piece of this many bytes is held out, so that each file contributes to both sides. */
#define NBT_TEXT_PIECE 4096u
#define NBT_TEXT_HOLD_OUT 16u

/* Read files and folders (recursively, in byte order of their paths; symbolic links and files with NUL bytes
 * are passed over), up to `limit` bytes in all. 0 or a negative errno after a line on stderr; -ENODATA when
 * there are less than 64 KiB. Free with nbt_text_free. */
int nbt_text_load(const char *const *paths, size_t npaths, size_t limit, struct nbt_text *out);
void nbt_text_free(struct nbt_text *text);

/* Start of sequence `index` of micro-batch (step, node): the same wherever it is asked. context + 1 bytes are
 * there. */
const uint8_t *nbt_text_sample(const struct nbt_text *text, uint64_t seed, size_t step, int node,
                               size_t index, size_t context);
/* Validation sequences of `context` predictions: their number, and the start of one. */
size_t nbt_text_valid_count(const struct nbt_text *text, size_t context);
const uint8_t *nbt_text_valid(const struct nbt_text *text, size_t index, size_t context);

#endif
