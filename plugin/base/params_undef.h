/* SPDX-License-Identifier: Apache-2.0 */
/* Ends one expansion of base/params.def; included many times, so it has no guard. */
#undef NB_PARAM_INT
#undef NB_PARAM_REAL
#undef NB_PARAM_BOOL
#undef NB_PARAM_STR
#undef NB_PARAM_ENUM
#undef NB_PARAM_AGREED_INT
#undef NB_PARAM_AGREED_REAL
#undef NB_PARAM_AGREED_BOOL
#undef NB_PARAM_AGREED_STR
#undef NB_PARAM_AGREED_ENUM
