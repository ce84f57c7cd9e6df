/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CollNet table of a few lines, simple enough to be obviously right: it exchanges windows through shared
 * memory and reduces value by value. The harness's own tests run on it. With one fault built in, the harness
 * must notice the fault.
 */
#ifndef NIBBLE_TESTS_HARNESS_FAKE_H
#define NIBBLE_TESTS_HARNESS_FAKE_H

#include "harness.h"

enum fake_bug {
    FAKE_RIGHT,
    FAKE_WRONG_BIT,     /* one bit of one window of one node is flipped */
    FAKE_EARLY_DONE,    /* a window is reported done before its data have arrived */
    FAKE_LOST,          /* one window never completes */
    FAKE_NULL_FOREVER,  /* from some call on every call is refused */
    FAKE_POOL,          /* four request objects, which only test gives back */
    FAKE_NO_REQUEST,    /* success without writing *request */
    FAKE_OVERRUN,       /* writes behind the region */
    FAKE_WRONG_PLACE,   /* reduce-scatter: writes the own part where the window starts */
    FAKE_READS_PADDING, /* all-reduce: the padding takes part in a maximum over the window */
    FAKE_ERROR,         /* a call returns an error */
    FAKE_CRASH          /* a node dies in a call */
};

/* Prepare memory that all nodes share. Call it in the parent before the job. */
void fake_prepare(enum fake_bug bug);
void fake_release(void);
/* Return the table, ncclCollNet version 12. */
const void *fake_table(void);

#endif
