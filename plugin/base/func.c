/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the collective functions. */
#include "base/func.h"

const char *nb_func_name(enum nb_func func)
{
    static const char *const names[NB_FUNC_COUNT] = {"reduce_scatter", "all_gather", "all_reduce"};
    return (unsigned)func < NB_FUNC_COUNT ? names[func] : "unknown";
}
