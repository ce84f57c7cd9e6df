/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block coder of one variant at its three widths, and its table. A variant's source defines
 *     ULP_NARROW, ULP_WIDE   the file of its functions for values of 1 and 2 bytes, and of 4 bytes; each ends
 *                            by including ulp_block.inc.h
 *     ULP_TABLE              the name of its table
 * and includes this at its end.
 */

#define W 1
#define NAME(x) x##_w8
#include ULP_NARROW
#undef W
#undef NAME

#define W 2
#define NAME(x) x##_w16
#include ULP_NARROW
#undef W
#undef NAME

#define W 4
#define NAME(x) x##_w32
#include ULP_WIDE
#undef W
#undef NAME

const struct nb_ulp_ops ULP_TABLE = {
    .encode = {encode_block_w8, encode_block_w16, encode_block_w32},
    .decode = {decode_block_w8, decode_block_w16, decode_block_w32},
    .decode_two = {decode_two_w8, decode_two_w16, decode_two_w32},
    .probe = {probe_w8, probe_w16, probe_w32},
    .encode_floors = {encode_floors_w16, encode_floors_w32},
    .decode_floors = {decode_floors_w16, decode_floors_w32},
    .encode_sparse = {encode_sparse_w8, encode_sparse_w16, encode_sparse_w32},
    .decode_sparse = {decode_sparse_w8, decode_sparse_w16, decode_sparse_w32},
};
