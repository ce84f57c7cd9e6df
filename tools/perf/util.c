/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, medians, sizes, lists and JSON for nibble-perf. */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nibble/codec.h"
#include "perf.h"
#include "tools/output.h"

double perf_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double perf_median(double *v, size_t n)
{
    if (n == 0)
        return NAN;
    qsort(v, n, sizeof(*v), ascending);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

int perf_pin(const char *list, int rank)
{
    long cpu[CPU_SETSIZE];
    int n = 0;
    cpu_set_t set;

    for (const char *at = list;; at++) {
        char *end;

        cpu[n++] = strtol(at, &end, 10);
        if (*at < '0' || *at > '9' || cpu[n - 1] >= CPU_SETSIZE ||
            (*end && (*end != ',' || n == CPU_SETSIZE)))
            return -EINVAL;
        if (!*end)
            break;
        at = end;
    }
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu[rank % n], &set);
    return sched_setaffinity(0, sizeof(set), &set) ? -errno : 0;
}

bool perf_parse_size(const char *text, size_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    const char *unit;
    unsigned long long v;

    if (*text < '0' || *text > '9')
        return false;
    v = strtoull(text, &end, 10);
    if (*end) {
        unit = strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end);
        if (!unit || end[1] || v > (SIZE_MAX >> (10 * (unit - units + 1))))
            return false;
        v <<= 10 * (unit - units + 1);
    }
    *bytes = (size_t)v;
    return true;
}

const char *perf_type_name(int i)
{
    return i < NB_DTYPE_COUNT ? nb_dtype_name((enum nb_dtype)i) : NULL;
}

bool perf_words(const char *option, const char *list, const char *(*name)(int))
{
    const char *end;
    int i;

    for (const char *at = list; at && *list; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, ",");
        for (i = 0; name(i); i++)
            if (strlen(name(i)) == (size_t)(end - at) && memcmp(at, name(i), (size_t)(end - at)) == 0)
                break;
        if (name(i))
            continue;
        fprintf(stderr, "nibble-perf: %s: \"%.*s\" is none of ", option, (int)(end - at), at);
        for (i = 0; name(i); i++)
            fprintf(stderr, "%s%s", i ? ", " : "", name(i));
        fputc('\n', stderr);
        return false;
    }
    return true;
}

int perf_numbers(const char *option, const char *list, double low, double high, double *number, int most)
{
    int n = 0;

    for (const char *at = list;; at++) {
        char *end;
        const double v = strtod(at, &end);

        if (end == at || (*end && *end != ',') || !(v >= low && v <= high) || n == most) {
            fprintf(stderr, "nibble-perf: %s: \"%s\" is no list of 1 to %d numbers from %g to %g\n", option,
                    list, most, low, high);
            return 0;
        }
        number[n++] = v;
        if (!*end)
            return n;
        at = end;
    }
}

bool perf_listed(const char *list, const char *word)
{
    const size_t n = strlen(word);

    if (!list || !*list)
        return true;
    while (*list) {
        const size_t len = strcspn(list, ",");
        if (len == n && strncmp(list, word, n) == 0)
            return true;
        list += len + (list[len] == ',');
    }
    return false;
}

struct perf_json {
    FILE *f;
    const char *path;
    int objects, keys;
    long whole; /* bytes of the file up to the end of the last object that was written whole */
};

bool perf_json_open(const char *path, struct perf_json **json)
{
    *json = NULL;
    if (!path)
        return true;
    *json = calloc(1, sizeof(**json));
    if (*json)
        (*json)->f = fopen(path, "w");
    if (!*json || !(*json)->f) {
        fprintf(stderr, "nibble-perf: cannot write %s: %s\n", path, strerror(errno));
        free(*json);
        *json = NULL;
        return false;
    }
    (*json)->path = path;
    fputs("[", (*json)->f);
    if (fflush((*json)->f) == 0)
        (*json)->whole = 1;
    return true;
}

void perf_json_begin(struct perf_json *json)
{
    if (json)
        fputs(json->objects++ ? ",\n  {" : "\n  {", json->f);
    if (json)
        json->keys = 0;
}

static void key_of(struct perf_json *json, const char *key)
{
    fprintf(json->f, "%s\"%s\": ", json->keys++ ? ", " : "", key);
}

/* Values are names of this program, which need no escaping. */
void perf_json_text(struct perf_json *json, const char *key, const char *value)
{
    if (!json)
        return;
    key_of(json, key);
    fprintf(json->f, "\"%s\"", value);
}

void perf_json_number(struct perf_json *json, const char *key, double value)
{
    if (!json)
        return;
    key_of(json, key);
    if (isfinite(value))
        fprintf(json->f, "%.9g", value);
    else
        fputs("null", json->f);
}

void perf_json_end(struct perf_json *json)
{
    if (!json)
        return;
    fputs("}", json->f);
    if (fflush(json->f) == 0 && !ferror(json->f))
        json->whole = ftell(json->f);
}

int perf_json_close(struct perf_json *json)
{
    bool good;

    if (!json)
        return 0;
    fputs("\n]\n", json->f);
    good = output_close(json->f, json->path, json->whole, json->whole ? "\n]\n" : "");
    free(json);
    return !good;
}
