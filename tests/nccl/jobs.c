/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jobs LIBRARY LAYOUT JOB..., or jobs list
 *
 * Play jobs of tests/jobs with NVIDIA's library and nibble, two nodes of one rank, a process each. This file
 * takes the place of tests/jobs/lib/{job,network,judge}.c. Each rank computes the whole job, and so knows the
 * exact result of each sum: a result with other bits was quantized. A job is right when no sum was quantized
 * that is no gradient, no gathered value was wrong, and 98 % of the bytes of gradients were quantized from
 * step LATE of their communicator on. With NCCL_NET_PLUGIN=none, NCCL's own sockets are the control: then all
 * sums must be exact. A job with tags is skipped where NCCL has none (before 2.31). "list" prints the jobs'
 * names.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nccl_names.h"
#include "codec/fp.h"
#include "ranks.h"
#include "tests/jobs/lib/job.h"
#include "tests/jobs/lib/model.h"
#include "tests/policy/torch_stack.h"

#define COMMS 8
#define LATE 60
#define SHARE 0.98
#define ADDRESSES (UINT64_C(64) << 30) /* of memory.c */
#define LEAST 8192 /* bytes that go through CollNet: an eighth of the default, as in tests/jobs */
#define LEAST_CODED 2048

static const struct job_entry *const tables[] = {
    jobs_data_parallel, jobs_sharded, jobs_model_parallel, jobs_local,        jobs_others,
    jobs_consequences,  jobs_passes,  jobs_fresh_sharded,  jobs_fresh_others, jobs_fresh_tables};
#define TABLES (sizeof(tables) / sizeof(tables[0]))

static int control; /* without nibble */

struct comm {
    struct job *job; /* NULL: free */
    struct member member;
    int since;
    int inside;
};

struct kept {
    struct kept *next;
    float value[];
};

struct job {
    const struct job_entry *entry;
    struct member self;
    struct memory memory;
    struct kept *kept;
    struct comm comm[COMMS];
    char *region;     /* the addresses' memory */
    char *scratch[2]; /* memory for calls whose buffers have no address, or the other node's */
    size_t scratch_size;
    truth buffers;
    int step, steps;
    size_t least;
    uint64_t sums, wrong, late, late_coded;
    int untold; /* a tag that this NCCL does not know */
};

/* ---- memory and steps ---------------------------------------------------------------------------------- */

float *values(struct job *job, size_t n)
{
    struct kept *k = calloc(1, sizeof(*k) + n * sizeof(float));

    if (!k)
        die("no memory");
    k->next = job->kept;
    job->kept = k;
    return k->value;
}

int job_step(struct job *job)
{
    return ++job->step < job->steps;
}

int job_now(const struct job *job)
{
    return job->step;
}

int job_every(const struct job *job, int n)
{
    return job->step % n == n - 1;
}

struct memory *job_memory(struct job *job)
{
    return &job->memory;
}

void *job_arg(const struct job *job)
{
    return job->entry->settings.arg;
}

truth job_buffer(struct job *job)
{
    return ++job->buffers;
}

/* ---- communicators ------------------------------------------------------------------------------------- */

static struct comm *comm_new(struct job *job)
{
    for (int i = 0; i < COMMS; i++)
        if (!job->comm[i].job) {
            job->comm[i] =
                (struct comm){.job = job, .member = job->self, .since = job->step < 0 ? 0 : job->step};
            return &job->comm[i];
        }
    die("too many communicators");
}

struct comm *comm_between(struct job *job, const char *name)
{
    struct comm *c = comm_new(job);

    open_comm(&c->member, name);
    return c;
}

/* The other GPUs of a node do not take part, so that NCCL is not called, and the evidence that lies in such
 * calls is missing: the job's gradients may stay raw. */
struct comm *comm_inside(struct job *job, const char *name, int ranks)
{
    struct comm *c = comm_new(job);

    (void)name;
    (void)ranks;
    c->inside = 1;
    return c;
}

void comm_close(struct comm *c)
{
    if (!c->inside)
        close_comm(&c->member);
    c->job = NULL;
}

/* ---- values as they travel ----------------------------------------------------------------------------- */

