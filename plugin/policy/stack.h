/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who calls a collective (policy/caller.h), by walking the stack of the calling thread.
 *
 * What a return address belongs to is looked up once and remembered for the process, since a look costs far more than a
 * step of the walk: the loader goes through all symbols of a library, of which PyTorch's has hundreds of thousands.
 */
#ifndef NIBBLE_POLICY_STACK_H
#define NIBBLE_POLICY_STACK_H

#include "policy/caller.h"

/* Who calls, by the frames above this function's caller. Not in signal handlers. */
enum nb_caller nb_stack_caller(void);

#endif
