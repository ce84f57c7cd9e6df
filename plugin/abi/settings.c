/* SPDX-License-Identifier: Apache-2.0 */
/* Read the settings, and let each part of the plugin check its own. See settings.h. */
#include "abi/settings.h"

#include <stdio.h>

#include "base/log.h"
#include "nibble/codec.h"
#include "policy/job/job.h"

static void give_up(struct nb_params *params, const char *name, const char *wrong)
{
    NB_ALERT("%s", wrong);
    nb_params_give_up(params, name, wrong);
}

/* The setting's words are the codecs' variants, in their order. */
_Static_assert((int)NB_CODEC_VARIANT_AUTO == (int)NB_VARIANT_AUTO &&
                   (int)NB_CODEC_VARIANT_PORTABLE == (int)NB_VARIANT_PORTABLE &&
                   (int)NB_CODEC_VARIANT_AVX2 == (int)NB_VARIANT_AVX2 &&
                   (int)NB_CODEC_VARIANT_AVX512 == (int)NB_VARIANT_AVX512 &&
                   (int)NB_CODEC_VARIANT_NEON == (int)NB_VARIANT_NEON &&
                   (int)NB_CODEC_VARIANT_AVX512_VBMI == (int)NB_VARIANT_AVX512_VBMI &&
                   (int)NB_CODEC_VARIANT_COUNT == (int)NB_VARIANT_COUNT,
               "NIBBLE_CODEC_VARIANT has a word for each enum nb_variant");

int nb_settings_read(struct nb_params **result)
{
    struct nb_params *params;
    char wrong[512];
    const char *name;
    int err = nb_params_read_anyway(&params);

    if (err)
        return err;
    while (nb_job_check_settings(params, &name, wrong, sizeof(wrong)))
        give_up(params, name, wrong);
    const enum nb_variant variant = (enum nb_variant)params->codec_variant;
    if (nb_codec_select(variant)) {
        snprintf(wrong, sizeof(wrong), "NIBBLE_CODEC_VARIANT=%s: this processor lacks it",
                 nb_variant_name(variant));
        give_up(params, "NIBBLE_CODEC_VARIANT", wrong);
        nb_codec_select(NB_VARIANT_AUTO);
    }
    *result = params;
    return 0;
}
