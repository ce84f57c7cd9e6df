/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA runtime in host memory, with two GPUs: the functions that NCCL's host code calls. Device memory is
 * host memory. A stream is a thread with a queue. Virtual memory is a file in memory, which processes share.
 * No attribute offers it, so that NCCL uses it only with NCCL_CUMEM_ENABLE=1. There are no multicast, graphs
 * and access of one GPU to the other, so that NCCL does without them. See library.h.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "library.h"

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_READY = 600, NOT_SUPPORTED = 801 }; /* cudaError_t */

/* ---- Memory -------------------------------------------------------------------------------------------- */

enum { DEVICE, HOST, REGISTERED };

struct pages { /* memory of cuMemCreate */
    unsigned users;
    int file;
    struct allocation { /* CUmemAllocationProp */
        int type, exports, location, device;
        void *security;
        char flags[8];
    } how;
};

static struct block {
    struct block *next;
    char *begin;
    size_t size;
    int kind, device;
    struct pages *from; /* NULL: other memory */
} * blocks;
static _Thread_local int current; /* GPU of this thread */
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

static void block_add(void *begin, size_t size, int kind, int device, struct pages *from)
{
    struct block *b = malloc(sizeof(*b));

    if (!b)
        die("no memory");
    pthread_mutex_lock(&blocks_lock);
    *b = (struct block){blocks, begin, size, kind, device, from};
    blocks = b;
    pthread_mutex_unlock(&blocks_lock);
}

static bool block_of(const void *p, struct block *out)
{
    bool found = false;

    pthread_mutex_lock(&blocks_lock);
    for (const struct block *b = blocks; b && !found; b = b->next)
        if ((const char *)p >= b->begin && (const char *)p < b->begin + b->size) {
            *out = *b;
            found = true;
        }
    pthread_mutex_unlock(&blocks_lock);
    return found;
}

/* Find any block that begins in a range. */
static bool block_within(const char *begin, size_t size, struct block *out)
{
    bool found = false;

    pthread_mutex_lock(&blocks_lock);
    for (const struct block *b = blocks; b && !found; b = b->next)
        if (b->begin >= begin && b->begin < begin + size) {
            *out = *b;
            found = true;
        }
    pthread_mutex_unlock(&blocks_lock);
    return found;
}

static bool block_remove(void *begin, struct block *out)
{
    struct block **at_b = &blocks, *b;

    pthread_mutex_lock(&blocks_lock);
    while ((b = *at_b) && b->begin != begin)
        at_b = &b->next;
    if (b) {
        *out = *b;
        *at_b = b->next;
    }
    pthread_mutex_unlock(&blocks_lock);
    free(b);
    return b;
}

#define GRAIN 65536u

static int alloc(void **p, size_t size, int kind)
{
    size = (size + GRAIN - 1) / GRAIN * GRAIN;
    if (!size)
        size = GRAIN;
    *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*p == MAP_FAILED) {
        *p = NULL;
        return NO_MEMORY;
    }
    block_add(*p, size, kind, current, NULL);
    return OK;
}

static int release(void *p)
{
    struct block b;

    if (!p)
        return OK;
    if (!block_remove(p, &b))
        return INVALID;
    if (b.kind != REGISTERED)
        munmap(b.begin, b.size);
    return OK;
}

void *device_alloc(size_t size)
{
    void *p;

    if (alloc(&p, size, DEVICE))
        die("no memory");
    return p;
}

void device_free(void *p)
{
    release(p);
}

/* ---- Streams and events -------------------------------------------------------------------------------- */

struct task {
    struct task *next;
    void (*run)(void *);
    void *arg;
};

struct stream {
    pthread_mutex_t lock;
    pthread_cond_t more, idle;
    struct task *first, **last;
    bool busy, ends;
    pthread_t thread;
};

