/* SPDX-License-Identifier: Apache-2.0 */
/* What all tools do alike on the command line and on a terminal. */
#ifndef NIBBLE_TOOLS_OUTPUT_H
#define NIBBLE_TOOLS_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

/* At the end of the process, write the rest of stdout. Where that fails, or any write to stdout failed
 * before, print a line on stderr and end with `status`. Call it first in main. */
void output_check(int status);
/* Close a file. Where a write to it failed, print a line on stderr, cut the file (if it is a regular one)
 * after its first `whole` bytes, write `end` there, and return false: no reader finds half a record. */
bool output_close(FILE *f, const char *path, long whole, const char *end);

/* ---- messages about options ---- */

struct option;

/* Return the option of getopt_long's result `c`, "--name" or "-c". Static storage. */
const char *option_name(int c, const struct option *longs);
/* Print `TOOL: OPTION: "VALUE": it must be ALLOWED` on stderr. Return false. */
bool option_wrong(const char *option, const char *value, const char *allowed);
/* Read a whole number, or a number, from `low` to `high` into *out. Return false after such a message. */
bool option_whole(const char *option, const char *value, long low, long high, int *out);
bool option_number(const char *option, const char *value, double low, double high, double *out);

/* ---- terminals ---- */

/* Return the sequence that switches a terminal to this colour. Return "" where `to` is no terminal, NO_COLOR
 * is set, TERM is dumb, or Open MPI made the terminal. */
enum output_colour { OUTPUT_PLAIN, OUTPUT_BOLD, OUTPUT_RED, OUTPUT_GREEN, OUTPUT_YELLOW, OUTPUT_COLOURS };
const char *output_colour(FILE *to, enum output_colour colour);

/* Where stderr is a terminal, show a line of progress there, in place of the last one, from three seconds
 * after the first call on. Other output overwrites it, and output_progress_end takes it away. */
void output_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void output_progress_end(void);

#endif
