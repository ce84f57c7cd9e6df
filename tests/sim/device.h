/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node's device: the host's functions. Where the plan has late devices, the simulation decides when they
 * run, in any order. The device can fail, or never finish a piece of work. It then notices after
 * NIBBLE_GPU_TIMEOUT, as a GPU's device does.
 */
#ifndef NIBBLE_TESTS_SIM_DEVICE_H
#define NIBBLE_TESTS_SIM_DEVICE_H

#include "tests/sim/sim.h"

struct nb_context;
struct nb_device;
struct nb_device_wish;

/* Open a device: for nb_context.open_device, of a sim_node's context. */
int sim_device_open(struct nb_context *ctx, const struct nb_device_wish *wish, struct nb_device **dev);
void sim_device_event(struct sim *s, const struct sim_event *event);

#endif
