// SPDX-License-Identifier: Apache-2.0
// What plugin/base/old_glibc.c and old_glibc_start.c bind to old symbols does what it did: the exit status is the number of a
// wrong answer, or 0. packages/test-old-glibc.sh links it with both, for each architecture that they know.
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPECT(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            return 1; \
        } \
    } while (0)

int __isoc23_sscanf(const char *text, const char *format, ...);
int __isoc23_fscanf(FILE *file, const char *format, ...);
long __isoc23_strtol(const char *text, char **end, int base);
long long __isoc23_strtoll(const char *text, char **end, int base);
unsigned long __isoc23_strtoul(const char *text, char **end, int base);
unsigned long long __isoc23_strtoull(const char *text, char **end, int base);

static int constructed, arguments, once;

__attribute__((constructor)) static void construct(int argc, char **argv, char **envp)
{
    constructed++;
    arguments = argc == 3 && argv[3] == NULL && envp == argv + 4;
}

static void count_once(void)
{
    once++;
}

static void *body(void *arg)
{
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    return strcmp(name, "nibble") ? NULL : arg;
}

static int threads(void)
{
    pthread_t thread;
    pthread_attr_t attr;
    pthread_once_t control = PTHREAD_ONCE_INIT;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_condattr_t condattr;
    pthread_cond_t cond;
    struct timespec now;
    sigset_t set, old;
    cpu_set_t cpus;
    void *result = NULL;

    EXPECT(
        !pthread_setname_np(pthread_self(), "nibble")); // a new thread has the name of the one that makes it
    EXPECT(!pthread_create(&thread, NULL, body, &once) && !pthread_join(thread, &result) && result == &once);
    EXPECT(!pthread_create(&thread, NULL, body, &once) && !pthread_detach(thread));
    EXPECT(!pthread_once(&control, count_once) && !pthread_once(&control, count_once) && once == 1);
    EXPECT(!pthread_mutex_trylock(&mutex) && pthread_mutex_trylock(&mutex));
    EXPECT(!pthread_condattr_init(&condattr) && !pthread_condattr_setclock(&condattr, CLOCK_MONOTONIC));
    EXPECT(!pthread_cond_init(&cond, &condattr) && !clock_gettime(CLOCK_MONOTONIC, &now));
    EXPECT(pthread_cond_timedwait(&cond, &mutex,
                                  &now)); // would be in the past for the other clock, too, but returns
    EXPECT(!sigemptyset(&set) && !sigaddset(&set, SIGUSR1) && !pthread_sigmask(SIG_BLOCK, &set, NULL));
    EXPECT(!pthread_sigmask(SIG_SETMASK, NULL, &old) && sigismember(&old, SIGUSR1) == 1);
    EXPECT(!sched_getaffinity(0, sizeof(cpus), &cpus));
    EXPECT(!pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus));
    EXPECT(!pthread_attr_init(&attr));
    return 0;
}

static int loading(void)
{
    Dl_info info;
    void *libm = dlopen("libm.so.6", RTLD_NOW);
    EXPECT(libm && dlsym(libm, "log2"));
    EXPECT(!dlvsym(libm, "log2", "GLIBC_0.1") && dlerror());
    EXPECT(dladdr(dlsym(libm, "log2"), &info) && strstr(info.dli_fname, "libm"));
    EXPECT(!dlclose(libm) && !dlopen("/nowhere/libnone.so", RTLD_NOW) && dlerror());
    return 0;
}

// files FILE LINK: FILE holds "12345 ", LINK points to it
static int files(const char *file, const char *link)
{
    struct stat a, b, c;
    int number = 0;
    FILE *f = fopen(file, "r");
    EXPECT(f && !stat(link, &a) && !lstat(link, &b) && !fstat(fileno(f), &c));
    EXPECT(S_ISREG(a.st_mode) && S_ISLNK(b.st_mode) && a.st_ino == c.st_ino && a.st_ino != b.st_ino);
    EXPECT(a.st_size == 6 && c.st_size == 6 && a.st_mtim.tv_nsec == c.st_mtim.tv_nsec);
    EXPECT(__isoc23_fscanf(f, "%d", &number) == 1 && number == 12345);
    EXPECT(stat("/nowhere", &a) == -1);
    fclose(f);
    return 0;
}

int main(int argc, char **argv)
{
    int number = 0;
    volatile double eight = 8; // so that the compiler does not know the answers
    (void)argc;
    EXPECT(constructed == 1 && arguments);
    EXPECT(log2(eight) == 3 && exp2(eight) == 256 && pow(eight, 2) == 64 && log(eight - 7) == 0 &&
           isnan(log2(-eight)));
    EXPECT(__isoc23_sscanf("x 17", "x %d", &number) == 1 && number == 17);
    EXPECT(__isoc23_strtol("-5", NULL, 10) == -5 && __isoc23_strtoll("-1f", NULL, 16) == -31);
    EXPECT(__isoc23_strtoul("5", NULL, 10) == 5 && __isoc23_strtoull("010", NULL, 0) == 8);
    return threads() || loading() || files(argv[1], argv[2]);
}
