/* SPDX-License-Identifier: Apache-2.0 */
/* Calls from below functions of PyTorch: what nb_stack_caller finds in its processes. The functions are in a
 * module of their own (torch_module.c), built beside the program. */
#ifndef NIBBLE_TESTS_POLICY_TORCH_STACK_H
#define NIBBLE_TESTS_POLICY_TORCH_STACK_H

enum torch_function {
    TORCH_BUCKET, /* DDP's reducer, a bucket */
    TORCH_USED,   /* DDP's reducer, the bitmap of used parameters */
    TORCH_ENGINE, /* a backward pass */
    TORCH_PYTHON
};

/* inner(arg) below these functions, the first of which is the outermost; n of them, at most 8. Ends the
 * program when the module cannot be loaded. Any thread. */
void torch_call(const enum torch_function *function, unsigned n, void (*inner)(void *arg), void *arg);

#endif
