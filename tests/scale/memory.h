/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of which only pages that are touched exist. Hundreds of nodes have tables and slots of messages that
 * are large and hardly used; malloc would zero them. The program is linked with --wrap for calloc, realloc
 * and free: large zeroed blocks come from here.
 */
#ifndef NIBBLE_TESTS_SCALE_MEMORY_H
#define NIBBLE_TESTS_SCALE_MEMORY_H

#include <stddef.h>

/* Zeroed memory, from a page on; it ends the process where there are no addresses. Give it back: its
 * addresses do not come again. */
void *scale_pages(size_t bytes);
void scale_pages_free(void *p, size_t bytes);
/* Bytes of the heap, these blocks of calloc included. */
size_t scale_heap(void);

#endif
