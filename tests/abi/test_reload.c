/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load, init, use, finalize and unload a hundred times in one process, as NCCL does when the last
 * communicator goes and the next one comes. The process must not grow. A plain program, because Check's forks
 * would hide a leak.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nibble/nccl_net.h"
#include "tests/base/capture.h"
#include "tests/base/environment.h"

#define WARM_UP 20 /* rounds until the C library's caches of freed memory are full */
#define ROUNDS 100
#define HEAP_SLACK 1024 /* bytes. The smallest object, leaked once a round, is three times that */

static int count_entries(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = 0;
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static int maps(void)
{
    FILE *in = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; in && (c = getc(in)) != EOF;)
        lines += c == '\n';
    if (in)
        fclose(in);
    return lines;
}

#define MUST(call) \
    do { \
        ncclResult_t res_ = (call); \
        if (res_ != ncclSuccess) { \
            fprintf(stderr, "round %d: " #call " gave %d\n%s", round, res_, capture_text); \
            return -1; \
        } \
    } while (0)

static int one_round(int round)
{
    capture_reset();
    void *lib = dlopen(environment_plugin(), RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    const ncclNet_v12_t *net = dlsym(lib, "ncclNetPlugin_v12");
    const ncclCollNet_v12_t *coll = dlsym(lib, "ncclCollNetPlugin_v12");
    if (!net || !coll) {
        fprintf(stderr, "round %d: tables are missing\n", round);
        return -1;
    }
    ncclNetCommConfig_v12_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
    void *net_ctx = NULL;
    void *coll_ctx = NULL;
    MUST(net->init(&net_ctx, 5, &config, capture_log, NULL));
    MUST(coll->init(&coll_ctx, 5, capture_log));
    int ndev = 0;
    MUST(net->devices(&ndev));
    MUST(coll->devices(&ndev));

    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    void *listener = NULL;
    void *sender = NULL;
    void *receiver = NULL;
    MUST(net->listen(net_ctx, 0, handle, &listener));
    for (long i = 0; i < 10000000 && !(sender && receiver); i++) {
        if (!sender)
            MUST(net->connect(net_ctx, 0, handle, &sender, NULL));
        if (!receiver)
            MUST(net->accept(listener, &receiver, NULL));
    }
    if (!sender || !receiver) {
        fprintf(stderr, "round %d: no connection\n", round);
        return -1;
    }
    MUST(net->closeSend(sender));
    MUST(net->closeRecv(receiver));
    MUST(net->closeListen(listener));
    void *coll_listener = NULL;
    MUST(coll->listen(coll_ctx, 0, handle, &coll_listener));
    MUST(coll->closeListen(coll_listener));

    MUST(net->finalize(net_ctx));
    MUST(coll->finalize(coll_ctx));
    dlclose(lib);
    if (capture_warnings) {
        fprintf(stderr, "round %d warned:\n%s", round, capture_text);
        return -1;
    }
    return 0;
}

int main(void)
{
    environment_clear();
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    int fds = 0;
    int threads = 0;
    int mappings = 0;
    size_t heap = 0;
    for (int round = 0; round < WARM_UP + ROUNDS; round++) {
        if (round == WARM_UP) {
            fds = count_entries("/proc/self/fd");
            threads = count_entries("/proc/self/task");
            mappings = maps();
            heap = mallinfo2().uordblks;
        }
        if (one_round(round))
            return EXIT_FAILURE;
    }
    int fds_now = count_entries("/proc/self/fd");
    int threads_now = count_entries("/proc/self/task");
    int mappings_now = maps();
    size_t heap_now = mallinfo2().uordblks; /* always 0 under AddressSanitizer, which has its own check */
    printf(
        "after %d rounds: descriptors %d -> %d, threads %d -> %d, mappings %d -> %d, heap %zu -> %zu bytes\n",
        ROUNDS, fds, fds_now, threads, threads_now, mappings, mappings_now, heap, heap_now);
    int bad = fds_now != fds || threads_now != threads || heap_now > heap + HEAP_SLACK;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their allocators map memory freely */
    bad = bad || mappings_now > mappings + 2;
#endif
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