static void *stream_run(void *arg)
{
    struct stream *s = arg;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        struct task *t;
        while (!s->first && !s->ends)
            pthread_cond_wait(&s->more, &s->lock);
        t = s->first;
        if (!t)
            break;
        s->first = t->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = true;
        pthread_mutex_unlock(&s->lock);
        t->run(t->arg);
        free(t);
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        if (!s->first)
            pthread_cond_broadcast(&s->idle);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void *stream_create(void)
{
    struct stream *s = calloc(1, sizeof(*s));

    if (!s)
        die("no memory");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_cond_init(&s->idle, NULL);
    s->last = &s->first;
    if (pthread_create(&s->thread, NULL, stream_run, s))
        die("no thread for a stream");
    return s;
}

/* Return the stream of a handle. The default stream has the handles 0 to 2. */
static struct stream *stream_of(void *handle)
{
    static struct stream *of_default;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    if ((uintptr_t)handle > 2)
        return handle;
    pthread_mutex_lock(&lock);
    if (!of_default)
        of_default = stream_create();
    pthread_mutex_unlock(&lock);
    return of_default;
}

static void stream_push(void *handle, void (*run)(void *), void *arg)
{
    struct stream *s = stream_of(handle);
    struct task *t = malloc(sizeof(*t));

    if (!t)
        die("no memory");
    *t = (struct task){NULL, run, arg};
    pthread_mutex_lock(&s->lock);
    *s->last = t;
    s->last = &t->next;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
}

void stream_wait(void *handle)
{
    struct stream *s = stream_of(handle);

    pthread_mutex_lock(&s->lock);
    while (s->first || s->busy)
        pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

void stream_destroy(void *handle)
{
    struct stream *s = handle;

    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->more);
    pthread_cond_destroy(&s->idle);
    free(s);
}

/* Tasks of streams name an event after its end, too, so that it is counted. */
struct event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded, reached;
    unsigned users;
};

struct event_at {
    struct event *event;
    uint64_t number;
};

static void event_put(struct event *e)
{
    pthread_mutex_lock(&e->lock);
    const bool last = --e->users == 0;
    pthread_mutex_unlock(&e->lock);
    if (last)
        free(e);
}

static void event_reach(void *arg)
{
    struct event_at *a = arg;

    pthread_mutex_lock(&a->event->lock);
    if (a->event->reached < a->number)
        a->event->reached = a->number;
    pthread_cond_broadcast(&a->event->changed);
    pthread_mutex_unlock(&a->event->lock);
    event_put(a->event);
    free(a);
}

