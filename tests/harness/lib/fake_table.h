/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CollNet table of a few lines that is right by construction: windows are exchanged through shared memory
 * and reduced value by value. With it the harness is tested itself, and with one fault built in it must
 * notice.
 */
#ifndef NIBBLE_TESTS_HARNESS_FAKE_H
#define NIBBLE_TESTS_HARNESS_FAKE_H

#include "harness.h"

enum fake_bug {
    FAKE_RIGHT,
    FAKE_WRONG_BIT,     /* one bit of one window of one node is flipped */
    FAKE_EARLY_DONE,    /* a window is reported done before its data are there */
    FAKE_LOST,          /* one window never completes */
    FAKE_NULL_FOREVER,  /* from some call on every call is refused */
    FAKE_POOL,          /* four request objects, given back by test only */
    FAKE_NO_REQUEST,    /* success without writing *request */
    FAKE_OVERRUN,       /* writes behind the region */
    FAKE_WRONG_PLACE,   /* reduce-scatter: writes the own part where the window starts */
    FAKE_READS_PADDING, /* all-reduce: the padding takes part in a maximum over the window */
    FAKE_ERROR,         /* a call returns an error */
    FAKE_CRASH          /* a node dies in a call */
};

/* Memory shared by all nodes; call in the parent before the job. */
void fake_prepare(enum fake_bug bug);
void fake_release(void);
/* The table, ncclCollNet version 12. */
const void *fake_table(void);

#endif
