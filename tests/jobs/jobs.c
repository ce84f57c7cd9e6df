/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays jobs to the whole plugin and prints the plugin's decisions for each: see README.md.
 *
 *     tests/jobs/jobs [-v] [-l] [-k] [-s SEED] [NAME...]
 *
 * -l lists the jobs, -v prints the plugin's log, -k prints the present contents of known-violations.txt. A
 * job is right when the plugin quantized and fed no operation wrongly, quantized at least 98 % of the bytes
 * of its gradients from step 60 on, and fed as many as the job's settings say. known-violations.txt lists the
 * known violations. Exit status 0: all jobs do as expected. 1: one does better or worse.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/job.h"

static const struct job_entry *const tables[] = {
    jobs_data_parallel, jobs_sharded, jobs_model_parallel, jobs_local,        jobs_others,
    jobs_consequences,  jobs_passes,  jobs_fresh_sharded,  jobs_fresh_others, jobs_fresh_tables};
#define TABLES (sizeof(tables) / sizeof(tables[0]))
#define SHARE 0.98

/* ---- known violations ---------------------------------------------------------------------------------- */

enum { QUANTIZED = 1, FED = 2, UNCOMPRESSED = 4, UNFED = 8, KINDS = 4 };
static const struct {
    const char *word, *text;
} kinds[] = {{"quantized", "quantized, though no gradient"},
             {"fed", "fed with another buffer's error"},
             {"uncompressed", "gradients that were not quantized"},
             {"unfed", "gradients without feedback, which this job has to have"}};

#define MOST 200
static struct known {
    char job[64], reason[160];
    int kinds, seen;
} known[MOST];
static int knowns;

/* Read the file. Lines: name, colon, kinds separated by commas, colon, reason. Return 0, or -1 after a
 * message. */
static int read_known(const char *path)
{
    FILE *f = fopen(path, "r");
    char line[400], list[64];

    if (!f) {
        fprintf(stderr, "%s cannot be read\n", path);
        return -1;
    }
    while (fgets(line, sizeof(line), f)) {
        struct known *k = &known[knowns];
        if (line[0] == '#' || line[0] == '\n')
            continue;
        if (knowns == MOST || sscanf(line, "%63[^:]: %63[^:]: %159[^\n]", k->job, list, k->reason) != 3) {
            fprintf(stderr, "%s: no \"job: kinds: reason\": %s", path, line);
            fclose(f);
            return -1;
        }
        for (char *save = NULL, *word = strtok_r(list, ", ", &save); word;
             word = strtok_r(NULL, ", ", &save)) {
            int found = 0;
            for (int i = 0; i < KINDS; i++)
                if (strcmp(word, kinds[i].word) == 0)
                    found = 1 << i;
            if (!found) {
                fprintf(stderr, "%s: \"%s\" is no kind of violation\n", path, word);
                fclose(f);
                return -1;
            }
            k->kinds |= found;
        }
        knowns++;
    }
    fclose(f);
    return 0;
}

static struct known *known_of(const char *job)
{
    for (int i = 0; i < knowns; i++)
        if (strcmp(known[i].job, job) == 0)
            return &known[i];
    return NULL;
}

/* ---- jobs ---------------------------------------------------------------------------------------------- */

static struct {
    int jobs, right, known, unexpected;
} total;

static int violations(const struct job_entry *e, const struct verdict *v)
{
    int kinds_seen = 0;

    if (v->quantized_wrongly)
        kinds_seen |= QUANTIZED;
    if (v->fed_wrongly)
        kinds_seen |= FED;
    if ((double)v->late_coded < SHARE * (double)v->late_bytes)
        kinds_seen |= UNCOMPRESSED;
    if ((double)v->late_fed * 100 < e->settings.fed * (double)v->late_bytes)
        kinds_seen |= UNFED;
    return kinds_seen;
}

static void print(const char *name, const struct verdict *v, double seconds, const char *result)
{
    const double all = v->late_bytes ? (double)v->late_bytes : 1.0;

    printf("%-28s %6lu %6lu %6lu ", name, (unsigned long)v->sums, (unsigned long)v->quantized_wrongly,
           (unsigned long)v->fed_wrongly);
    if (v->late_bytes)
        printf("%7.1f %7.1f", 100 * (double)v->late_coded / all, 100 * (double)v->late_fed / all);
    else
        printf("%7s %7s", "-", "-");
    printf(" %5.2f  %s\n", seconds, result);
}

