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

/* Read files and folders, up to `limit` bytes in all. Folders are read recursively, in byte order of their
 * paths, without symbolic links and files with NUL bytes. Return 0, or a negative errno value after a line on
 * stderr, -ENODATA for less than 64 KiB. Free the text with nbt_text_free. */
int nbt_text_load(const char *const *paths, size_t npaths, size_t limit, struct nbt_text *out);
void nbt_text_free(struct nbt_text *text);

/* Return the start of sequence `index` of micro-batch (step, node), the same on every node. context + 1 bytes
 * follow it. */
const uint8_t *nbt_text_sample(const struct nbt_text *text, uint64_t seed, size_t step, int node,
                               size_t index, size_t context);
/* Return the number of validation sequences of `context` predictions, and the start of one. */
size_t nbt_text_valid_count(const struct nbt_text *text, size_t context);
const uint8_t *nbt_text_valid(const struct nbt_text *text, size_t index, size_t context);

#endif
