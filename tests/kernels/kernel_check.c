/* SPDX-License-Identifier: Apache-2.0 */
/* See kernel_check.h. */
#include "kernel_check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/format.h"

static char what[512];

void at_case(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
}

void differs(const char *part)
{
    fprintf(stderr, "%s differs: %s\n", part, what);
    abort();
}

void same(const char *part, const void *is, const void *should, size_t bytes)
{
    const uint8_t *a = is, *b = should;
    for (size_t i = 0; i < bytes; i++)
        if (a[i] != b[i]) {
            fprintf(stderr, "byte %zu of %zu of %s is %02x, not %02x\n", i, bytes, part, a[i], b[i]);
            differs(part);
        }
}

void same_number(const char *part, int64_t is, int64_t should)
{
    if (is != should) {
        fprintf(stderr, "%" PRId64 ", not %" PRId64 "\n", is, should);
        differs(part);
    }
}

/* Compare energies, which are sums in another order. Skip sums of denormal numbers, which prove no error. */
void near(const char *part, double is, double should)
{
    if (is < NB_LEAST_CARRIED && should < NB_LEAST_CARRIED && is >= 0)
        return;
    if (!(is >= should * 0.9999 && is <= should * 1.0001) && !(is != is && should != should)) {
        fprintf(stderr, "%g, not %g\n", is, should);
        differs(part);
    }
}

void golden_open(struct golden_file *f, const char *path)
{
    const size_t most = 1u << 18;
    FILE *file = fopen(path, "rb");

    f->data = malloc(most);
    if (!file || !f->data) {
        fprintf(stderr, "cannot open %s\n", path);
        abort();
    }
    f->at = f->data;
    f->end = f->data + fread(f->data, 1, most, file);
    fclose(file);
}

const uint8_t *golden_next(struct golden_file *f, size_t *bytes)
{
    const uint8_t *data = f->at + 4;

    if (f->end - f->at < 4 || (size_t)(f->end - data) < nb_get32(f->at)) {
        fprintf(stderr, "the file of golden vectors ends early\n");
        abort();
    }
    *bytes = nb_get32(f->at);
    f->at = data + *bytes;
    return data;
}

void golden_close(struct golden_file *f)
{
    free(f->data);
}