/* Print the line for known-violations.txt, with a placeholder for the reason. */
static void print_known(const char *name, const struct verdict *v, int seen)
{
    const char *comma = "";

    printf("%s: ", name);
    for (int i = 0; i < KINDS; i++)
        if (seen >> i & 1) {
            printf("%s%s", comma, kinds[i].word);
            comma = ", ";
        }
    printf(": %s%s%s\n", seen & (QUANTIZED | FED) ? v->wrong : "",
           seen & UNCOMPRESSED && seen & (QUANTIZED | FED) ? "; " : "",
           seen & UNCOMPRESSED ? v->uncompressed : "");
}

static void play(const struct job_entry *e, uint64_t seed, int loud, int known_only)
{
    const struct known *k = known_of(e->name);
    const clock_t begin = clock();
    struct verdict v;
    int seen, expected = k ? k->kinds : 0;

    if (loud)
        printf("%s:\n", e->name);
    job_play(e, seed + (uint64_t)e->settings.seed, loud, &v);
    seen = violations(e, &v);
    if (known_only && seen)
        print_known(e->name, &v, seen);
    if (known_only)
        return;
    total.jobs++;
    total.right += !seen && !expected && !v.confused;
    total.known += seen && seen == expected && !v.confused;
    print(e->name, &v, (double)(clock() - begin) / CLOCKS_PER_SEC,
          seen != expected ? "UNEXPECTED"
          : seen           ? "known to be wrong"
          : v.confused     ? "UNEXPECTED"
                           : "right");
    if (seen == expected && !v.confused)
        return;
    total.unexpected++;
    for (int i = 0; i < KINDS; i++)
        if ((seen ^ expected) >> i & 1)
            printf("    %s: %s\n", seen >> i & 1 ? "NEW" : "NO LONGER (take it out of known-violations.txt)",
                   kinds[i].text);
    if (v.wrong[0])
        printf("    first: %s\n", v.wrong);
    if (seen & UNCOMPRESSED)
        printf("    not quantized: %s\n", v.uncompressed);
    if (v.confused)
        printf("    %d times out of order, or warnings: %s\n", v.confused, v.warning);
}

static int asked_for(const char *name, char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return 1;
    return n == 0;
}

int main(int argc, char **argv)
{
    const char *srcdir = getenv("NB_SRCDIR"), *quick = getenv("NB_TEST_QUICK");
    char path[1024];
    int at = 1, loud = 0, list = 0, lines = 0, number = 0;
    uint64_t seed = 1;

    for (; at < argc && argv[at][0] == '-'; at++) {
        loud |= strcmp(argv[at], "-v") == 0;
        list |= strcmp(argv[at], "-l") == 0;
        lines |= strcmp(argv[at], "-k") == 0;
        if (strcmp(argv[at], "-s") == 0 && at + 1 < argc)
            seed = strtoull(argv[++at], NULL, 10);
    }
    snprintf(path, sizeof(path), "%s/tests/jobs/known-violations.txt", srcdir ? srcdir : NB_SOURCE);
    if (read_known(path))
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!list && !lines)
        printf("%-28s %6s %6s %6s %7s %7s %5s\n%-28s %6s %6s %6s %7s %7s %5s\n", "", "", "quant.", "fed",
               "coded", "fed", "", "job", "sums", "wrong", "wrong", "%", "%", "s");
    for (size_t t = 0; t < TABLES; t++)
        for (const struct job_entry *e = tables[t]; e->name; e++) {
            struct known *k = known_of(e->name);
            if (k)
                k->seen = 1;
            if (!asked_for(e->name, argv + at, argc - at) ||
                (quick && *quick == '1' && argc == at && number++ % 15)) /* one in 15, of all kinds */
                continue;
            if (list)
                printf("%s\n", e->name);
            else
                play(e, seed, loud, lines);
        }
    for (int i = 0; i < knowns; i++)
        if (!known[i].seen) {
            printf("known-violations.txt names %s, and there is no such job\n", known[i].job);
            total.unexpected++;
        }
    if (list || lines)
        return 0;
    for (int i = 0; i < knowns && argc == at; i++)
        printf("%s %s: %s\n", i ? "        " : "\nKNOWN TO BE WRONG:\n        ", known[i].job,
               known[i].reason);
    printf("\n%d jobs: %d right, %d known to be wrong, %d unexpected\n", total.jobs, total.right, total.known,
           total.unexpected);
    return total.unexpected || !total.jobs;
}
