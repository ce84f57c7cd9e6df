/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nibble-perf: the declarations that its parts share. Each part is a subcommand: a function that takes the
 * arguments behind its name and returns the exit status.
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

/* Return the seconds of CLOCK_MONOTONIC. */
double perf_now(void);
/* Return the median of n values, and sort them. */
double perf_median(double *v, size_t n);
/* Parse "128", "64K", "8M", "1G" in powers of 1024. Return false for other texts. */
bool perf_parse_size(const char *text, size_t *bytes);
/* Return whether `word` is in the comma-separated `list`. An empty or NULL list contains every word. */
bool perf_listed(const char *list, const char *word);
/* Return whether each word of `list` is one of name(0), name(1), ..., which ends with NULL. Where not, print
 * the option, the word and the names. An empty or NULL list is good. */
bool perf_words(const char *option, const char *list, const char *(*name)(int));
/* Return the name of a type, NULL behind the last one: for perf_words. */
const char *perf_type_name(int i);
/* Read a comma-separated list of 1 to `most` numbers from `low` to `high`. Return how many, or 0 after a
 * message with the option and the text. */
int perf_numbers(const char *option, const char *list, double low, double high, double *number, int most);

/* Count the instructions of run(arg) by stopping at each, which takes some microseconds an instruction.
 * Return NAN after a message where a process may not trace its child. `trace`, if not NULL, gets each address
 * in the program's file, in hexadecimal, a line each, and 0 for instructions of libraries (and for all, on
 * machines other than x86-64). */
double perf_count_instructions(void (*run)(void *arg), void *arg, FILE *trace);
/* Return the processor's present clock in GHz, or NAN where it is unknown. */
double perf_clock_ghz(void);

/* A JSON list of flat objects. perf_json_open(NULL) succeeds and makes the other functions do nothing. It
 * returns NULL after a message on stderr when the file cannot be written. */
struct perf_json;
bool perf_json_open(const char *path, struct perf_json **json);
void perf_json_begin(struct perf_json *json);
void perf_json_text(struct perf_json *json, const char *key, const char *value);
/* Write a value. A value that is not finite becomes null. */
void perf_json_number(struct perf_json *json, const char *key, double value);
void perf_json_end(struct perf_json *json);
/* Return 0, or 1 after a message when writing failed. */
int perf_json_close(struct perf_json *json);

/* Pin node `rank` and its threads to the CPU at that place of the comma-separated `list`, which repeats at
 * its end. Return 0, or a negative errno: -EINVAL for a list that is not of numbers, else the error for a CPU
 * that this process may not use. */
int perf_pin(const char *list, int rank);

/* Call each(kind, number, arg) for the engine's thread and each codec thread of this process. */
enum perf_thread { PERF_ENGINE, PERF_CODEC };
void perf_own_threads(void (*each)(enum perf_thread kind, long tid, void *arg), void *arg);
/* Give each of them exactly so much of a processor, 1 to 100 percent, whatever else runs: SCHED_DEADLINE,
 * which needs privileges. A few fast processors so stand for more slow ones. Return 0, or a negative errno:
 * -EBUSY when the machine has too few processors. */
int perf_share(double percent);

/* ---- What a measurement used ---- */

/* Usage of this process, of this machine, and of the interface of this process' network namespace. */
struct perf_usage {
    double cpu_s;             /* user and system time of all threads */
    double engine_s, codec_s; /* its share of the engine's thread, and of all codec threads */
    double busy_s, total_s;   /* of all processors of the machine: busy time, and total time */
    double sent, received;    /* bytes through the interface, headers included */
};
/* Read the usage. `interface` may be NULL. Unreadable fields are 0. */
void perf_usage_now(const char *interface, struct perf_usage *usage);

/* ---- Measurements over nodes (coll and p2p) ---- */

