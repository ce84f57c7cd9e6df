/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange through shared memory behind fake.h. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi.h"
#include "fake_table.h"

#define RING 6u /* windows that a node may be ahead of the slowest. Fewer than NCCL's steps */
#define MAX_WINDOW (512u << 10)
#define FAULTY_CALL 5u /* the call in which a bug shows, on node 1 */
#define POOL 4

struct arena {
    enum fake_bug bug;
    /* windows that the node has posted, results that it has written */
    atomic_uint published[HX_MAX_NODES], finished[HX_MAX_NODES];
    unsigned char data[HX_MAX_NODES][RING][MAX_WINDOW];
};

static struct arena *arena;

struct request {
    bool done, flush;
    unsigned number;
    enum hx_func func;
    char *recv;
    size_t bytes_per_rank, offset, bytes;
    ncclDataType_t type;
    ncclRedOp_t op;
};

struct comm {
    int nnodes, rank;
    unsigned calls; /* accepted so far */
    unsigned finished;
    struct request request[64]; /* by number. NCCL has at most 8 in flight for each group */
    int in_use;
    char *region_end;
};

static bool faulty(const struct comm *c, enum fake_bug bug, unsigned number)
{
    return arena->bug == bug && c->rank == 1 && number == FAULTY_CALL;
}

/* Find the part of a window that lies in a rank's block. */
static void part_of(const struct request *r, int rank, size_t *beg, size_t *end)
{
    size_t lo = (size_t)rank * r->bytes_per_rank, hi = lo + r->bytes_per_rank;

    *beg = r->offset > lo ? r->offset : lo;
    *end = r->offset + r->bytes < hi ? r->offset + r->bytes : hi;
    if (*end < *beg)
        *end = *beg;
}

static void write_result(struct comm *c, struct request *r)
{
    unsigned slot = r->number % RING;
    size_t beg = 0, end = 0, at = 0, len = r->bytes;

    if (r->func == HX_ALL_GATHER) {
        for (int k = 0; k < c->nnodes; k++) {
            part_of(r, k, &beg, &end);
            memcpy(r->recv + (beg - r->offset), arena->data[k][slot], end - beg);
        }
    } else {
        if (r->func == HX_REDUCE_SCATTER) {
            part_of(r, c->rank, &beg, &end);
            at = beg - r->offset;
            len = end - beg;
        }
        if (len) {
            size_t n = len / hx_type_size(r->type);
            char *sum = malloc(len);

            memcpy(sum, arena->data[0][slot] + at, len);
            for (int k = 1; k < c->nnodes; k++)
                hx_accumulate(r->type, r->op, sum, arena->data[k][slot] + at, n);
            if (arena->bug == FAKE_READS_PADDING && r->func == HX_ALL_REDUCE) {
                double most = 0;

                for (size_t i = 0; i < n; i++)
                    most = hx_load(r->type, sum, i) > most ? hx_load(r->type, sum, i) : most;
                for (size_t i = 0; i < n && most > 1e3; i++)
                    hx_store(r->type, sum, i, 0);
            }
            memcpy(r->recv + (arena->bug == FAKE_WRONG_PLACE && at ? (ptrdiff_t)hx_type_size(r->type) : 0),
                   sum, len - (arena->bug == FAKE_WRONG_PLACE && at ? hx_type_size(r->type) : 0));
            free(sum);
        }
    }
    if (faulty(c, FAKE_WRONG_BIT, r->number) ||
        (arena->bug == FAKE_WRONG_BIT && r->number > FAULTY_CALL && c->rank == 1))
        r->recv[0] ^= 4;
    if (faulty(c, FAKE_OVERRUN, r->number))
        c->region_end[16] = 1;
}

