/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that computes nothing and takes as long as the codecs would, on the engine's thread. Memory of
 * messages has room for headers only, unless the settings say `whole`. Memory of values and state is only an
 * address.
 */
#ifndef NIBBLE_TESTS_SCALE_DEVICE_H
#define NIBBLE_TESTS_SCALE_DEVICE_H

#include "nibble/codec.h"
#include "tests/scale/scale.h"

struct nb_context;
struct nb_device;
struct nb_device_wish;

/* Open a device: for nb_context.open_device, of a scale_node's context. */
int scale_device_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev);

/* Return an address range of `bytes` that must stay untouched. Ranges may overlap. */
void *scale_nowhere(size_t bytes);

/* Return coded bytes over plain bytes of values of a normal distribution, as the real codecs INT4 and INT8
 * have them. */
double scale_coded(enum nb_codec codec, enum nb_dtype type);

#endif
