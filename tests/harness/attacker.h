/* SPDX-License-Identifier: Apache-2.0 */
/* Strangers: a thread that connects over and over to each port on which its process listens. It sends a web
 * browser's request, random bytes, too few bytes, or no bytes. */
#ifndef NIBBLE_TESTS_HARNESS_ATTACKER_H
#define NIBBLE_TESTS_HARNESS_ATTACKER_H

#include <stdatomic.h>
#include <stdbool.h>

struct attack {
    atomic_bool stop; /* ends the thread */
    atomic_int hits;  /* connections made */
};

/* Attack until told to stop: the thread's function. `attack` points to a struct attack. */
void *attacker(void *attack);

#endif