/* Finish, in order, the windows that all nodes have posted. */
static void progress(struct comm *c)
{
    while (c->finished < c->calls) {
        struct request *r = &c->request[c->finished % 64];

        for (int k = 0; k < c->nnodes; k++) {
            if (atomic_load(&arena->published[k]) <= r->number)
                return;
        }
        if (faulty(c, FAKE_LOST, r->number))
            return;
        if (!(arena->bug == FAKE_EARLY_DONE && c->rank == 1))
            write_result(c, r);
        r->done = true;
        c->finished++;
        atomic_store(&arena->finished[c->rank], c->finished);
    }
}

static ncclResult_t submit(struct comm *c, struct request want, const void *send, size_t send_bytes,
                           void **request)
{
    struct request *r;

    *request = NULL;
    if (want.bytes > MAX_WINDOW)
        return ncclInternalError;
    if (faulty(c, FAKE_ERROR, c->calls))
        return ncclRemoteError;
    if (faulty(c, FAKE_CRASH, c->calls))
        _exit(3);
    if (arena->bug == FAKE_NULL_FOREVER && c->calls >= FAULTY_CALL)
        return ncclSuccess;
    if (arena->bug == FAKE_POOL && c->in_use == POOL)
        return ncclSuccess;
    progress(c);
    for (int k = 0; k < c->nnodes; k++) {
        if (c->calls >= atomic_load(&arena->finished[k]) + RING)
            return ncclSuccess; /* refused: another node still needs the ring's slot */
    }
    r = &c->request[c->calls % 64];
    *r = want;
    r->number = c->calls;
    memcpy(arena->data[c->rank][r->number % RING], send, send_bytes);
    atomic_store(&arena->published[c->rank], ++c->calls);
    c->in_use++;
    if (arena->bug == FAKE_EARLY_DONE && c->rank == 1)
        r->done = true;
    if (!(arena->bug == FAKE_NO_REQUEST && r->number >= FAULTY_CALL))
        *request = r;
    return ncclSuccess;
}

/* ---- the table ---- */

static ncclResult_t f_init(void **ctx, uint64_t comm_id, ncclDebugLogger_t log)
{
    (void)comm_id, (void)log;
    *ctx = arena;
    return ncclSuccess;
}

static ncclResult_t f_devices(int *n)
{
    *n = 1;
    return ncclSuccess;
}

static ncclResult_t f_properties(int dev, struct hx_props_v12 *p)
{
    static char name[] = "fake0";

    memset(p, 0, sizeof *p);
    p->name = name;
    p->ptr_support = NCCL_PTR_HOST;
    p->max_comms = p->max_recvs = 1;
    p->max_coll_bytes = p->max_p2p_bytes = MAX_WINDOW;
    return dev == 0 ? ncclSuccess : ncclInvalidArgument;
}

static ncclResult_t f_listen(void *ctx, int dev, void *handle, void **listen)
{
    (void)ctx, (void)dev;
    memset(handle, 7, NCCL_NET_HANDLE_MAXSIZE);
    *listen = arena;
    return ncclSuccess;
}

static ncclResult_t f_connect(void *handles[], int nranks, int rank, void *listen, void **comm)
{
    struct comm *c = calloc(1, sizeof *c);

    for (int i = 0; i < nranks; i++) {
        if (((unsigned char *)handles[i])[NCCL_NET_HANDLE_MAXSIZE - 1] != 7)
            return ncclInternalError;
    }
    if (!c || listen != arena)
        return ncclInternalError;
    c->nnodes = nranks;
    c->rank = rank;
    *comm = c;
    return ncclSuccess;
}

static ncclResult_t f_support(ncclDataType_t type, ncclRedOp_t op, int *supported)
{
    *supported = hx_type_size(type) && (unsigned)op < 4;
    return ncclSuccess;
}

static ncclResult_t f_reg(void *comm, void *data, size_t size, int type, void **mhandle)
{
    ((struct comm *)comm)->region_end = (char *)data + size;
    *mhandle = comm;
    return type == NCCL_PTR_HOST ? ncclSuccess : ncclInternalError;
}

static ncclResult_t f_dereg(void *comm, void *mhandle)
{
    return comm == mhandle ? ncclSuccess : ncclInternalError;
}

