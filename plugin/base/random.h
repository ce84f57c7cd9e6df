/* SPDX-License-Identifier: Apache-2.0 */
/* Unguessable bytes. */
#ifndef NIBBLE_BASE_RANDOM_H
#define NIBBLE_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#define NB_TOKEN_BYTES 16

/* Fill `buf` from the kernel's generator. Return 0 or a negative errno. Any thread. */
int nb_random(void *buf, size_t bytes);

/* Make a token that strangers cannot guess and that differs from run to run. It travels in NCCL's handles,
 * and the accepting side drops a connection that does not show it. Return 0 or a negative errno. */
static inline int nb_random_token(uint8_t token[NB_TOKEN_BYTES])
{
    return nb_random(token, NB_TOKEN_BYTES);
}

#endif
