/* SPDX-License-Identifier: Apache-2.0 */
/* Strangers: a thread that connects to whatever port its process listens on, over and over, and sends a web
 * browser's request, random bytes, too little, or nothing. */
#ifndef NIBBLE_TESTS_HARNESS_ATTACKER_H
#define NIBBLE_TESTS_HARNESS_ATTACKER_H

#include <stdatomic.h>
#include <stdbool.h>

struct attack {
    atomic_bool stop; /* ends the thread */
    atomic_int hits;  /* connections made */
};

/* The thread's function; `attack` is a struct attack. */
void *attacker(void *attack);

#endif