static void store(ncclDataType_t type, const float *from, size_t n, void *to)
{
    for (size_t i = 0; i < n; i++)
        switch (type) {
        case ncclFloat32: ((float *)to)[i] = from[i]; break;
        case ncclBfloat16: ((uint16_t *)to)[i] = nb_f32_to_bf16(from[i]); break;
        case ncclFloat16: ((uint16_t *)to)[i] = nb_f32_to_f16(from[i]); break;
        case ncclFloat64: ((double *)to)[i] = (double)from[i]; break;
        case ncclInt32: ((int32_t *)to)[i] = (int32_t)lrintf(from[i]); break;
        case ncclInt64: ((int64_t *)to)[i] = (int64_t)lrintf(from[i]); break;
        case ncclUint8: ((uint8_t *)to)[i] = (uint8_t)lrintf(from[i]); break;
        default: die("no values of type %d", (int)type);
        }
}

/* Return whether value `i` is the sum of x and y that full precision gives. */
static int is_sum(ncclDataType_t type, const void *sums, size_t i, float x, float y)
{
    float is, want;

    switch (type) {
    case ncclFloat32:
        is = ((const float *)sums)[i];
        want = x + y;
        break;
    case ncclBfloat16:
        is = nb_bf16_to_f32(((const uint16_t *)sums)[i]);
        want = nb_bf16_to_f32(
            nb_f32_to_bf16(nb_bf16_to_f32(nb_f32_to_bf16(x)) + nb_bf16_to_f32(nb_f32_to_bf16(y))));
        break;
    case ncclFloat16:
        is = nb_f16_to_f32(((const uint16_t *)sums)[i]);
        want =
            nb_f16_to_f32(nb_f32_to_f16(nb_f16_to_f32(nb_f32_to_f16(x)) + nb_f16_to_f32(nb_f32_to_f16(y))));
        break;
    case ncclFloat64: return ((const double *)sums)[i] == (double)x + (double)y;
    case ncclInt32: return ((const int32_t *)sums)[i] == (int32_t)lrintf(x) + (int32_t)lrintf(y);
    case ncclInt64: return ((const int64_t *)sums)[i] == (int64_t)lrintf(x) + (int64_t)lrintf(y);
    default: return 1;
    }
    return is == want || (isnan(is) && isnan(want));
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static char *memory_at(const struct job *job, address a)
{
    return job->region + a % ADDRESSES;
}

struct launch {
    const struct comm *comm;
    int func;
    const struct buffer *b;
    const char *send;
    char *recv;
    size_t each; /* values of a rank */
};

static void launch(void *arg)
{
    const struct launch *l = arg;
    void *comm = l->comm->member.comm, *stream = l->comm->member.stream;
    const struct call_config config = config_of(NULL, l->b->tag);

    if (l->b->tag && l->func == ncclFuncReduceScatter && nccl.reduce_scatter_with)
        check(nccl.reduce_scatter_with(l->send, l->recv, l->each, l->b->type, ncclSum, comm, stream, &config),
              "ncclReduceScatterConfig");
    else if (l->b->tag && l->func != ncclFuncReduceScatter)
        die("no tagged calls of function %d", l->func);
    else if (l->func == ncclFuncAllReduce)
        check(nccl.all_reduce(l->send, l->recv, l->b->n, l->b->type, ncclSum, comm, stream), "ncclAllReduce");
    else if (l->func == ncclFuncReduceScatter)
        check(nccl.reduce_scatter(l->send, l->recv, l->each, l->b->type, ncclSum, comm, stream),
              "ncclReduceScatter");
    else
        check(nccl.all_gather(l->send, l->recv, l->each, l->b->type, comm, stream), "ncclAllGather");
    stream_wait(stream);
}

/* Call NCCL below the functions that the plugin finds on the stack of a process of PyTorch. */
static void launch_below(enum nb_caller caller, struct launch *l)
{
    static const enum torch_function other[] = {TORCH_PYTHON, TORCH_ENGINE},
                                     bucket[] = {TORCH_PYTHON, TORCH_ENGINE, TORCH_BUCKET},
                                     hook[] = {TORCH_ENGINE, TORCH_BUCKET, TORCH_PYTHON};

    switch (caller) {
    case NB_CALLER_BUCKET: torch_call(bucket, 3, launch, l); break;
    case NB_CALLER_HOOK: torch_call(hook, 3, launch, l); break;
    default: torch_call(other, 2, launch, l);
    }
}

static int overlap(const char *a, size_t a_size, const char *b, size_t b_size)
{
    return a < b + b_size && b < a + a_size;
}

/* Place the buffers of a call. Both nodes of a job name the same addresses. Those of a call in place are of
 * node 0, and so are moved to this node's part. */
static void put_buffers(struct job *job, struct launch *l, size_t send_size, size_t recv_size)
{
    const size_t most = send_size > recv_size ? send_size : recv_size;
    const size_t part = (size_t)job->self.rank * (send_size < recv_size ? send_size : recv_size);
    char *send = memory_at(job, l->b->send), *recv = memory_at(job, l->b->recv);

    if (job->scratch_size < most) {
        for (int i = 0; i < 2; i++) {
            if (job->scratch[i])
                device_free(job->scratch[i]);
            job->scratch[i] = device_alloc(most);
        }
        job->scratch_size = most;
    }
    if (!l->b->send)
        send = job->scratch[0];
    if (!l->b->recv)
        recv = job->scratch[1];
    if (send_size < recv_size && overlap(send, send_size, recv, recv_size))
        send = recv + part;
    else if (send_size > recv_size && overlap(send, send_size, recv, recv_size))
        recv = send + part;
    l->send = send;
    l->recv = recv;
}

/* Judge n values from `first` on. Where the other node adds zeros, a sum shows no codec. */
static void judge(struct comm *c, const struct launch *l, const float *x, const float *y, size_t first,
                  size_t n)
{
    struct job *job = c->job;
    const size_t bytes = l->b->n * nb_nccl_type_size(l->b->type);
    const int recorded = !job->entry->settings.silent || l->func != ncclFuncAllReduce;
    int quantized = 0, zeros = 1;

    for (size_t i = 0; i < n && !quantized; i++) {
        quantized = !is_sum(l->b->type, l->recv, i, x[first + i], y[first + i]);
        zeros &= (job->self.rank ? x : y)[first + i] == 0.0f;
    }
    job->sums++;
    if (quantized && (control || l->b->what == EXACT) && !job->wrong++)
        printf("        step %d: a sum of %zu values that must be exact has other bits\n", job->step,
               l->b->n);
    if (l->b->what > 0 && recorded && (quantized || !zeros) && job->step >= c->since + LATE &&
        bytes >= job->least && bytes >= LEAST_CODED) {
        job->late += bytes;
        if (quantized)
            job->late_coded += bytes;
    }
}

static void call(struct comm *c, int func, const struct buffer *b, const float *const from[NODES], size_t n)
{
    struct job *job = c->job;
    const size_t size = nb_nccl_type_size(b->type), each = b->n / NODES, own = (size_t)job->self.rank;
    const size_t result = func == ncclFuncReduceScatter ? each : b->n;
    struct launch l = {.comm = c, .func = func, .b = b, .each = each};

    if (c->inside)
        return;
    job->untold |= b->tag && !nccl.reduce_scatter_with;
    put_buffers(job, &l, n * size, result * size);
    store(b->type, from[own], n, (void *)(uintptr_t)l.send);
    launch_below(b->caller, &l);
    if (func == ncclFuncAllReduce) {
        judge(c, &l, from[0], from[1], 0, b->n);
    } else if (func == ncclFuncReduceScatter) {
        judge(c, &l, from[0], from[1], own * each, each);
    } else {
        void *want = malloc(n * size);
        if (!want)
            die("no memory");
        for (size_t r = 0; r < NODES; r++) {
            store(b->type, from[r], n, want);
            if (memcmp(want, l.recv + r * n * size, n * size) != 0)
                die("%s: step %d: a gathered block of %zu values has other bits", job->entry->name, job->step,
                    n);
        }
        free(want);
    }
}

void all_reduce(struct comm *c, const struct buffer *b, const float *x, const float *y)
{
    call(c, ncclFuncAllReduce, b, (const float *const[]){x, y}, b->n);
}

void reduce_scatter(struct comm *c, const struct buffer *b, const float *x, const float *y)
{
    call(c, ncclFuncReduceScatter, b, (const float *const[]){x, y}, b->n);
}

void all_gather(struct comm *c, const struct buffer *b, const float *whole)
{
    call(c, ncclFuncAllGather, b, (const float *const[]){whole, whole + b->n / NODES}, b->n / NODES);
}

void all_reduce_scalar(struct comm *c, address at_address, float x, float y)
{
    const struct buffer b = {.type = ncclFloat32, .n = 1, .send = at_address, .recv = at_address};

    all_reduce(c, &b, &x, &y);
}

/* ---- playing ------------------------------------------------------------------------------------------- */

static void play(const struct member *m, void *arg)
{
    const struct job_entry *e = arg;
    struct job job = {
        .entry = e, .self = *m, .step = -1, .steps = e->settings.steps ? e->settings.steps : 90};
    int version, inside = 0;

    job.least = e->settings.all_collnet ? 0 : LEAST;
    job.region = device_alloc(ADDRESSES);
    values_open();
    memory_open(&job.memory);
    e->play(&job);
    for (int i = 0; i < COMMS; i++)
        if (job.comm[i].job) {
            inside |= job.comm[i].inside;
            comm_close(&job.comm[i]);
        }
    memory_close(&job.memory);
    check(nccl.version(&version), "ncclGetVersion");
    if (job.untold) {
        if (m->rank == 0)
            printf("skip    NCCL %d, job %s: this NCCL has no tags\n", version, e->name);
        return;
    }
    if (job.wrong)
        die("%s, node %d: %lu sums that must be exact have other bits", e->name, m->rank,
            (unsigned long)job.wrong);
    if (!inside && !control && (double)job.late_coded < SHARE * (double)job.late)
        die("%s, node %d: %.1f %% of the gradients were quantized from step %d on", e->name, m->rank,
            100 * (double)job.late_coded / (double)job.late, LATE);
    if (m->rank == 0) {
        printf("ok      NCCL %d, job %s%s: %lu sums", version, e->name, control ? " over NCCL's sockets" : "",
               (unsigned long)job.sums);
        if (job.late && !control)
            printf(", %.1f %% of late gradients quantized", 100 * (double)job.late_coded / (double)job.late);
        printf("\n");
    }
}

static void set(const struct job_settings *s)
{
    char least[32];

    snprintf(least, sizeof(least), "%d", s->all_collnet ? 0 : LEAST);
    setenv("NIBBLE_MIN_BYTES", least, 1);
    setenv("NIBBLE_COMMS", "nnodes=2-64", 1);
    setenv("NIBBLE_REF_MAX_MB", "4", 1);
    setenv("NIBBLE_WARMUP_STEPS", s->no_warmup ? "0" : "50", 1);
    setenv("NIBBLE_EF_IDENTITY", s->by_signature ? "signature" : "auto", 1);
    if (s->grad)
        setenv("NIBBLE_GRAD", s->grad, 1);
    else
        unsetenv("NIBBLE_GRAD");
    if (s->silent)
        setenv("NCCL_PROFILER_PLUGIN", "none", 1);
    else
        unsetenv("NCCL_PROFILER_PLUGIN");
}

static const struct job_entry *entry_of(const char *name)
{
    for (size_t t = 0; t < TABLES; t++)
        for (const struct job_entry *e = tables[t]; e->name; e++)
            if (strcmp(e->name, name) == 0)
                return e;
    die("no job %s", name);
}

int main(int argc, char **argv)
{
    const char *plugin = getenv("NCCL_NET_PLUGIN");
    int failed = 0;

    control = plugin && strcmp(plugin, "none") == 0;
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (size_t t = 0; t < TABLES; t++)
            for (const struct job_entry *e = tables[t]; e->name; e++)
                puts(e->name);
        return 0;
    }
    if (argc < 4)
        die("usage: %s list | LIBRARY LAYOUT JOB...", argv[0]);
    for (int i = 3; i < argc; i++) {
        const struct job_entry *e = entry_of(argv[i]);
        set(&e->settings);
        failed |= ranks_run(argv[1], argv[2], NODES, 1, play, (void *)(uintptr_t)e);
    }
    return failed;
}
