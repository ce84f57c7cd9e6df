/* SPDX-License-Identifier: Apache-2.0 */
/* The codecs by their codes. row.h says why the table is a file of its own. */
#include "codec/row.h"

#define AT(code, row) [code] = &row,

const struct nb_codec_row *const nb_codec_table[NB_CODEC_CODES] = {NB_CODEC_ROWS(AT)};
