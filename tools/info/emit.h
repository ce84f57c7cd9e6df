/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write facts as text or as JSON: sections of rows of named values. In text a section is a heading with a
 * line for each row. In JSON the whole is one object, with a list of flat objects for each section.
 */
#ifndef NIBBLE_TOOLS_INFO_EMIT_H
#define NIBBLE_TOOLS_INFO_EMIT_H

#include <stdbool.h>
#include <stdio.h>

struct emit {
    FILE *out;
    bool json;
    int sections, rows, values; /* begun so far: of the whole, of the section, of the row */
};

void emit_begin(struct emit *e, FILE *out, bool json);
/* Begin a section and end the last one. `name` is the JSON key, `title` the heading. */
void emit_section(struct emit *e, const char *name, const char *title);
void emit_row(struct emit *e);
/* Add a value to the row. In text a value without a key stands alone, and NULL and "" are left out. */
void emit_text(struct emit *e, const char *key, const char *value);
void emit_number(struct emit *e, const char *key, double value);
void emit_flag(struct emit *e, const char *key, bool value);
/* Return 0, or -1 when writing failed. */
int emit_end(struct emit *e);

#endif