static ncclResult_t f_allreduce(void *comm, void *send, void *recv, size_t count, ncclDataType_t type,
                                ncclRedOp_t op, void *smh, void *rmh, void **request)
{
    struct request r = {
        .func = HX_ALL_REDUCE, .recv = recv, .bytes = count * hx_type_size(type), .type = type, .op = op};

    (void)smh, (void)rmh;
    return submit(comm, r, send, r.bytes, request);
}

static ncclResult_t f_allgather(void *comm, void *send, int nparts, struct hx_sge_v9 *part,
                                size_t bytes_per_rank, size_t offset, size_t bytes, void *smh, void **request)
{
    struct request r = {.func = HX_ALL_GATHER,
                        .recv = part->address,
                        .bytes_per_rank = bytes_per_rank,
                        .offset = offset,
                        .bytes = bytes};
    size_t beg, end;

    (void)smh;
    if (nparts != 1 || part->size != bytes)
        return ncclInternalError;
    part_of(&r, ((struct comm *)comm)->rank, &beg, &end);
    return submit(comm, r, send, end - beg, request);
}

static ncclResult_t f_reducescatter(void *comm, int nparts, struct hx_sge_v9 *part, void *recv,
                                    size_t bytes_per_rank, size_t offset, size_t bytes, ncclDataType_t type,
                                    ncclRedOp_t op, void *rmh, void **request)
{
    struct request r = {.func = HX_REDUCE_SCATTER,
                        .recv = recv,
                        .bytes_per_rank = bytes_per_rank,
                        .offset = offset,
                        .bytes = bytes,
                        .type = type,
                        .op = op};

    (void)rmh;
    if (nparts != 1 || part->size != bytes)
        return ncclInternalError;
    return submit(comm, r, part->address, bytes, request);
}

static ncclResult_t f_flush(void *comm, void *data, int size, void *mhandle, void **request)
{
    static struct request always = {.done = true, .flush = true};

    (void)comm, (void)data, (void)mhandle;
    *request = size % 1024 ? &always : NULL; /* both are allowed */
    return ncclSuccess;
}

static struct comm *comm_of(struct request *r);

static ncclResult_t f_test(void *request, int *done, int *size)
{
    struct request *r = request;
    struct comm *c;

    *done = r->done;
    if (r->flush)
        return ncclSuccess;
    c = comm_of(r);
    progress(c);
    *done = r->done;
    if (*done) {
        c->in_use--;
        if (size)
            *size = (int)r->bytes;
    }
    return ncclSuccess;
}

/* Return the communicator of a request, which lies in the communicator's array at the index that its number
 * gives. */
static struct comm *comm_of(struct request *r)
{
    return (struct comm *)((char *)(r - r->number % 64) - offsetof(struct comm, request));
}

static ncclResult_t f_close(void *comm)
{
    free(comm);
    return ncclSuccess;
}

static ncclResult_t f_close_listen(void *listen)
{
    return listen == arena ? ncclSuccess : ncclInternalError;
}

static ncclResult_t f_finalize(void *ctx)
{
    return ctx == arena ? ncclSuccess : ncclInternalError;
}

static const struct hx_coll_v12 table = {
    .name = "fake",
    .init = f_init,
    .devices = f_devices,
    .getProperties = f_properties,
    .listen = f_listen,
    .connect = f_connect,
    .reduceSupport = f_support,
    .regMr = f_reg,
    .deregMr = f_dereg,
    .iallreduce = f_allreduce,
    .iallgather = f_allgather,
    .ireducescatter = f_reducescatter,
    .iflush = f_flush,
    .test = f_test,
    .closeColl = f_close,
    .closeListen = f_close_listen,
    .finalize = f_finalize,
};

const void *fake_table(void)
{
    return &table;
}

void fake_prepare(enum fake_bug bug)
{
    arena = mmap(NULL, sizeof *arena, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED)
        abort();
    arena->bug = bug;
}

void fake_release(void)
{
    munmap(arena, sizeof *arena);
    arena = NULL;
}
