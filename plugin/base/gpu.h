/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPU the calling thread works for. */
#ifndef NIBBLE_BASE_GPU_H
#define NIBBLE_BASE_GPU_H

struct nb_context;

/* Return the ordinal of the calling thread's current GPU, -1 without CUDA. Ask ctx->current_gpu where it is
 * set, else CUDA. Any thread, but not from CUDA host callbacks. */
int nb_current_gpu(struct nb_context *ctx);

#endif
