/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-perf: what its parts share. Each part is a subcommand: a function that takes the arguments behind
 * its name and returns the exit status.
 */
#ifndef NIBBLE_TOOLS_PERF_H
#define NIBBLE_TOOLS_PERF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/doctor/hosts.h"

int perf_codec(int argc, char **argv);
int perf_coll(int argc, char **argv);
int perf_p2p(int argc, char **argv);
int perf_weights(int argc, char **argv);

/* Seconds of CLOCK_MONOTONIC. */
double perf_now(void);
/* Median of n values, which are put in order. */
double perf_median(double *v, size_t n);
/* "128", "64K", "8M", "1G" in powers of 1024. false when it is no such number. */
bool perf_parse_size(const char *text, size_t *bytes);
/* Is `word` in the comma-separated `list`? An empty or NULL list contains everything. */
bool perf_listed(const char *list, const char *word);

/* Instructions of run(arg), each stopped at: some microseconds an instruction. NAN after a message where a
 * process may not trace its child. `trace`, if not NULL, gets each one's address in the program's file, in
 * hexadecimal, a line each; 0 for those of libraries (and all, on other machines than x86-64). */
double perf_count_instructions(void (*run)(void *arg), void *arg, FILE *trace);
/* The processor's clock as it is now, in GHz; NAN where that is not known. */
double perf_clock_ghz(void);

/* A JSON list of flat objects. perf_json_open(NULL) is fine and makes the others do nothing; NULL and a
 * message on stderr when the file cannot be written. */
struct perf_json;
bool perf_json_open(const char *path, struct perf_json **json);
void perf_json_begin(struct perf_json *json);
void perf_json_text(struct perf_json *json, const char *key, const char *value);
/* A value that is not finite becomes null. */
void perf_json_number(struct perf_json *json, const char *key, double value);
void perf_json_end(struct perf_json *json);
/* 0, or 1 after a message when writing failed. */
int perf_json_close(struct perf_json *json);

/* Node `rank` and the threads that it starts run on the CPU that stands at that place of the comma-separated
 * `list`, from which places count again at its end. 0, or a negative errno: -EINVAL, it is no list of numbers; else there
 * is no such CPU for this process. */
int perf_pin(const char *list, int rank);

/* Calls each(kind, number, arg) for the engine's thread and each codec thread of this process. */
enum perf_thread { PERF_ENGINE, PERF_CODEC };
void perf_own_threads(void (*each)(enum perf_thread kind, long tid, void *arg), void *arg);
/* Each of them gets so much of a processor, 1 to 100 percent, whatever else runs, and no more: SCHED_DEADLINE, which needs
 * privileges. So a few fast processors stand for more slow ones. 0, or a negative errno: -EBUSY, there are not as many processors. */
int perf_share(double percent);

/* ---- What a measurement used ---- */

/* Of this process, this machine, and the interface of this process' network namespace. */
struct perf_usage {
    double cpu_s;             /* user and system time of all threads */
    double engine_s, codec_s; /* of it, of the engine's thread and of all codec threads */
    double busy_s, total_s;   /* of all processors of the machine: not idle, and at all */
    double sent, received;    /* bytes through the interface, headers included */
};
/* `interface` NULL: none. What cannot be read is 0. */
void perf_usage_now(const char *interface, struct perf_usage *usage);

/* ---- Measurements over nodes (coll and p2p) ---- */

/* Sizes, repetitions and nodes, in the manner of nccl-tests. */
struct perf_run {
    size_t min_bytes, max_bytes, step_bytes; /* step_bytes 0: times factor */
    unsigned factor;
    int nodes, iterations, warmup, channels, repetitions;
    size_t buff_size, chunk; /* chunk 0: as NCCL chooses */
    const char *types;       /* comma-separated names, NULL: the part's own */
    const char *ops;
    const char *json;
    const char *plugin;  /* path of a shared object; NULL: the code linked into this program */
    const char *cpus;    /* p2p: where nodes run, see perf_pin; NULL: where the kernel likes */
    const char *threads; /* coll: numbers of codec threads that are compared; NULL: none are */
    double share;        /* coll: percent of a processor, see perf_share; 0: as much as they get */
    bool quiet;          /* rows are not printed as they come */
    /* Over machines: which node this is (nodes 0: all are processes of this machine), or where to start
     * them. */
    struct place place;
    struct hosts hosts;
    bool raw;
    const char *netns; /* prefix of the names of existing network namespaces, NULL: loopback */
    bool nocopy, bidirectional, feedback, help;
    int streams;
    double pause_s;     /* before each repetition */
    double weight_step; /* rms of a weight's change over its own between two gathers */
    const char *env[26];
    int nenv;
};

/* Fill in defaults, then read the arguments. false after a message. */
bool perf_run_parse(int argc, char **argv, const char *part, struct perf_run *run);
/* Next size of the series, 0 after the last. */
size_t perf_run_next(const struct perf_run *run, size_t bytes);

struct hx_node;
struct hx_job;

struct hx_report;

/* Most repetitions of one measurement, of which the median is told. */
#define PERF_MOST_REPETITIONS 64

/* One line of the table; what nodes hand to their parent. */
struct perf_row {
    char op[24], type[12];
    int nodes, channels, repetitions;
    uint64_t bytes, chunk;
    double time_us, min_us, max_us;        /* median, least and most of the repetitions */
    double algbw, busbw, wire_ratio, nmse; /* NAN: not known */
    double
        wrong; /* values further from the exact result than the code allows, of those that are looked at; NAN: none are */
    /* The same in place; NAN: was not measured. */
    double in_place_us, in_place_algbw, in_place_busbw, in_place_wrong;
    double cpu;  /* processors that the nodes kept busy, together */
    double busy; /* share of the machine's processors that anything kept busy */
    double engine_us,
        codec_us;      /* processor time of one operation on a node: the engine\'s thread, codec threads */
    bool quiet;        /* not to be printed as it comes */
    double link_bytes; /* of one operation through the busiest direction of a node's link */
};
/* A row without figures. */
struct perf_row perf_row_make(const struct perf_run *run, const char *op, const char *type, uint64_t bytes);
/* Collective: fill in times from every node's seconds[repetitions] of one operation, and what the nodes used
 * from before to after for `operations` of them. */
void perf_row_measured(struct perf_row *row, struct hx_node *node, const double *seconds,
                       const struct perf_usage *before, const struct perf_usage *after, int operations);
void perf_row_header(void);
void perf_row_print(const struct perf_row *row);
void perf_row_json(struct perf_json *json, const struct perf_row *row);

/* Rows of a job: node 0 prints them as they come and keeps them in its scratch memory; the parent writes the
 * file. */
void perf_row_add(struct hx_node *node, const struct perf_row *row);
/* How many rows a job has handed over; `row`, if not NULL, gets the one of this number, if it is there. */
uint64_t perf_rows_of(const struct hx_report *report, struct perf_row *row, uint64_t number);
/* Run the job with each of run->threads in turns, run->repetitions times, and print what comes of it. Exit
 * status. */
int perf_threads(const struct hx_job *job, const struct perf_run *run);
/* Run the job, or its node that `place` says (place->nodes 0: all), and write the file. Exit status. */
int perf_rows_job(const struct hx_job *job, const struct place *place, const char *json);

#endif
