/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions for the test programs of this folder: run an operation described by a few numbers, with generated
 * data on an open communicator, and check it against a reference that every node computes by itself.
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
    uint64_t seed;   /* of the data, the same on every node */
    double max_nmse; /* 0: bit for bit. Else the error relative to the sum of all contributions' energies */
};

/* An operation under way with its buffers. */
struct sx_run {
    struct sx_spec spec;
    struct hx_op op;
    char *send, *recv; /* recv is where op.recv points, also in place */
    char *mem;
    size_t recv_values;
    double nmse; /* sx_check sets it */
};

/* Make buffers and data. */
void sx_prepare(struct hx_node *node, const struct sx_spec *spec, struct sx_run *run);
/* Compare the result with the reference. Return 0, or hx_fail's 1. */
int sx_check(struct hx_node *node, struct sx_run *run);
void sx_free(struct sx_run *run);
/* Prepare, hx_post, hx_wait, check, free. Set *hash, which may be NULL, to the hash of the result. */
int sx_do(struct hx_node *node, struct hx_comm *comm, const struct sx_spec *spec, uint64_t *hash);
/* Return "reduce-scatter of 4095 x bfloat16 prod" for messages, in a static buffer of the thread. */
const char *sx_describe(const struct sx_spec *spec);
const char *sx_func_name(enum hx_func func);

/* Return the rounding error of a result of this type (and of the FP32 sums) alone, relative to the energy of
 * the contributions. */
double sx_rounding_nmse(ncclDataType_t type);

/* Make one block of a contribution. A node can so make one block of every rank without the other blocks. */
void sx_block(const struct sx_spec *spec, int rank, int block, void *buf);

/* Run fn on `nnodes` nodes with the given environment, and print a failure. */
int sx_job(const char *name, int nnodes, hx_node_fn fn, void *arg, const char *const *env);

/* Open the plugin and one communicator, or fail. Return 0 with both set. */
int sx_open(struct hx_node *node, const struct hx_comm_cfg *cfg, struct hx_lib **lib, struct hx_comm **comm);
/* Do the same over tables of version 12 with which the program is linked. */
int sx_open_linked(struct hx_node *node, const void *net, const void *coll, const struct hx_comm_cfg *cfg,
                   struct hx_lib **lib, struct hx_comm **comm);
/* Make the same sums `rounds` times, by reduce-scatters or all-reduces. Set *error to the distance of their
 * mean from the true sum, as a share of its energy (root of the mean square, of this node's result). `before`
 * may be NULL. It is called before each round with `arg`, and a value other than 0 ends the run. Return 0, or
 * hx_fail's 1. */
int sx_mean_error(struct hx_node *node, struct hx_comm *comm, const struct sx_spec *spec, int rounds,
                  int (*before)(void *arg), void *arg, double *error);
/* Close both. Return 0 or hx_fail. Fail also when a WARN line was logged and `warns_ok` is false. */
int sx_close(struct hx_lib *lib, struct hx_comm *comm, bool warns_ok);

#endif
