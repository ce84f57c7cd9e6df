/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that are ranks of one job, and the functions of NVIDIA's library that they call. */
#ifndef NIBBLE_TESTS_NCCL_RANKS_H
#define NIBBLE_TESTS_NCCL_RANKS_H

#include <stddef.h>
#include <stdint.h>

#include "library.h"

#define MAX_RANKS 17
#define MOST_ROUNDS 16 /* that print_times takes */

struct id { /* ncclUniqueId */
    char bytes[128];
};

struct call_config { /* ncclCollConfig_t of NCCL 2.31 */
    size_t size;
    unsigned magic, version;
    void *extension;
    int least_ctas, most_ctas, nvls_ctas, cga_size;
    const char *algorithms; /* NULL: NCCL and its tuner choose */
    int force, policy;
    uint64_t tag;
};

/* NCCL's functions. Those of later releases may be NULL: shrink, grow_id, grow, revoke, and the calls with a
 * configuration. */
extern struct nccl {
    const char *(*text)(int);
    const char *(*last)(void *);
    int (*version)(int *);
    int (*id)(struct id *);
    int (*init)(void **, int, struct id, int);
    int (*init_with)(void **, int, struct id, int, const void *);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*reduce_scatter)(const void *, void *, size_t, int, int, void *, void *);
    int (*all_gather)(const void *, void *, size_t, int, void *, void *);
    int (*all_to_all)(const void *, void *, size_t, int, void *, void *);
    int (*broadcast)(const void *, void *, size_t, int, int, void *, void *);
    int (*send)(const void *, size_t, int, int, void *, void *);
    int (*recv)(void *, size_t, int, int, void *, void *);
    int (*all_reduce_with)(const void *, void *, size_t, int, int, void *, void *,
                           const struct call_config *);
    int (*reduce_scatter_with)(const void *, void *, size_t, int, int, void *, void *,
                               const struct call_config *);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*finalize)(void *);
    int (*destroy)(void *);
    int (*abort)(void *);
    int (*split)(void *, int, int, void **, const void *);
    int (*shrink)(void *, const int *, int, void **, const void *, int);
    int (*grow_id)(void *, struct id *);
    int (*grow)(void *, int, const struct id *, int, void **, const void *);
    int (*revoke)(void *, int);
    int (*error)(void *, int *);
    int (*mem_alloc)(void **, size_t);
    int (*mem_free)(void *);
    int (*window)(void *, void *, size_t, void **, int);
    int (*close_window)(void *, void *);
} nccl;

/* End the program on an error of NCCL. */
void check(int result, const char *what);

/* Memory of all ranks. */
extern struct shared {
    struct id id;
    unsigned arrived, round;
    uint64_t sum[MAX_RANKS];
} * shared;

struct member { /* a rank of a communicator */
    int rank, ranks, per_node;
    void *comm, *stream;
};

/* Wait until all ranks are here. A rank that dies ends the others through the parent. */
void meet(int ranks);

/* Call `run` on all ranks, and return the seconds until it ended on all of them. */
double timed(const struct member *m, void (*run)(const struct member *m, void *arg), void *arg);
/* Return the bytes of this node's interface hx0 so far, of the busier direction. */
double link_bytes(void);
/* Sort `seconds` of some rounds. Print the median, the extremes, and the bytes of a round on the busiest link
 * since that link's link_bytes() was `before`. All ranks call it. */
void print_times(const struct member *m, const char *what, double *seconds, int rounds, double before);

/* Return a call's configuration. `algorithms` may be NULL, and `tag` 0. */
struct call_config config_of(const char *algorithms, uint64_t tag);

/* Make a communicator of all ranks. `name` may be NULL. */
void open_comm(struct member *m, const char *name);
/* Take a communicator that NCCL has made. */
void take_comm(struct member *m, int ranks);
/* End the communicator, and with leave_comm on this rank alone. */
void close_comm(struct member *m);
void leave_comm(struct member *m);

/* Run a process for each rank: load the library, and call `run`. Return 0 if all ended well. */
int ranks_run(const char *library, const char *layout, int nodes, int per_node,
              void (*run)(const struct member *, void *), void *arg);

/* ---- weights.c: cases of cluster.c ---- */

void weights(struct member *m);
void push(struct member *m);

#endif
