/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the fake driver's files share. One lock guards all of them. */
#ifndef NIBBLE_TESTS_GPU_FAKE_STREAM_H
#define NIBBLE_TESTS_GPU_FAKE_STREAM_H

#include <pthread.h>

#include "fake_driver.h"
#include "kernels/kernels.h"

extern pthread_mutex_t fake_lock;

void fake_wrong(const char *what) __attribute__((noreturn));
/* Return where the CPU finds the bytes at this address. Call without the lock. */
void *fake_seen_at(const void *address);
/* Write zeros. Large mapped memory gives its whole pages back to Linux, which hands out zeros at the next
 * access. Tests read few of these pages, and filling all of them would take most of a test's time. */
void fake_zero(void *at, size_t n);

enum fake_kind { RECORD, WAIT, LAUNCH, SET, COPY, FUNCTION, GRAPH };

struct fake_item {
    enum fake_kind kind;
    struct fake_event *event;
    uint64_t value; /* RECORD and WAIT: the event's count */
    struct nb_gpu_launch launch;
    unsigned blocks;
    unsigned char *at;
    const unsigned char *from;
    size_t bytes;
    uint32_t pattern;
    void (*function)(void *);
    void *argument;
    struct fake_graph *graph;   /* GRAPH: held by the item */
    struct fake_stream *stream; /* the captured stream */
    struct fake_item *next;
};

struct fake_event {
    struct fake_event *next, **link; /* list of all live events, so that the events of a lost context do
                                        not count as leaks */
    uint64_t recorded, reached;      /* under lock */
    uint64_t capture;                /* the capture that holds its last record */
    unsigned items;                  /* items that name it: it may be destroyed before they have run */
    int destroyed;
};

struct fake_stream {
    pthread_t thread;
    struct fake_item *first, **last;
    int busy, end;
    uint64_t capture; /* 0: not capturing */
};

/* Make a stream. Call without the lock. */
struct fake_stream *fake_make_stream(void);
void fake_end_stream(struct fake_stream *stream); /* waits until all its items have run */
struct fake_event *fake_make_event(void);
void fake_end_event(struct fake_event *event);
/* The caller holds the lock. */
void fake_put(struct fake_stream *stream, const struct fake_item *what);
struct fake_graph *fake_graph_of(uint64_t capture);
struct fake_graph *fake_capture_try_end(nb_cu_stream stream); /* NULL: work of it is not joined */
void fake_hold(struct fake_graph *graph); /* fake_graph_free ends the hold. Both without the lock */

#endif
