/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a process, as the plugin uses them and nibble-info shows them. */
#ifndef NIBBLE_ABI_SETTINGS_H
#define NIBBLE_ABI_SETTINGS_H

#include "base/params.h"

/*
 * Read the settings of the environment. A bad one gets one line in the log and its default, and the first bad
 * one is noted in `bad_setting`. The function also selects NIBBLE_CODEC_VARIANT for the process, so no thread
 * may be encoding. Return 0 and *params, which the caller frees with nb_params_free, or -ENOMEM.
 */
int nb_settings_read(struct nb_params **params);

#endif
