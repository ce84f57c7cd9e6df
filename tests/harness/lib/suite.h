/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the test programs of this folder share: an operation described by a few numbers, run with generated
 * data on an open communicator and checked against a reference that every node computes by itself.
 */
#ifndef NIBBLE_TESTS_HARNESS_SUITE_H
#define NIBBLE_TESTS_HARNESS_SUITE_H

#include "harness.h"

struct sx_spec {
    enum hx_func func;
    ncclDataType_t type;
    ncclRedOp_t op;
    size_t count; /* as in hx_op */
    int channels; /* 0: the communicator's */
    size_t chunk; /* 0: the communicator's */
    enum hx_fill fill;
    bool in_place;
    uint64_t seed;   /* of the data; the same on every node */
    double max_nmse; /* 0: bit for bit. Else the error relative to the sum of all contributions' energies */
};

/* An operation under way with its buffers. */
struct sx_run {
    struct sx_spec spec;
    struct hx_op op;
    char *send, *recv; /* recv is what op.recv points to, also in place */
    char *mem;
    size_t recv_values;
    double nmse; /* found by sx_check */
};

/* Make buffers and data. */
void sx_prepare(struct hx_node *node, const struct sx_spec *spec, struct sx_run *run);
/* Compare the result with the reference; 0, or hx_fail's 1. */
int sx_check(struct hx_node *node, struct sx_run *run);
void sx_free(struct sx_run *run);
/* Prepare, hx_post, hx_wait, check, free. `hash` (may be NULL) gets the hash of the result. */
int sx_do(struct hx_node *node, struct hx_comm *comm, const struct sx_spec *spec, uint64_t *hash);
/* "reduce-scatter of 4095 x bfloat16 prod": for messages; static buffer of the thread. */
const char *sx_describe(const struct sx_spec *spec);
const char *sx_func_name(enum hx_func func);

/* Rounding of a result of this type (and of the FP32 sums) alone, relative to the energy of the
 * contributions. */
double sx_rounding_nmse(ncclDataType_t type);

/* Contributions are made block by block, so that a node can make one block of everybody without the rest. */
void sx_block(const struct sx_spec *spec, int rank, int block, void *buf);

/* Run fn on `nnodes` nodes with the environment given; a failure is printed. */
int sx_job(const char *name, int nnodes, hx_node_fn fn, void *arg, const char *const *env);

/* Open the plugin and one communicator, or fail. Returns 0 with both set. */
int sx_open(struct hx_node *node, const struct hx_comm_cfg *cfg, struct hx_lib **lib, struct hx_comm **comm);
/* The same over tables of version 12 that the program is linked with. */
int sx_open_linked(struct hx_node *node, const void *net, const void *coll, const struct hx_comm_cfg *cfg,
                   struct hx_lib **lib, struct hx_comm **comm);
/* The same sums `rounds` times, a reduce-scatter's or an all-reduce's: *error is how far their mean is from
 * the truth, as a share of its energy (root of the mean square, of this node's result). `before`, if any, is
 * called before each with `arg`; not 0 from it ends all. 0, or hx_fail's 1. */
int sx_mean_error(struct hx_node *node, struct hx_comm *comm, const struct sx_spec *spec, int rounds,
                  int (*before)(void *arg), void *arg, double *error);
/* Close both; 0 or hx_fail. Also fails when a WARN line was logged and `warns_ok` is false. */
int sx_close(struct hx_lib *lib, struct hx_comm *comm, bool warns_ok);

#endif
