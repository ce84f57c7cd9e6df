/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Run kernel_speed and ring_speed over the model of the driver (model.h), for gpu-check's --dry. The programs
 * are the same, but the driver, the clock and the codec kernel of the ring belong to the model. Kernels of
 * lists take a time that grows with their values, less than copying takes, and change no memory.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "model_inside.h"
#include "model_program.h"

#undef main /* the main of the other files is speed_main */

#define BYTES_PER_NS 4000.0 /* read and written */
#define TILE ((size_t)4 << 20)

static double busy_ns; /* time of kernels of lists and of copies since driver_start */

int driver_open(void)
{
    return 0;
}

void driver_close(void) {}

const char *driver_device(void)
{
    return "model GPU 0";
}

unsigned driver_teams = NB_GPU_TEAMS;

unsigned driver_multiprocessors(void)
{
    return model.sms;
}

int driver_major(void)
{
    return 9;
}

/* Allocate memory. A large buffer shows the same few pages again and again: its content does not matter. */
static void *get(size_t bytes)
{
    const size_t whole = (bytes + TILE - 1) / TILE * TILE;
    char *p;
    int fd;

    if (bytes <= TILE) /* aligned as the driver aligns */
        return (void *)(((uintptr_t)model_keep(bytes + 256) + 255) & ~(uintptr_t)255);
    fd = memfd_create("tile", 0);
    if (fd < 0 || ftruncate(fd, (off_t)TILE))
        model_wrong("no memory");
    p = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t at = 0; p != MAP_FAILED && at < whole; at += TILE)
        if (mmap(p + at, TILE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            p = MAP_FAILED;
    if (p == MAP_FAILED)
        model_wrong("no memory");
    close(fd);
    return p;
}

uint64_t driver_alloc(size_t bytes)
{
    return (uintptr_t)get(bytes);
}

void *driver_alloc_managed(size_t bytes)
{
    return get(bytes);
}

void *driver_alloc_pinned(size_t bytes)
{
    return get(bytes);
}

void driver_free(uint64_t address)
{
    (void)address;
}

void driver_write(uint64_t to, const void *from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes < TILE ? bytes : TILE);
}

void driver_read(void *to, uint64_t from, size_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes < TILE ? bytes : TILE);
}

static void take(double bytes)
{
    busy_ns += 1000 + bytes / BYTES_PER_NS;
}

void driver_copy(uint64_t to, uint64_t from, size_t bytes)
{
    (void)to;
    (void)from;
    take(2.0 * (double)bytes);
}

static void run_list(const struct nb_gpu_desc *d)
{
    *(struct nb_gpu_result *)(uintptr_t)d->result =
        (struct nb_gpu_result){.length = (int64_t)d->n / 2, .done = d->id};
    take((double)d->n);
}

void driver_launch(const struct nb_gpu_launch *l, unsigned blocks)
{
    static nb_cu_stream stream;
    struct nb_gpu_launch argument = *l;
    struct nb_cu_launch_config config = {.grid_x = blocks,
                                         .block_x = NB_GPU_THREADS,
                                         .block_y = NB_GPU_TEAMS,
                                         .shared_bytes = NB_GPU_TEAMS * NB_GPU_TEAM_SHARED};

    if (l->count) {
        for (uint64_t i = 0; i < l->count; i++)
            run_list((const struct nb_gpu_desc *)(uintptr_t)l->list + i);
        return;
    }
    if (!stream)
        stream = model_stream(0);
    config.stream = stream;
    model_driver.LaunchKernelEx(&config, NULL, (void *[]){&argument}, NULL);
}

void driver_wait(void)
{
    model_synchronize_device();
}

void driver_start(void)
{
    busy_ns = 0;
}

double driver_stop(void)
{
    return busy_ns * 1e-9;
}

int main(int argc, char **argv)
{
    const struct model_settings settings = {.seed = 1, .patience = 60 * MODEL_SECOND};

    model_look_ns = MODEL_US;
    return model_program(&settings, speed_main, argc, argv);
}
