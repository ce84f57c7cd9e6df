/* SPDX-License-Identifier: Apache-2.0 */
/* Read measurements of nibble-perf and bench.sh. Both write one object, or one sample, a line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

/* Read the value behind "key": in a line of JSON, without quotes. */
static bool value_of(const char *line, const char *key, char *out, size_t cap)
{
    char quoted[40];
    const char *at;
    size_t len;

    snprintf(quoted, sizeof(quoted), "\"%s\": ", key);
    at = strstr(line, quoted);
    if (!at)
        return false;
    at += strlen(quoted);
    at += *at == '"';
    len = strcspn(at, ",}\"");
    snprintf(out, cap, "%.*s", (int)len, at);
    return true;
}

bool nm_read_codec(const char *path, const char *type, struct nb_cost_machine *f)
{
    const struct {
        const char *op;
        double *speed;
    } ops[] = {{"encode", &f->speed.encode},         {"encode_ef", &f->speed.encode_feedback},
               {"decode", &f->speed.decode},         {"decode_add", &f->speed.decode_add},
               {"ulp_encode", &f->speed.ulp_encode}, {"ulp_decode", &f->speed.ulp_decode}};
    const size_t nops = sizeof(ops) / sizeof(ops[0]);
    FILE *in = fopen(path, "re");
    char line[1024], op[32], of[32], text[32];
    size_t found = 0;

    if (!in) {
        fprintf(stderr, "nibble-model: cannot read %s: %s\n", path, strerror(errno));
        return false;
    }
    for (size_t i = 0; i < nops; i++)
        *ops[i].speed = 0;
    while (fgets(line, sizeof(line), in)) {
        if (!value_of(line, "op", op, sizeof(op)) || !value_of(line, "type", of, sizeof(of)) ||
            !value_of(line, "gbps", text, sizeof(text)) || strcmp(of, type) != 0)
            continue;
        for (size_t i = 0; i < nops; i++) {
            const double speed = 1e9 * atof(text);
            if (strcmp(ops[i].op, op) != 0)
                continue;
            found += *ops[i].speed == 0 && speed > 0;
            if (speed > *ops[i].speed)
                *ops[i].speed = speed;
        }
        if (value_of(line, "memcpy_gbps", text, sizeof(text)) && 1e9 * atof(text) > f->copy)
            f->copy = 1e9 * atof(text);
    }
    if (ferror(in)) {
        fprintf(stderr, "nibble-model: cannot read %s: %s\n", path, strerror(errno));
        fclose(in);
        return false;
    }
    fclose(in);
    if (found < nops)
        fprintf(stderr, "nibble-model: %s lacks speeds of %s (write it with nibble-perf codec --json)\n",
                path, type);
    return found == nops;
}

/* ---- bench.sh's samples ---- */

static bool same_case(const struct nm_sample *a, const struct nm_sample *b)
{
    return strcmp(a->set, b->set) == 0 && strcmp(a->tool, b->tool) == 0 &&
           strcmp(a->schedule, b->schedule) == 0 && strcmp(a->op, b->op) == 0 &&
           strcmp(a->type, b->type) == 0 && a->nodes == b->nodes && a->channels == b->channels &&
           a->mbps == b->mbps && a->bytes == b->bytes && a->chunk == b->chunk;
}

static void keep(char *out, size_t cap, const char *field)
{
    snprintf(out, cap, "%s", field);
}

static bool parse(char *line, struct nm_sample *s)
{
    char *field[17], *at = line;
    int n = 0;

    line[strcspn(line, "\r\n")] = 0;
    while (n < 17 && (field[n] = strsep(&at, ",")))
        n++;
    if (n < 17 || at)
        return false;
    memset(s, 0, sizeof(*s));
    keep(s->set, sizeof(s->set), field[0]);
    keep(s->tool, sizeof(s->tool), field[1]);
    keep(s->schedule, sizeof(s->schedule), field[2]);
    s->nodes = atoi(field[3]);
    s->mbps = atof(field[4]);
    keep(s->op, sizeof(s->op), field[5]);
    keep(s->type, sizeof(s->type), field[6]);
    s->bytes = atof(field[7]);
    s->channels = atoi(field[8]);
    s->chunk = atof(field[9]);
    s->seconds = atof(field[11]);
    s->ratio = atof(field[12]);
    s->cpu = atof(field[13]);
    return s->seconds > 0;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Put the medians of equal cases into the first sample of each. Return how many are left. */
static long to_medians(struct nm_sample *s, long n)
{
    double *times = malloc((size_t)n * sizeof(*times));
    long left = 0;

    if (!times)
        return -1;
    for (long i = 0; i < n; i++) {
        size_t m = 0;
        bool seen = false;

        for (long k = 0; k < left && !seen; k++)
            seen = same_case(&s[k], &s[i]);
        if (seen)
            continue;
        for (long k = i; k < n; k++)
            if (same_case(&s[i], &s[k]))
                times[m++] = s[k].seconds;
        qsort(times, m, sizeof(*times), ascending);
        s[left] = s[i];
        s[left++].seconds = m % 2 ? times[m / 2] : (times[m / 2 - 1] + times[m / 2]) / 2;
    }
    free(times);
    return left;
}

long nm_read_bench(const char *path, struct nm_sample **samples)
{
    FILE *in = fopen(path, "re");
    char line[1024];
    long n = 0, room = 0, number = 0;

    *samples = NULL;
    if (!in) {
        fprintf(stderr, "nibble-model: cannot read %s: %s\n", path, strerror(errno));
        return -1;
    }
    while (fgets(line, sizeof(line), in)) {
        if (number++ == 0 || !*line)
            continue; /* names of the columns */
        if (n == room) {
            struct nm_sample *more = realloc(*samples, (size_t)(room = 2 * room + 64) * sizeof(**samples));
            if (!more)
                break;
            *samples = more;
        }
        if (!parse(line, &(*samples)[n])) {
            fprintf(stderr, "nibble-model: %s:%ld is no sample of bench.sh\n", path, number);
            n = -1;
            break;
        }
        n++;
    }
    if (ferror(in)) {
        fprintf(stderr, "nibble-model: cannot read %s: %s\n", path, strerror(errno));
        n = -1;
    }
    fclose(in);
    if (n > 0)
        n = to_medians(*samples, n);
    if (n <= 0) {
        free(*samples);
        *samples = NULL;
    }
    return n;
}
