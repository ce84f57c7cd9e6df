/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Check values of payloads: the coded bytes behind the header of a data message. Their author computes the
 * value right after it has made them, whoever decodes, sums or copies them compares it, and who only forwards
 * them sends it on as it came: so damage is found wherever it happened, in a relay's memory, too.
 *
 * NIBBLE_PAYLOAD_CHECK says which payloads are given one: auto those of a codec, whose work costs much more;
 * on raw ones, too. Messages with a reference part need none: they carry a hash of the bytes that they stand
 * for (take_gather.c compares it). A message says itself whether it has one, so nodes need not agree. Where
 * the device has no `check` (device/device.h), as a GPU, which makes and reads payloads without this
 * processor, they are neither given one nor compared.
 *
 * For the engine thread.
 */
#ifndef NIBBLE_COLL_PAYLOAD_H
#define NIBBLE_COLL_PAYLOAD_H

#include <stdbool.h>
#include <stdint.h>

struct nb_coll_comm;
struct nb_msg;
struct nb_peer;

/* `msg` is complete but for its check, and its payload is at `body`: give it one if it is to have one. */
void nb_payload_seal(struct nb_coll_comm *comm, struct nb_msg *msg, const uint8_t *body);
/* Compare the check of a message that came from `from`, if it has one; node `author` made it. 0, or < 0 when
 * it does not fit: the communicator has failed. */
int nb_payload_verify(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                      const struct nb_msg *msg, const uint8_t *body);
/* True when the hash of raw bytes that are to be kept is to be compared, too. */
bool nb_payload_compares_kept(const struct nb_coll_comm *comm);

/* Damage that is found otherwise: fail the communicator with a text that names both ends; or count and log
 * it, since the bytes can be had again. */
int nb_payload_damaged(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                       const struct nb_msg *msg);
void nb_payload_damage_mended(struct nb_coll_comm *comm, const struct nb_peer *from, int author,
                              const struct nb_msg *msg);

#endif
