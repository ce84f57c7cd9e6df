/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver for a fuzz target where clang's libFuzzer is missing: it replays a corpus, then runs random
 * mutations of it for some time. It has no coverage feedback, but the same random numbers in every run.
 *
 *   TARGET [-seconds=N] [-runs=N] [-seed=N] [-crash=FILE] FILE_OR_DIRECTORY...
 *
 * When an input makes the target abort or crash, the driver writes it to FILE and ends with status 1.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define MOST_BYTES 65536u

struct file {
    uint8_t *bytes;
    size_t size;
};

static struct file *corpus;
static size_t corpus_files;
static uint8_t input[MOST_BYTES];
static size_t input_size;
static const char *crash_path = "crash";

/* Async-signal-safe: the input lies in a global. */
static void crashed(int sig)
{
    static const char text[] = "the target crashed; its input was written to the crash file\n";
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    if (fd < 0 || write(fd, input, input_size) != (ssize_t)input_size || write(2, text, sizeof(text) - 1) < 0)
        _exit(2);
    (void)sig;
    _exit(1);
}

static void load_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct file file = {fuzz_alloc(MOST_BYTES, 0), 0};

    if (!f) {
        fprintf(stderr, "cannot open %s\n", path);
        exit(2);
    }
    file.size = fread(file.bytes, 1, MOST_BYTES, f);
    fclose(f);
    corpus = realloc(corpus, (corpus_files + 1) * sizeof(*corpus));
    FUZZ_CHECK(corpus != NULL);
    corpus[corpus_files++] = file;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void load(const char *path)
{
    struct dirent **names;
    struct stat st;
    int n;

    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        load_file(path);
        return;
    }
    n = scandir(path, &names, NULL, by_name); /* the order must not depend on the file system */
    if (n < 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    for (int i = 0; i < n; i++) {
        char full[4096];
        snprintf(full, sizeof(full), "%s/%s", path, names[i]->d_name);
        if (names[i]->d_name[0] != '.')
            load_file(full);
        free(names[i]);
    }
    free(names);
}

static void mutate(uint64_t *rng)
{
    static const uint64_t odd[] = {0,   1,   2,    31,   32,   33,    127,      128,
                                   255, 256, 4095, 4096, 4097, 65535, 1u << 31, UINT64_MAX};
    uint64_t r = fuzz_random(rng);
    size_t at = input_size ? fuzz_random(rng) % input_size : 0, other, len;

    switch (input_size < 4 ? 4 : r % 8) {
    case 0: input[at] ^= (uint8_t)(1 << (r >> 8) % 8); break;
    case 1: input[at] = (uint8_t)(r >> 8); break;
    case 2: { /* a number at which behaviour changes */
        uint64_t v = odd[(r >> 8) % (sizeof(odd) / sizeof(odd[0]))];
        len = (size_t)1 << (r >> 16) % 4;
        memcpy(input + at, &v, len < input_size - at ? len : input_size - at);
        break;
    }
    case 3: /* the head matters most */
        input[fuzz_random(rng) % (input_size < 24 ? input_size : 24)] = (uint8_t)(r >> 8);
        break;
    case 4: /* insert */
        len = 1 + (r >> 8) % 64;
        if (input_size + len <= MOST_BYTES) {
            memmove(input + at + len, input + at, input_size - at);
            for (size_t i = 0; i < len; i++)
                input[at + i] = (uint8_t)(r >> 20 & 1 ? 0 : fuzz_random(rng));
            input_size += len;
        }
        break;
    case 5: /* delete */
        len = 1 + (r >> 8) % 64;
        if (at + len < input_size) {
            memmove(input + at, input + at + len, input_size - at - len);
            input_size -= len;
        }
        break;
    case 6: /* truncate, now and then */
        if ((r >> 8) % 4 == 0)
            input_size = at;
        break;
    default: { /* a piece of another file at the same place */
        const struct file *f = &corpus[(r >> 8) % corpus_files];
        other = f->size < input_size ? f->size : input_size;
        if (at < other) {
            len = 1 + (r >> 40) % (other - at);
            memcpy(input + at, f->bytes + at, len);
        }
    }
    }
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    double seconds = 10, start, used;
    uint64_t runs = UINT64_MAX, rng = 1, done = 0;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "-seconds=", 9) == 0)
            seconds = atof(argv[i] + 9);
        else if (strncmp(argv[i], "-runs=", 6) == 0)
            runs = strtoull(argv[i] + 6, NULL, 0);
        else if (strncmp(argv[i], "-seed=", 6) == 0)
            rng = strtoull(argv[i] + 6, NULL, 0) | 1;
        else if (strncmp(argv[i], "-crash=", 7) == 0)
            crash_path = argv[i] + 7;
        else
            load(argv[i]);
    }
    if (corpus_files == 0) {
        fprintf(stderr, "%s: no corpus given\n", argv[0]);
        return 2;
    }
    signal(SIGABRT, crashed);
    signal(SIGSEGV, crashed);
    signal(SIGBUS, crashed);
    signal(SIGFPE, crashed);
    signal(SIGILL, crashed);
    start = now();
    for (size_t i = 0; i < corpus_files; i++, done++) {
        memcpy(input, corpus[i].bytes, corpus[i].size);
        input_size = corpus[i].size;
        LLVMFuzzerTestOneInput(input, input_size);
    }
    while (done < runs && now() - start < seconds) {
        const struct file *f = &corpus[fuzz_random(&rng) % corpus_files];
        memcpy(input, f->bytes, f->size);
        input_size = f->size;
        for (unsigned n = 1 + (unsigned)(fuzz_random(&rng) % 6); n; n--)
            mutate(&rng);
        LLVMFuzzerTestOneInput(input, input_size);
        done++;
    }
    used = now() - start;
    printf("%zu files of the corpus, %llu runs in %.1f s\n", corpus_files, (unsigned long long)done, used);
    for (size_t i = 0; i < corpus_files; i++)
        free(corpus[i].bytes);
    free(corpus);
    return 0;
}
