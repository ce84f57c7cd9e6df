/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a process, as the plugin takes them and nibble-info shows them. */
#ifndef NIBBLE_ABI_SETTINGS_H
#define NIBBLE_ABI_SETTINGS_H

#include "base/params.h"

/*
 * The settings of the environment, as far as they are good: a bad one has one line in the log and its
 * default, and the first is noted in `bad_setting`. Also puts NIBBLE_CODEC_VARIANT in force, process-wide, so
 * no thread may be coding. 0 and *params, to be freed with nb_params_free, or -ENOMEM.
 */
int nb_settings_read(struct nb_params **params);

#endif
