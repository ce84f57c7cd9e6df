/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts as text or as JSON: sections of rows of named values. As text a section is a heading with a line a
 * row; as JSON the whole is one object, with a list of flat objects for each section.
 */
#ifndef NIBBLE_TOOLS_INFO_EMIT_H
#define NIBBLE_TOOLS_INFO_EMIT_H

#include <stdbool.h>
#include <stdio.h>

struct emit {
    FILE *out;
    bool json;
    int sections, rows, values; /* begun: of the whole, of the section, of the row */
};

void emit_begin(struct emit *e, FILE *out, bool json);
/* `name` is the JSON key, `title` the heading. Ends the section before. */
void emit_section(struct emit *e, const char *name, const char *title);
void emit_row(struct emit *e);
/* Values of the row. As text a value without a key stands alone; NULL and "" are left out there. */
void emit_text(struct emit *e, const char *key, const char *value);
void emit_number(struct emit *e, const char *key, double value);
void emit_flag(struct emit *e, const char *key, bool value);
/* 0, or -1: not everything could be written. */
int emit_end(struct emit *e);

#endif