static void event_await(struct event *e, uint64_t number)
{
    pthread_mutex_lock(&e->lock);
    while (e->reached < number)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

static void event_task(void *arg)
{
    struct event_at *a = arg;

    event_await(a->event, a->number);
    event_put(a->event);
    free(a);
}

/* Put a task that concerns the event's present state (`next` 0) or a new one (1) into the stream. */
static void event_push(struct event *e, void *stream, unsigned next, void (*run)(void *))
{
    struct event_at *a = malloc(sizeof(*a));

    if (!a)
        die("no memory");
    pthread_mutex_lock(&e->lock);
    e->users++;
    e->recorded += next;
    *a = (struct event_at){e, e->recorded};
    pthread_mutex_unlock(&e->lock);
    stream_push(stream, run, a);
}

/* ---- The functions: devices ---------------------------------------------------------------------------- */

#define DEVICES 2
#define CAPABILITY_MAJOR 8
#define CAPABILITY_MINOR 0
#define MULTIPROCESSORS 108

static int attribute(int which)
{
    switch (which) {
    case 1: return 1024;     /* threads of a block */
    case 8: return 49152;    /* shared memory of a block */
    case 10: return 32;      /* threads of a warp */
    case 13: return 1410000; /* kHz */
    case 16: return MULTIPROCESSORS;
    case 19: return 1; /* host memory can be mapped */
    case 41: return 1; /* one address space */
    case 75: return CAPABILITY_MAJOR;
    case 76: return CAPABILITY_MINOR;
    case 91: return 1;      /* registered memory has the host's address */
    case 97: return 166912; /* shared memory of a block, on request */
    case 110: return 1;     /* network adapters reach virtual memory */
    default: return 0;
    }
}

static int device_count(int *n)
{
    *n = DEVICES;
    return OK;
}

static int set_device(int device)
{
    if (device < 0 || device >= DEVICES)
        return INVALID;
    current = device;
    return OK;
}

void device_use(int device)
{
    if (set_device(device))
        die("the emulated runtime has %d GPUs", DEVICES);
}

static int get_device(int *device)
{
    *device = current;
    return OK;
}

static int version(int *v)
{
    *v = 13000;
    return OK;
}

static const char *error_string(int error)
{
    return error ? "an error of the emulated runtime" : "no error";
}

static int nothing(void)
{
    return OK;
}

static int unsupported(void)
{
    return NOT_SUPPORTED;
}

static int can_access_peer(int *can, int a, int b)
{
    (void)a;
    (void)b;
    *can = 0;
    return OK;
}

static int bus_id(char *text, int size, int device)
{
    snprintf(text, (size_t)size, "0000:0%d:00.0", 1 + device);
    return OK;
}

static int by_bus_id(int *device, const char *text)
{
    *device = strstr(text, ":02:00") ? 1 : 0;
    return *device || strstr(text, ":01:00") ? OK : INVALID;
}

static int get_attribute(int *value, int which, int device)
{
    (void)device;
    *value = attribute(which);
    return OK;
}

static int properties(char *p, int device)
{
    const int major = CAPABILITY_MAJOR, minor = CAPABILITY_MINOR, multiprocessors = MULTIPROCESSORS;

    (void)device;
    memset(p, 0, (size_t)at.device_size.byte);
    snprintf(p, 256, "emulated");
    memcpy(p + at.device_major.byte, &major, sizeof(major));
    memcpy(p + at.device_minor.byte, &minor, sizeof(minor));
    memcpy(p + at.device_multiprocessors.byte, &multiprocessors, sizeof(multiprocessors));
    return OK;
}

static int function_attributes(void *attributes, const void *function)
{
    const size_t size[3] = {0, 0, 0};
    const int numbers[6] = {640, 96, CAPABILITY_MAJOR * 10, CAPABILITY_MAJOR * 10, 0, 65536};

    (void)function;
    memcpy(attributes, size, sizeof(size)); /* shared, constant and local memory */
    memcpy((char *)attributes + sizeof(size), numbers, sizeof(numbers)); /* threads, registers, ... */
    return OK;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static int cuda_malloc(void **p, size_t size)
{
    return alloc(p, size, DEVICE);
}

static int malloc_async(void **p, size_t size, void *pool, void *stream)
{
    (void)pool;
    (void)stream;
    return alloc(p, size, DEVICE);
}

static int host_alloc(void **p, size_t size, unsigned flags)
{
    (void)flags;
    return alloc(p, size, HOST);
}

static void free_task(void *p)
{
    release(p);
}

static int free_async(void *p, void *stream)
{
    stream_push(stream, free_task, p);
    return OK;
}

static int host_register(void *p, size_t size, unsigned flags)
{
    (void)flags;
    block_add(p, size, REGISTERED, current, NULL);
    return OK;
}

static int device_pointer(void **device, void *host, unsigned flags)
{
    (void)flags;
    *device = host;
    return OK;
}

static int pool_create(void **pool, const void *properties)
{
    (void)properties;
    *pool = (void *)(uintptr_t)1;
    return OK;
}

static int pointer_attributes(void *attributes, const void *p)
{
    struct {
        int type, device; /* type 0: unknown, 1: host, 2: device */
        const void *on_device, *on_host;
    } a = {0, -1, NULL, p};
    struct block b;

    if (block_of(p, &b)) {
        a.type = b.kind == DEVICE ? 2 : 1;
        a.device = b.device;
        a.on_device = p;
        a.on_host = b.kind == DEVICE ? NULL : p;
    }
    memcpy(attributes, &a, sizeof(a));
    return OK;
}

struct copy {
    void *to;
    const void *from;
    size_t size;
    int value;
    bool owned;
};

static void copy_task(void *arg)
{
    struct copy *c = arg;

    if (c->from)
        memmove(c->to, c->from, c->size);
    else
        memset(c->to, c->value, c->size);
    if (c->owned)
        free((void *)(uintptr_t)c->from);
    free(c);
}

static void copy_push(struct copy what, void *stream)
{
    struct copy *c = malloc(sizeof(*c));

    if (!c)
        die("no memory");
    *c = what;
    stream_push(stream, copy_task, c);
}

/* Memory that CUDA does not know is read at once, and written before the call returns, as CUDA does it. */
static int copy_async(void *to, const void *from, size_t size, int kind, void *stream)
{
    struct copy c = {.to = to, .from = from, .size = size};
    struct block b;

    (void)kind;
    if (!size)
        return OK;
    if (!block_of(from, &b)) {
        void *snapshot = malloc(size);
        if (!snapshot)
            die("no memory");
        memcpy(snapshot, from, size);
        c.from = snapshot;
        c.owned = true;
    }
    copy_push(c, stream);
    if (!block_of(to, &b))
        stream_wait(stream);
    return OK;
}

static int copy(void *to, const void *from, size_t size, int kind)
{
    copy_async(to, from, size, kind, NULL);
    stream_wait(NULL);
    return OK;
}

static int set_async(void *to, int value, size_t size, void *stream)
{
    copy_push((struct copy){.to = to, .size = size, .value = value}, stream);
    return OK;
}

static int set(void *to, int value, size_t size)
{
    set_async(to, value, size, NULL);
    stream_wait(NULL);
    return OK;
}

/* ---- Streams and events -------------------------------------------------------------------------------- */

static int stream_create_with(void **stream, unsigned flags)
{
    (void)flags;
    *stream = stream_create();
    return OK;
}

static int destroy_stream(void *stream)
{
    stream_destroy(stream);
    return OK;
}

static int synchronize_stream(void *stream)
{
    stream_wait(stream);
    return OK;
}

static int stream_id(void *stream, unsigned long long *id)
{
    *id = (uintptr_t)stream;
    return OK;
}

static int capture_info(void *stream, int *status, unsigned long long *id)
{
    (void)stream;
    *status = 0;
    if (id)
        *id = 0;
    return OK;
}

static int is_capturing(void *stream, int *status)
{
    (void)stream;
    *status = 0;
    return OK;
}

static int wait_event(void *stream, struct event *event, unsigned flags)
{
    (void)flags;
    event_push(event, stream, 0, event_task);
    return OK;
}

struct call {
    void (*function)(void *);
    void *arg;
};

static void call_task(void *arg)
{
    struct call *c = arg;

    c->function(c->arg);
    free(c);
}

static int launch_host(void *stream, void (*function)(void *), void *arg)
{
    struct call *c = malloc(sizeof(*c));

    if (!c)
        die("no memory");
    *c = (struct call){function, arg};
    stream_push(stream, call_task, c);
    return OK;
}

static int event_create(struct event **event)
{
    struct event *e = calloc(1, sizeof(*e));

    if (!e)
        die("no memory");
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->users = 1;
    *event = e;
    return OK;
}

static int event_destroy(struct event *event)
{
    event_put(event);
    return OK;
}

static int event_record(struct event *event, void *stream)
{
    event_push(event, stream, 1, event_reach);
    return OK;
}

static int event_query(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    const bool reached = event->reached == event->recorded;
    pthread_mutex_unlock(&event->lock);
    return reached ? OK : NOT_READY;
}

static int event_synchronize(struct event *event)
{
    pthread_mutex_lock(&event->lock);
    const uint64_t number = event->recorded;
    pthread_mutex_unlock(&event->lock);
    event_await(event, number);
    return OK;
}

/* ---- Kernels, and the driver's functions that NCCL asks for -------------------------------------------- */

static int function_by_symbol(void **function, const void *symbol)
{
    *function = (void *)(uintptr_t)symbol;
    return OK;
}

/* NCCL passes a kernel's arguments as one block: {1, address, 2, address of its size, 0}. */
static void launch(void *stream, unsigned blocks_of_kernel, void **extra)
{
    const void *args = NULL;
    size_t size = 0;

    for (; extra && *extra; extra += 2) {
        if ((uintptr_t)extra[0] == 1)
            args = extra[1];
        else if ((uintptr_t)extra[0] == 2)
            size = *(size_t *)extra[1];
    }
    stream_push(stream, device_run, device_kernel(args, size, blocks_of_kernel));
}

struct launch_attribute { /* CUlaunchAttribute */
    int id, pad;
    union {
        char room[64];
        struct {
            void *event;
            int flags;
        };
    } value;
};

struct launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    void *stream;
    struct launch_attribute *attribute;
    unsigned attributes;
};

#define COMPLETION_EVENT 12

static int driver_launch_ex(const struct launch_config *c, void *function, void **params, void **extra)
{
    (void)function;
    (void)params;
    launch(c->stream, c->grid[0], extra);
    for (unsigned i = 0; i < c->attributes; i++)
        if (c->attribute[i].id == COMPLETION_EVENT)
            event_record(c->attribute[i].value.event, c->stream);
    return OK;
}

static int driver_launch(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                         unsigned bz, unsigned shared, void *stream, void **params, void **extra)
{
    (void)function;
    (void)gy;
    (void)gz;
    (void)bx;
    (void)by;
    (void)bz;
    (void)shared;
    (void)params;
    launch(stream, gx, extra);
    return OK;
}

static int driver_text(int error, const char **text)
{
    *text = error_string(error);
    return OK;
}

static int driver_device(int *device, int ordinal)
{
    *device = ordinal;
    return OK;
}

static int driver_uuid(char uuid[16], int device)
{
    memset(uuid, 0, 16);
    uuid[0] = (char)(1 + device);
    return OK;
}

static int driver_range(void **begin, size_t *size, void *p)
{
    struct block b;

    if (!block_of(p, &b))
        return INVALID;
    if (begin)
        *begin = b.begin;
    if (size)
        *size = b.size;
    return OK;
}

static int driver_context(void **context)
{
    *context = (void *)(uintptr_t)(1 + current);
    return OK;
}

static int driver_context_id(void *context, unsigned long long *id)
{
    *id = (uintptr_t)context;
    return OK;
}

static int driver_granularity(size_t *size, const void *properties, int option)
{
    (void)properties;
    (void)option;
    *size = GRAIN;
    return OK;
}

static int driver_pointer(void *value, int which, void *p)
{
    struct block b;

    if (!block_of(p, &b))
        return INVALID;
    if (which == 2) /* kind of memory: 1 host, 2 device */
        *(unsigned *)value = b.kind == DEVICE ? 2 : 1;
    else if (which == 9) /* number of the device */
        *(int *)value = b.device;
    else if (which == 10) /* another process opens it by cudaIpc */
        *(int *)value = 0;
    else
        return NOT_SUPPORTED;
    return OK;
}

/* ---- Virtual memory: the file of a handle is mapped at each of its addresses ------------------------ */

#define LOCATION_DEVICE 1
#define POSIX_FILE 1

static struct pages *pages_new(int file, const struct allocation *how)
{
    struct pages *v = malloc(sizeof(*v));

    if (!v)
        die("no memory");
    *v = (struct pages){.users = 1, .file = file, .how = *how};
    return v;
}

static int memory_create(struct pages **out, size_t size, const struct allocation *how,
                         unsigned long long flags)
{
    const int file = memfd_create(VIRTUAL_MEMORY, MFD_CLOEXEC);

    (void)flags;
    if (file < 0)
        return NO_MEMORY;
    if (ftruncate(file, (off_t)size)) {
        close(file);
        return NO_MEMORY;
    }
    *out = pages_new(file, how);
    return OK;
}

static int memory_release(struct pages *v)
{
    if (__atomic_sub_fetch(&v->users, 1, __ATOMIC_ACQ_REL) == 0) {
        close(v->file);
        free(v);
    }
    return OK;
}

static int memory_retain(struct pages **out, const void *p)
{
    struct block b;

    if (!block_of(p, &b) || !b.from)
        return INVALID;
    __atomic_add_fetch(&b.from->users, 1, __ATOMIC_ACQ_REL);
    *out = b.from;
    return OK;
}

static int memory_properties(struct allocation *how, const struct pages *v)
{
    *how = v->how;
    return OK;
}

static int address_reserve(char **out, size_t size, size_t alignment, const void *wish,
                           unsigned long long flags)
{
    (void)wish;
    (void)flags;
    if (alignment < GRAIN)
        alignment = GRAIN;
    char *p = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NO_MEMORY;
    char *const begin = (char *)(((uintptr_t)p + alignment - 1) / alignment * alignment);
    if (begin > p)
        munmap(p, (size_t)(begin - p));
    munmap(begin + size, (size_t)(p + alignment - begin));
    *out = begin;
    return OK;
}

static int address_free(void *p, size_t size)
{
    return munmap(p, size) ? INVALID : OK;
}

static int memory_map(void *p, size_t size, size_t offset, struct pages *v, unsigned long long flags)
{
    (void)flags;
    if (mmap(p, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, v->file, (off_t)offset) != p)
        return INVALID;
    __atomic_add_fetch(&v->users, 1, __ATOMIC_ACQ_REL);
    block_add(p, size, v->how.location == LOCATION_DEVICE ? DEVICE : HOST, v->how.device, v);
    return OK;
}

/* NCCL also passes ranges that it has mapped in part, and ranges without a mapping. */
static int memory_unmap(char *p, size_t size)
{
    struct block b;

    while (block_within(p, size, &b) && block_remove(b.begin, &b))
        memory_release(b.from);
    return mmap(p, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == p
               ? OK
               : INVALID;
}

static int memory_export(int *file, const struct pages *v, int type, unsigned long long flags)
{
    (void)flags;
    if (type != POSIX_FILE)
        return NOT_SUPPORTED;
    *file = dup(v->file);
    return *file < 0 ? INVALID : OK;
}

static int memory_import(struct pages **out, void *handle, int type)
{
    const struct allocation how = {
        .type = 1, .exports = POSIX_FILE, .location = LOCATION_DEVICE, .device = current};
    const int file = type == POSIX_FILE ? dup((int)(intptr_t)handle) : -1;

    if (file < 0)
        return NOT_SUPPORTED;
    *out = pages_new(file, &how);
    return OK;
}

/* ---- Streams that wait for values in memory, and write them ----------------------------------------- */

enum { WAIT_32 = 1, WRITE_32 = 2, WAIT_64 = 4, WRITE_64 = 5 };

struct memory_operation { /* CUstreamBatchMemOpParams */
    int what;
    void *address;
    uint64_t value;
    unsigned flags;
    uint64_t room[2];
};

static bool reset;

void device_reset(void)
{
    __atomic_store_n(&reset, true, __ATOMIC_RELEASE);
}

static bool fulfilled(const struct memory_operation *o)
{
    const uint64_t now = o->what == WAIT_32 ? __atomic_load_n((uint32_t *)o->address, __ATOMIC_ACQUIRE)
                                            : __atomic_load_n((uint64_t *)o->address, __ATOMIC_ACQUIRE);

    switch (o->flags & 3) {
    case 0: /* at least: the difference has no sign bit */
        return o->what == WAIT_32 ? (int32_t)((uint32_t)now - (uint32_t)o->value) >= 0
                                  : (int64_t)(now - o->value) >= 0;
    case 1: return now == (o->what == WAIT_32 ? (uint32_t)o->value : o->value);
    case 2: return now & o->value;
    default: die("a stream waits with flags %u", o->flags);
    }
}

static void memory_task(void *arg)
{
    struct memory_operation *o = arg;

    switch (o->what) {
    case WRITE_32: __atomic_store_n((uint32_t *)o->address, (uint32_t)o->value, __ATOMIC_RELEASE); break;
    case WRITE_64: __atomic_store_n((uint64_t *)o->address, o->value, __ATOMIC_RELEASE); break;
    default:
        while (!fulfilled(o) && !__atomic_load_n(&reset, __ATOMIC_ACQUIRE))
            usleep(20);
    }
    free(o);
}

static int batch_operations(void *stream, unsigned n, const struct memory_operation *o, unsigned flags)
{
    (void)flags;
    for (unsigned i = 0; i < n; i++) {
        if (o[i].what != WAIT_32 && o[i].what != WAIT_64 && o[i].what != WRITE_32 && o[i].what != WRITE_64)
            return NOT_SUPPORTED;
        struct memory_operation *copy_of = malloc(sizeof(*copy_of));
        if (!copy_of)
            die("no memory");
        *copy_of = o[i];
        stream_push(stream, memory_task, copy_of);
    }
    return OK;
}

static int memory_operation(int what, void *stream, void *address, uint64_t value, unsigned flags)
{
    return batch_operations(stream, 1, &(struct memory_operation){what, address, value, flags, {0}}, 0);
}

static int wait_value_32(void *stream, void *address, uint32_t value, unsigned flags)
{
    return memory_operation(WAIT_32, stream, address, value, flags);
}

static int wait_value_64(void *stream, void *address, uint64_t value, unsigned flags)
{
    return memory_operation(WAIT_64, stream, address, value, flags);
}

static int write_value_32(void *stream, void *address, uint32_t value, unsigned flags)
{
    return memory_operation(WRITE_32, stream, address, value, flags);
}

static int write_value_64(void *stream, void *address, uint64_t value, unsigned flags)
{
    return memory_operation(WRITE_64, stream, address, value, flags);
}

static int copy_batch(void **to, void **from, const size_t *size, size_t n, const void *attributes,
                      const size_t *which, size_t n_attributes, void *stream)
{
    (void)attributes;
    (void)which;
    (void)n_attributes;
    for (size_t i = 0; i < n; i++)
        copy_async(to[i], from[i], size[i], 0, stream);
    return OK;
}

#define F(text, f) \
    { \
        text, (void (*)(void))(f) \
    }
static const struct cuda_function driver_functions[] = {
    F("cuGetErrorName", driver_text),
    F("cuGetErrorString", driver_text),
    F("cuDeviceGet", driver_device),
    F("cuDeviceGetAttribute", get_attribute),
    F("cuDeviceGetUuid", driver_uuid),
    F("cuMemGetAddressRange", driver_range),
    F("cuMemGetAllocationGranularity", driver_granularity),
    F("cuCtxGetCurrent", driver_context),
    F("cuCtxSetCurrent", nothing),
    F("cuCtxGetDevice", get_device),
    F("cuCtxGetId", driver_context_id),
    F("cuCtxCreate", unsupported),
    F("cuCtxDestroy", nothing),
    F("cuLaunchKernel", driver_launch),
    F("cuLaunchKernelEx", driver_launch_ex),
    F("cuPointerGetAttribute", driver_pointer),
    F("cuMemCreate", memory_create),
    F("cuMemRelease", memory_release),
    F("cuMemRetainAllocationHandle", memory_retain),
    F("cuMemGetAllocationPropertiesFromHandle", memory_properties),
    F("cuMemAddressReserve", address_reserve),
    F("cuMemAddressFree", address_free),
    F("cuMemMap", memory_map),
    F("cuMemUnmap", memory_unmap),
    F("cuMemSetAccess", nothing),
    F("cuMemExportToShareableHandle", memory_export),
    F("cuMemImportFromShareableHandle", memory_import),
    F("cuStreamBatchMemOp", batch_operations),
    F("cuStreamWaitValue32", wait_value_32),
    F("cuStreamWaitValue64", wait_value_64),
    F("cuStreamWriteValue32", write_value_32),
    F("cuStreamWriteValue64", write_value_64),
    {0},
};

static int entry_point(const char *name, void **function, unsigned wanted, unsigned long long flags,
                       int *status)
{
    (void)wanted;
    (void)flags;
    *function = NULL;
    for (const struct cuda_function *f = driver_functions; f->name; f++)
        if (strcmp(f->name, name) == 0)
            memcpy(function, &f->function, sizeof(*function));
    if (status)
        *status = *function ? 0 : 1; /* found, or not in this driver */
    return OK;
}

static int entry_point_any(const char *name, void **function, unsigned long long flags, int *status)
{
    return entry_point(name, function, 0, flags, status);
}

int cuda_missing(const char *name)
{
    fprintf(stderr, "the emulated runtime has no %s\n", name);
    return NOT_SUPPORTED;
}

const struct cuda_function cuda_functions[] = {
    F("cudaGetDeviceCount", device_count),
    F("cudaSetDevice", set_device),
    F("cudaGetDevice", get_device),
    F("cudaDriverGetVersion", version),
    F("cudaRuntimeGetVersion", version),
    F("cudaGetErrorString", error_string),
    F("cudaGetLastError", nothing),
    F("cudaPeekAtLastError", nothing),
    F("cudaDeviceSetLimit", nothing),
    F("cudaDeviceSynchronize", nothing),
    F("cudaDeviceCanAccessPeer", can_access_peer),
    F("cudaDeviceGetPCIBusId", bus_id),
    F("cudaDeviceGetByPCIBusId", by_bus_id),
    F("cudaDeviceGetAttribute", get_attribute),
    F("cudaGetDeviceProperties", properties),
    F("cudaGetDeviceProperties_v2", properties),
    F("cudaMalloc", cuda_malloc),
    F("cudaMallocFromPoolAsync", malloc_async),
    F("cudaFree", release),
    F("cudaFreeAsync", free_async),
    F("cudaHostAlloc", host_alloc),
    F("cudaFreeHost", release),
    F("cudaHostRegister", host_register),
    F("cudaHostUnregister", release),
    F("cudaHostGetDevicePointer", device_pointer),
    F("cudaMemPoolCreate", pool_create),
    F("cudaMemPoolDestroy", nothing),
    F("cudaMemPoolSetAttribute", nothing),
    F("cudaPointerGetAttributes", pointer_attributes),
    F("cudaMemcpy", copy),
    F("cudaMemcpyAsync", copy_async),
    F("cudaMemcpyBatchAsync", copy_batch),
    F("cudaMemset", set),
    F("cudaMemsetAsync", set_async),
    F("cudaStreamCreateWithFlags", stream_create_with),
    F("cudaStreamDestroy", destroy_stream),
    F("cudaStreamSynchronize", synchronize_stream),
    F("cudaStreamGetId", stream_id),
    F("cudaStreamGetCaptureInfo", capture_info),
    F("cudaStreamGetCaptureInfo_v2", capture_info),
    F("cudaStreamGetCaptureInfo_v3", capture_info),
    F("cudaStreamIsCapturing", is_capturing),
    F("cudaStreamWaitEvent", wait_event),
    F("cudaThreadExchangeStreamCaptureMode", nothing),
    F("cudaLaunchHostFunc", launch_host),
    F("cudaEventCreate", event_create),
    F("cudaEventCreateWithFlags", event_create),
    F("cudaEventDestroy", event_destroy),
    F("cudaEventRecord", event_record),
    F("cudaEventQuery", event_query),
    F("cudaEventSynchronize", event_synchronize),
    F("cudaFuncGetAttributes", function_attributes),
    F("cudaFuncSetAttribute", nothing),
    F("cudaGetFuncBySymbol", function_by_symbol),
    F("cudaGetDriverEntryPoint", entry_point_any),
    F("cudaGetDriverEntryPointByVersion", entry_point),
    {0},
};
