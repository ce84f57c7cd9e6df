/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that another one leaves without effect. */
#ifndef NIBBLE_BASE_PARAMS_EFFECT_H
#define NIBBLE_BASE_PARAMS_EFFECT_H

struct nb_params;

/* Why the setting means nothing as the others are, or NULL: it does, or nobody knows better. Static
 * storage. */
const char *nb_params_pointless(const struct nb_params *params, const char *name);

/* An INFO line for each setting that differs from its default and means nothing because of another one.
 * Returns how many. */
int nb_params_tell_pointless(const struct nb_params *params);

#endif
