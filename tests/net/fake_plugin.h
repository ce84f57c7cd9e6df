/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small network plugin of one table version (FAKE_VERSION, one library each) that joins senders and
 * receivers of its own process. It notes the arguments of its calls, and fails where a test says so. A test
 * reaches both through the exported `fake_notes`.
 */
#ifndef NIBBLE_TESTS_FAKE_PLUGIN_H
#define NIBBLE_TESTS_FAKE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

struct fake_notes {
    /* record of the calls */
    int inits, finalizes;
    int init_classes[32]; /* v11 and later: the traffic class of every init */
    uint64_t comm_id;
    int had_profiler;                /* v10 and later: init had a usable callback */
    int listen_class, connect_class; /* of the context (v11 and later) or of the config (v10) */
    int last_dev;                    /* of the last listen or connect */
    size_t send_size, recv_sizes[8], flush_sizes[8];
    int recv_n, recv_tags[8], reg_type, reg_fd;
    uint64_t reg_offset;
    int optional; /* isend or irecv had a non-NULL handle for profiler events */
    int open_comms, open_mrs;
    /* the test's orders */
    int fail_init, fail_devices, fail_properties, fail_listen, fail_connect, fail_isend, fail_irecv,
        fail_test, fail_reg; /* result to give */
    int device_type;
    int refuse; /* so many isend and irecv return no request */
    int hold;   /* requests stay unfinished */
    size_t max_bytes;
};

#endif
