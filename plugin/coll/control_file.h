/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file that NIBBLE_CONTROL names, and the word in it. A file may lie on a mount that no longer answers,
 * and reading it then never returns: so in NCCL's process a thread of its own reads it, and the engine only
 * looks at what that thread has found. Where the caller steps the engine there is no thread, and a step
 * reads.
 */
#ifndef NIBBLE_COLL_CONTROL_FILE_H
#define NIBBLE_COLL_CONTROL_FILE_H

#include <stdbool.h>
#include <stdint.h>

struct nb_chore;
struct nb_control_reader;

/* Of a node, and its engine thread's. */
struct nb_control_file {
    bool off;        /* the last word that was understood; at first: on */
    int64_t read_ns; /* without a thread: time of the last look; 0: never */
    bool warned;     /* and: what is wrong with the file has been reported */
    bool threaded;   /* a thread reads it, or would if it could */
    struct nb_control_reader *reader;
    struct nb_chore *chore; /* with a reader: its thread */
    uint64_t seen;          /* of its looks, at seen_ns */
    int64_t seen_ns;        /* 0: none was under way */
    bool told;              /* it was reported that one does not end */
    bool left_behind;       /* one has not ended although it was told to: there will be no other */
};

/* The word: 1 off, 0 on, -1 nothing that is understood (then nothing changes). What is wrong with the file is
 * logged once, until a word is understood again (*warned). A pipe, a device or a directory is not read. */
int nb_control_file_read(const char *path, bool *warned);

/* Begin to read once a second, in a thread that logs as `label`; returns when it has read once, or after two
 * seconds. What fails is logged: then the switch keeps its state. */
void nb_control_file_open(struct nb_control_file *file, const char *path, const char *label);
/* End it. A thread that is inside a read that does not return is left behind, and no other will be begun. */
void nb_control_file_close(struct nb_control_file *file, const char *path);
/* Bring file->off up to date. Never blocks while a thread reads. */
void nb_control_file_look(struct nb_control_file *file, const char *path, int64_t now_ns);

#endif
