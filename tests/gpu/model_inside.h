/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the model's files share. See model.h. */
#ifndef NIBBLE_TESTS_GPU_MODEL_INSIDE_H
#define NIBBLE_TESTS_GPU_MODEL_INSIDE_H

#include <stdio.h>

#include "kernels/kernels.h"
#include "model.h"

/* Each structure that can wait or be awaited begins with one of these numbers, so that a pointer tells its
 * kind. */
enum model_kind { MODEL_A_KERNEL = 0, MODEL_A_THREAD = 0x7468, MODEL_AN_OPERATION = 0x6f70 };

struct gpu;

/* A reference to an operation. An operation may be used again when it is done, and counts as done for a
 * reference to its earlier use. */
struct reference {
    struct op *op;
    uint64_t number;
};

enum model_operation { OP_KERNEL, OP_WAIT, OP_RECORD, OP_SET };

struct op {
    enum model_kind kind;
    enum model_operation what;
    uint64_t number; /* number among all operations ever, 0: free */
    struct gpu *gpu;
    struct stream *stream;
    unsigned queue;
    struct reference before, legacy, event; /* must be done before it may begin. event: for OP_WAIT */
    uint64_t blocking_before; /* legacy stream: all operations of blocking streams below this number */
    struct model_kernel *kernel;
    struct model_kernel own; /* a copy where the caller does not keep one: the codec's */
    struct nb_gpu_launch launch;
    uint32_t *word, value;
    int issued;               /* it has left its queue */
    unsigned placed, left;    /* blocks on multiprocessors now, and blocks that have not ended */
    uint8_t *where;           /* number of its blocks on each multiprocessor */
    int64_t until;            /* end of the wave of blocks or time of the next look at it, 0: none */
    struct op *next;          /* next of the queue, of the running or of the free operations */
    struct op *older, *newer; /* list of all undone operations of the GPU */
};

struct stream {
    struct gpu *gpu;
    unsigned queue;
    int priority, blocking;
    struct reference last;
    struct reference branch[16]; /* ends of the branches of a graph, launched last, for which the next
                                    operation waits */
    int branches;
    struct model_graph *capture;
};

struct model_event {
    struct reference at;
    struct model_graph *capture;
    int captured_at; /* index of the operation in the graph that it stands for, -1: the graph's beginning */
};

struct model_thread *model_self(void);
const char *model_thread_name(const struct model_thread *thread);
enum model_role model_thread_role(const struct model_thread *thread);
struct model_contexts { /* of a thread: the GPUs of its pushed contexts, and its capture mode */
    int depth, gpu[16], mode;
};
struct model_contexts *model_contexts(void);
extern struct model_settings model;
extern int model_after_connect;

/* model_host.c: wait under the watchdog's eyes. `blockers` fills at most `most` entries of out. */
void model_block(int (*ready)(void *), void *argument, const char *what,
                 unsigned (*blockers)(void *argument, const void **out, unsigned most));
void model_wrong(const char *what) __attribute__((noreturn));
void model_stop(const char *why); /* ends the run with this text */

/* model_gpu.c */
void model_gpus_open(void);
void model_gpus_close(void);
int model_gpus_step(void);     /* 1: something happened */
int64_t model_gpus_next(void); /* time of the next event that needs no thread, INT64_MAX: never */
unsigned model_op_blockers(const struct op *op, const void **out, unsigned most, const char **why);
const char *model_op_name(const struct op *op);
unsigned model_all_waiting(const void **out, unsigned most);
int model_done(const struct reference *reference);
struct gpu *model_gpu(int ordinal);
int model_gpu_number(const struct gpu *gpu);
struct stream *model_make_stream(int gpu, int priority, int blocking);
void model_put(struct stream *stream, struct op *what);
void model_join_branches(struct stream *stream); /* puts waits for a graph's branches into the queue */
struct op *model_new_op(struct stream *stream, enum model_operation what);
void *model_keep(size_t bytes); /* zeroed, until model_gpus_close */
/* Take an unsubmitted operation. model_put or the next three functions submit it, or it is given back. */
struct op *model_take_op(struct gpu *gpu);
void model_give_op(struct op *op);
void model_number(struct op *op); /* makes it the newest on its GPU */
void model_refer(struct op *op);  /* binds its kernel to it */
void model_queue(struct op *op, unsigned queue);
/* Numbers of operations: the last one given, and at most `most` undone ones of a GPU below `before`. */
uint64_t model_last_number(void);
unsigned model_undone_before(int gpu, uint64_t before, const void **out, unsigned most);

/* model_graph.c: make the operation the next node of its stream. It waits for node `event`, -1: none. */
struct model_graph;
void model_put_in_graph(struct model_graph *graph, struct stream *stream, struct op *op, int event);

/* model_calls.c */
void model_calls_open(void);
void model_drain(int gpu, const char *why);
void model_lock_context(int gpu);
void model_unlock_context(int gpu);
void model_call(const char *name, int takes_lock); /* a driver call on the current GPU */
int model_current_gpu(void);
void model_load(int *loaded, const char *name);

/* model_codec.c: do one step of a codec kernel with placed blocks. Return 1 when it has ended, and the time
 * of the next look in *next. */
void model_codec_open(void);
int model_codec_step(struct op *op, int64_t *next);
const void *const *model_codec_waits(const struct op *op);
const char *model_codec_name(const struct op *op);

#endif
