/* SPDX-License-Identifier: Apache-2.0 */
/* See emit.h. */
#include "emit.h"

#include <math.h>

#include "tools/output.h"

void emit_begin(struct emit *e, FILE *out, bool json)
{
    *e = (struct emit){.out = out, .json = json};
    if (json)
        fputc('{', out);
}

static void end_row(struct emit *e)
{
    if (e->rows)
        fputs(e->json ? "}" : "\n", e->out);
}

static void end_section(struct emit *e)
{
    if (!e->sections)
        return;
    end_row(e);
    if (e->json)
        fputs("]", e->out);
    else if (!e->rows)
        fputs("  none\n", e->out);
}

void emit_section(struct emit *e, const char *name, const char *title)
{
    end_section(e);
    if (e->json)
        fprintf(e->out, "%s\n  \"%s\": [", e->sections ? "," : "", name);
    else
        fprintf(e->out, "%s%s%s\n", output_colour(e->out, OUTPUT_BOLD), title,
                output_colour(e->out, OUTPUT_PLAIN));
    e->sections++;
    e->rows = 0;
}

void emit_row(struct emit *e)
{
    end_row(e);
    if (e->json)
        fputs(e->rows ? ",\n    {" : "\n    {", e->out);
    e->rows++;
    e->values = 0;
}

static void quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            fprintf(out, "\\%c", *p);
        else if (*p < 0x20)
            fprintf(out, "\\u%04x", *p);
        else
            fputc(*p, out);
    }
    fputc('"', out);
}

static void key_of(struct emit *e, const char *key)
{
    if (e->json)
        fprintf(e->out, "%s\"%s\": ", e->values ? ", " : "", key);
    else
        fprintf(e->out, "  %s%s", e->values ? key : "", e->values ? "=" : "");
    e->values++;
}

void emit_text(struct emit *e, const char *key, const char *value)
{
    if (!e->json && (!value || !*value))
        return;
    key_of(e, key);
    if (!e->json)
        fputs(value, e->out);
    else if (value)
        quoted(e->out, value);
    else
        fputs("null", e->out);
}

void emit_number(struct emit *e, const char *key, double value)
{
    key_of(e, key);
    if (isfinite(value))
        fprintf(e->out, "%.6g", value);
    else
        fputs(e->json ? "null" : "?", e->out);
}

void emit_flag(struct emit *e, const char *key, bool value)
{
    key_of(e, key);
    fputs(e->json ? value ? "true" : "false" : value ? "yes" : "no", e->out);
}

int emit_end(struct emit *e)
{
    end_section(e);
    if (e->json)
        fputs("\n}\n", e->out);
    return fflush(e->out) || ferror(e->out) ? -1 : 0;
}