/* Sizes, repetitions and nodes, in the manner of nccl-tests. */
struct perf_run {
    size_t min_bytes, max_bytes, step_bytes; /* step_bytes 0: times factor */
    int factor;
    int nodes, iterations, warmup, channels, repetitions;
    size_t buff_size, chunk; /* chunk 0: NCCL's choice */
    const char *types;       /* comma-separated names, NULL: the part's own */
    const char *ops;
    const char *json;
    const char *plugin;  /* path of a shared object. NULL: the code linked into this program */
    const char *cpus;    /* p2p: the nodes' CPUs, see perf_pin. NULL: the kernel's choice */
    const char *threads; /* coll: numbers of codec threads to compare. NULL: no comparison */
    double share;        /* coll: percent of a processor, see perf_share. 0: unlimited */
    bool quiet;          /* print rows only at the end */
    /* Over machines: this node's number (nodes 0: all are processes of this machine), or the hosts to start
     * nodes on. */
    struct place place;
    struct hosts hosts;
    bool tied; /* hosts_run started this node */
    bool raw, log;
    bool compare;      /* coll: everything raw, too, in turns */
    const char *netns; /* prefix of the names of existing network namespaces. NULL: loopback */
    bool nocopy, bidirectional, feedback, help;
    int streams;
    double pause_s;     /* before each repetition */
    double weight_step; /* rms of a weight's change over its own between two gathers */
    double changed;     /* p2p: percent of the values that change from transfer to transfer. < 0: all stay */
    const char *env[27];
    int nenv;
};

/* Fill in defaults, then read the arguments. Return false after a message. */
bool perf_run_parse(int argc, char **argv, const char *part, struct perf_run *run);
/* Return the next size of the series, 0 after the last. */
size_t perf_run_next(const struct perf_run *run, size_t bytes);

struct hx_node;
struct hx_job;

struct hx_report;

/* Most repetitions of one measurement. The table has their median. */
#define PERF_MOST_REPETITIONS 64

/* One line of the table, which nodes pass to their parent. */
struct perf_row {
    char op[24], type[12];
    int nodes, channels, repetitions;
    uint64_t bytes, chunk;
    double raw_us;                  /* --compare: median of the same operations, raw. NAN: not compared */
    double time_us, min_us, max_us; /* median, least and most of the repetitions */
    double algbw, busbw, wire_ratio, nmse; /* NAN: unknown */
    double wrong; /* values further from the exact result than the code allows, of the checked values. NAN:
                  not checked */
    /* The same in place. NAN: not measured. */
    double in_place_us, in_place_algbw, in_place_busbw, in_place_wrong;
    double cpu;  /* processors that the nodes kept busy, together */
    double busy; /* busy share of the machine's processors */
    double engine_us,
        codec_us;      /* processor time of one operation on a node: the engine's thread, codec threads */
    bool quiet;        /* print the row only at the end */
    double link_bytes; /* of one operation through the busiest direction of a node's link */
};
/* Return a row without figures. */
struct perf_row perf_row_make(const struct perf_run *run, const char *op, const char *type, uint64_t bytes);
/* Fill in times from every node's seconds[repetitions] of one operation, and the nodes' usage from before to
 * after for `operations` of them. All nodes call. */
void perf_row_measured(struct perf_row *row, struct hx_node *node, const double *seconds,
                       const struct perf_usage *before, const struct perf_usage *after, int operations);
void perf_row_header(bool compare);
void perf_row_print(const struct perf_row *row);
void perf_row_json(struct perf_json *json, const struct perf_row *row);

/* Add a row of a job: node 0 prints it and keeps it in its scratch memory. The parent writes the file. */
void perf_row_add(struct hx_node *node, const struct perf_row *row);
/* Return the number of rows that a job has passed on. `row`, if not NULL, gets row `number`, if it exists. */
uint64_t perf_rows_of(const struct hx_report *report, struct perf_row *row, uint64_t number);
/* Run the job with each of run->threads in turns, run->repetitions times, and print the results. Return the
 * exit status. */
int perf_threads(const struct hx_job *job, const struct perf_run *run);
/* Run the job, or its node of run->place (place.nodes 0: all), and write the file. Return the exit status. */
int perf_rows_job(const struct hx_job *job, const struct perf_run *run);

#endif
