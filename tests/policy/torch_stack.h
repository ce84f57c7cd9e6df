/* SPDX-License-Identifier: Apache-2.0 */
/* Calls from below functions of PyTorch, as nb_stack_caller finds them in PyTorch's processes. The functions
 * are in a separate module (torch_module.c), built beside the program. */
#ifndef NIBBLE_TESTS_POLICY_TORCH_STACK_H
#define NIBBLE_TESTS_POLICY_TORCH_STACK_H

enum torch_function {
    TORCH_BUCKET, /* DDP's reducer with a bucket */
    TORCH_USED,   /* DDP's reducer with the bitmap of used parameters */
    TORCH_ENGINE, /* a backward pass */
    TORCH_PYTHON
};

/* Call inner(arg) below these functions, outermost first, n of them, at most 8. End the program when the
 * module cannot be loaded. Any thread. */
void torch_call(const enum torch_function *function, unsigned n, void (*inner)(void *arg), void *arg);

#endif
