/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that exists only for touched pages. Hundreds of nodes have large tables and slots of messages that
 * they hardly use, and malloc would zero them. The program is linked with --wrap for calloc, realloc and
 * free: large zeroed blocks come from here.
 */
#ifndef NIBBLE_TESTS_SCALE_MEMORY_H
#define NIBBLE_TESTS_SCALE_MEMORY_H

#include <stddef.h>

/* Return zeroed memory that begins at a page. Without free addresses the process ends. scale_pages_free gives
 * the memory back, but its addresses do not come again. */
void *scale_pages(size_t bytes);
void scale_pages_free(void *p, size_t bytes);
/* Return the bytes of the heap, with these blocks of calloc. */
size_t scale_heap(void);

#endif
