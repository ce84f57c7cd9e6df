/* SPDX-License-Identifier: Apache-2.0 */
/* Failures on demand, for tests of the paths that hardware and peers rarely take. */
#ifndef NIBBLE_BASE_FAULT_H
#define NIBBLE_BASE_FAULT_H

struct nb_context;

/* Return 1 when the context's setting NIBBLE_FAULT, a list of names separated by commas, contains `where`.
 * Log an INFO line that says so. The caller then behaves as if that step had failed. Any thread. Cheap when
 * the list is empty. */
int nb_fault(const struct nb_context *ctx, const char *where);

#endif
