/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's device with codec threads (host_pool.h): what is done with values is done by workers while the engine
 * goes on. Of the host's own (host.c) it differs in nothing else: queries and work without a handle are answered
 * on the spot, and so is what takes less time than handing it over.
 *
 *     engine: encode(work)   a free slot gets the arguments; into the pool's queue           -EINPROGRESS
 *     worker                 runs the host's function, notes the result, wakes the engine (ctx->work_done)
 *     engine: poll(work)     takes the result, and the slot is free
 *
 * A worker that has noted a result holds the instance's lock until it is out of the engine's way, and poll takes
 * that lock once: so what poll has returned is over, also for closing what the wake-up needs.
 */
#ifndef NIBBLE_DEVICE_HOST_THREADS_H
#define NIBBLE_DEVICE_HOST_THREADS_H

#include "device/device.h"

/* Create a communicator's instance, which uses ctx until its table's `close`. NULL when there are to be no workers, or
 * none can be had (after a line of the log): then the host's own device does it all. On NCCL's thread, at connect. */
struct nb_device *nb_host_threads_open(struct nb_context *ctx);

#endif
