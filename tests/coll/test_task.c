/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks, step by step, on a device that answers as the test says, and the rings of their messages. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "coll/comm/comm.h"
#include "coll/comm/op.h"
#include "coll/decide/decide.h"
#include "coll/engine.h"
#include "coll/flow/internal.h"
#include "coll/schedule/cut.h"
#include "coll/watch/watch.h"
#include "tests/suite.h"

static struct nb_context node;

/* ---- the device and the transport ---------------------------------------------------------------------- */

static struct {
    ssize_t answer[16]; /* answers to requests in order, 0 after the last */
    unsigned asked;
    ssize_t poll; /* result of poll for everything in flight */
    unsigned quiesced;
    int failed;
} script;

static int said_copy(struct nb_device *dev, struct nb_work *work, void *dst, const void *src, size_t bytes)
{
    (void)dev, (void)dst, (void)src, (void)bytes;
    ck_assert_ptr_nonnull(work);
    ck_assert_uint_lt(script.asked, 16);
    return (int)script.answer[script.asked++];
}

static ssize_t said_poll(struct nb_device *dev, struct nb_work *work)
{
    (void)dev, (void)work;
    return script.poll;
}

static void said_quiesce(struct nb_device *dev)
{
    (void)dev;
    script.quiesced++;
}

static int said_failed(struct nb_device *dev)
{
    (void)dev;
    return script.failed;
}

static const struct nb_device_ops said_ops = {
    .name = "script", .copy = said_copy, .poll = said_poll, .quiesce = said_quiesce, .failed = said_failed};
static struct nb_device said = {.ops = &said_ops};

static const void *sent[64];
static size_t sent_len[64];
static unsigned nsent;

static int net_isend(void *conn, const void *data, size_t size, int tag, void *mhandle, void **req)
{
    (void)conn, (void)tag, (void)mhandle;
    ck_assert_uint_lt(nsent, 64);
    sent[nsent] = data;
    sent_len[nsent++] = size;
    *req = &nsent;
    return 0;
}

static int net_irecv(void *conn, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                     void **req)
{
    (void)conn, (void)n, (void)data, (void)sizes, (void)tags, (void)mhandles;
    *req = NULL;
    return 0;
}

static int net_test(void *req, int *done, size_t *sizes)
{
    (void)req, (void)sizes;
    *done = 0;
    return 0;
}

static int net_test_done(void *req, int *done, size_t *sizes)
{
    (void)req, (void)sizes;
    *done = 1;
    return 0;
}

static struct nb_net_ops net;

/* ---- a communicator of two nodes with one window of 100 bytes ------------------------------------------ */

static struct nb_coll_comm *comm;
static struct nb_coll_req *win;
static struct nb_segment segment = {.len = 100, .most = 100, .relay = -1, .sure = 1};
static uint8_t a[100], b[100], c[100];

static void setup(void)
{
    memset(&script, 0, sizeof(script));
    nsent = 0;
    net.isend = net_isend;
    net.irecv = net_irecv;
    net.test = net_test;
    comm = calloc(1, sizeof(*comm));
    node.params = nb_params_defaults();
    comm->ctx = &node;
    comm->nnodes = 2;
    comm->device = &said;
    comm->net = &net;
    comm->win = calloc(NB_WINDOWS, sizeof(*comm->win));
    comm->submit.ops = calloc(1, sizeof(*comm->submit.ops));
    comm->peer = calloc(4, sizeof(*comm->peer));
    for (int r = 1; r < 4; r++)
        comm->peer[r].gone = 1; /* no peer to tell of an error */
    ck_assert(!nb_flow_create(comm) && !nb_watch_create(comm));
    comm->decisions = calloc(1, sizeof(*comm->decisions));
    comm->begun = 1;
    win = comm->win;
    win->op = comm->submit.ops;
    win->op->value = 1;
    win->op->schedule = &nb_schedule_direct;
    win->bytes = win->rx_left = 100;
    win->state = NB_REQ_ACTIVE;
}

static void teardown(void)
{
    nb_flow_destroy(comm);
    nb_watch_destroy(comm);
    free(comm->decisions);
    free(comm->win);
    free(comm->submit.ops);
    free(comm->peer);
    free(comm);
}

/* Three copies. */
static int three(struct nb_coll_comm *of, struct nb_task *t, ssize_t result)
{
    if (result < 0)
        return nb_comm_error(of, (int)result, "copying: %s", strerror((int)-result));
    switch (t->step) {
    case NB_STEP_COPY: t->step = NB_STEP_STORE_REF; return NB_TASK_MORE;
    case NB_STEP_STORE_REF: t->step = NB_STEP_OWN; return NB_TASK_MORE;
    default: return NB_TASK_OVER;
    }
}

static struct nb_task *new_task(void)
{
    struct nb_task *t = nb_task_new(comm, win, &segment);

    ck_assert_ptr_nonnull(t);
    t->next = three;
    t->step = NB_STEP_COPY;
    t->values = a;
    t->body = b;
    t->ref = c;
    t->recv = c;
    t->bytes = 100;
    t->delivers = 100;
    return t;
}

/* ---- tests --------------------------------------------------------------------------------------------- */

START_TEST(at_once)
{
    struct nb_task *t = new_task();

    ck_assert(nb_task_ask(comm, t));
    ck_assert_int_eq(nb_task_run(comm, t), 1);
    ck_assert_uint_eq(script.asked, 3);
    ck_assert_ptr_null(comm->flow->tasks.run);
    ck_assert_ptr_eq(comm->flow->tasks.free, t);
    ck_assert_int_eq(win->state, NB_REQ_DONE);
    ck_assert_uint_eq(comm->finished, 1);
}
END_TEST

/* Each step is done later, without room in between. The window is open until the last step is done. */
START_TEST(later)
{
    const ssize_t answer[] = {-EAGAIN, -EINPROGRESS, -EAGAIN, -EAGAIN, 0, -EINPROGRESS};
    struct nb_task *t = new_task();

    memcpy(script.answer, answer, sizeof(answer));
    ck_assert(!nb_task_ask(comm, t));
    nb_task_drop(comm, t);
    ck_assert_uint_eq(win->tasks_in_flight, 0);
    t = new_task();
    ck_assert(nb_task_ask(comm, t));
    ck_assert_int_eq(nb_task_run(comm, t), 1);
    ck_assert_uint_eq(win->tasks_in_flight, 1);
    script.poll = -EINPROGRESS;
    ck_assert_int_eq(nb_tasks_progress(comm), 0);
    script.poll = 0;
    ck_assert_int_eq(nb_tasks_progress(comm), 1); /* on to the second step, which the device refuses */
    ck_assert_uint_eq(script.asked, 3);
    script.poll = -EINVAL; /* with no work in flight, the engine does not poll */
    ck_assert_int_eq(nb_tasks_progress(comm), 0);
    ck_assert_int_eq(nb_tasks_progress(comm), 1); /* second done, third in flight */
    ck_assert_uint_eq(script.asked, 6);
    ck_assert_int_eq(win->state, NB_REQ_ACTIVE);
    ck_assert_int_eq(nb_comm_poll_fds(comm, NULL, 0), -1); /* the engine looks again soon */
    script.poll = 0;
    ck_assert_int_eq(nb_tasks_progress(comm), 1);
    ck_assert_int_eq(win->state, NB_REQ_DONE);
    ck_assert_ptr_null(comm->flow->tasks.run);
}
END_TEST

/* A window that only contributes is also unfinished while its values are read. */
START_TEST(early_completion_waits)
{
    struct nb_task *t = new_task();

    script.answer[0] = -EINPROGRESS;
    script.poll = -EINPROGRESS;
    t->delivers = 0;
    win->rx_left = 0;
    win->tx_left = 1;
    ck_assert(nb_task_ask(comm, t));
    ck_assert_int_eq(nb_task_run(comm, t), 1);
    nb_window_sent(comm, win);
    ck_assert_int_eq(win->state, NB_REQ_ACTIVE);
    script.poll = 0;
    ck_assert_int_eq(nb_tasks_progress(comm), 1);
    ck_assert_int_eq(win->state, NB_REQ_DONE);
}
END_TEST

START_TEST(error_in_flight)
{
    struct nb_task *t = new_task();

    script.answer[0] = -EINPROGRESS;
    ck_assert(nb_task_ask(comm, t));
    ck_assert_int_eq(nb_task_run(comm, t), 1);
    script.poll = -EIO;
    ck_assert_int_lt(nb_tasks_progress(comm), 0);
    ck_assert_int_eq(comm->failure.error, -EIO);
    ck_assert_int_eq(win->state, NB_REQ_ACTIVE);
    nb_tasks_abandon(comm);
    nb_tasks_abandon(comm);
    ck_assert_uint_eq(script.quiesced, 1);
}
END_TEST

/* NCCL gives up on the engine exactly while a step is in flight. The engine remembers the step. */
START_TEST(given_up)
{
    struct nb_task *t = new_task();

    script.answer[0] = -EINPROGRESS;
    ck_assert(nb_task_ask(comm, t));
    atomic_store(&comm->failure.shown, -ETIMEDOUT);
    ck_assert_int_lt(nb_task_run(comm, t), 0);
    ck_assert_int_eq(comm->failure.error, -ETIMEDOUT);
    ck_assert_int_eq(win->state, NB_REQ_ACTIVE);
    nb_tasks_abandon(comm);
    ck_assert_uint_eq(script.quiesced, 1);
}
END_TEST

/* Work that a failed device reports as done is not done. */
START_TEST(failed_device)
{
    struct nb_task *t = new_task();

    script.failed = -ENODEV;
    ck_assert(nb_task_ask(comm, t));
    nb_task_run(comm, t);
    ck_assert_int_eq(comm->failure.error, -ENODEV);
    ck_assert_int_eq(win->state, NB_REQ_ACTIVE);
}
END_TEST

START_TEST(so_many)
{
    struct nb_task *last = NULL;

    for (unsigned i = 0; i < NB_TASKS; i++)
        last = new_task();
    ck_assert_ptr_null(nb_task_new(comm, win, &segment));
    nb_task_drop(comm, last);
    ck_assert_ptr_eq(nb_task_new(comm, win, &segment), last);
}
END_TEST

/* Messages leave in the order of their buffers, in whatever order they complete. */
START_TEST(order_of_messages)
{
    struct nb_tx_item item[4] = {{0}};
    struct nb_tx tx = {.mem = a, .buffer_bytes = 25, .buffers = 4, .item = item};
    struct nb_shared unit = {.buf = b, .left = 2};
    struct nb_peer peer = {.rank = 1};
    uint64_t first = nb_tx_reserve(&tx, NULL), second = nb_tx_reserve(&tx, NULL);

    nb_tx_reserve(&tx, &unit);
    ck_assert_ptr_eq(nb_tx_buffer(&tx), a + 75);
    nb_tx_ready(&tx, second, 4, 20);
    nb_tx_progress(comm, &peer, &tx);
    ck_assert_uint_eq(nsent, 0);
    nb_tx_ready(&tx, first, 4, 10);
    nb_tx_progress(comm, &peer, &tx);
    ck_assert_uint_eq(nsent, 2);
    ck_assert(sent[0] == a && sent_len[0] == 10 && sent[1] == a + 25 && sent_len[1] == 20);
    unit.len = 30;
    unit.ready = 1;
    nb_tx_progress(comm, &peer, &tx);
    ck_assert(nsent == 3 && sent[2] == b && sent_len[2] == 30);
}
END_TEST

/* An ncclNet transport takes a limited number of sends at a time. Some transports report one more as an
 * error. */
START_TEST(sends_under_way)
{
    enum { BUFFERS = NCCL_NET_MAX_REQUESTS + 8 };
    static struct nb_tx_item item[BUFFERS];
    struct nb_tx tx = {.mem = a, .buffer_bytes = 1, .buffers = BUFFERS, .item = item};
    struct nb_peer peer = {.rank = 1};

    memset(item, 0, sizeof(item));
    for (int i = 0; i < BUFFERS; i++)
        nb_tx_ready(&tx, nb_tx_reserve(&tx, NULL), 1, 1);
    nb_tx_progress(comm, &peer, &tx);
    nb_tx_progress(comm, &peer, &tx);
    ck_assert_uint_eq(nsent, NCCL_NET_MAX_REQUESTS);
    net.test = net_test_done;
    nb_tx_progress(comm, &peer, &tx);
    nb_tx_progress(comm, &peer, &tx);
    ck_assert_uint_eq(nsent, BUFFERS);
    ck_assert_uint_eq(tx.done, BUFFERS);
}
END_TEST

/* A message that completes after its peer has gone is dropped. */
START_TEST(message_to_nobody)
{
    struct nb_tx_item item[2] = {{0}};
    struct nb_tx tx = {.mem = a, .buffer_bytes = 25, .buffers = 2, .item = item};
    uint64_t number = nb_tx_reserve(&tx, NULL);

    tx.closed = 1;
    tx.done = tx.sent = tx.queued;
    nb_tx_ready(&tx, number, 4, 10);
    ck_assert(!item[0].ready);
}
END_TEST

/* Slots become free again in order, and never while a task reads them. */
START_TEST(slots_of_arrivals)
{
    void *req[2] = {NULL};
    size_t len[2] = {0};
    uint8_t held[2] = {0};
    struct nb_rx rx = {.mem = a,
                       .buffer_bytes = 50,
                       .buffers = 2,
                       .window = 2,
                       .req = req,
                       .len = len,
                       .held = held,
                       .posted = 2,
                       .landed = 2,
                       .arrived = 2};
    struct nb_peer peer = {.rank = 1};
    struct nb_task *first = new_task(), *second = new_task();

    nb_task_hold_head(first, &peer, &rx);
    nb_task_hold_head(second, &peer, &rx);
    ck_assert_uint_eq(rx.taken, 2);
    nb_task_release_head(second);
    nb_rx_progress(comm, &peer, &rx);
    ck_assert_uint_eq(rx.freed, 0);
    nb_task_release_head(first);
    nb_rx_progress(comm, &peer, &rx);
    ck_assert_uint_eq(rx.freed, 2);
}
END_TEST

/* A range in front of the window, which no correct peer sends, is refused before any use. */
START_TEST(message_before_its_window)
{
    const enum nb_func func[] = {NB_FUNC_ALL_GATHER, NB_FUNC_REDUCE_SCATTER, NB_FUNC_ALL_GATHER};
    const struct nb_schedule_ops *schedule[] = {&nb_schedule_two_hop_gather, &nb_schedule_two_hop_reduce,
                                                &nb_schedule_direct};
    struct nb_peer peer = {.rank = 1};

    comm->nnodes = 4;
    comm->grid = (struct nb_grid){.rows = 1, .columns = 4};
    comm->unit = 4096;
    win->op->block = 4096;
    win->off = 4097;
    for (unsigned i = 0; i < 3; i++) {
        struct nb_msg m = {.func = (uint8_t)func[i], .offset = 4095, .bytes = 1, .flags = schedule[i]->flags};
        struct nb_segment at;
        uint64_t seq = 0;

        win->op->func = func[i];
        win->op->schedule = schedule[i];
        comm->failure.error = 0;
        ck_assert_ptr_null(nb_find_window(comm, &peer, &m, &seq, &at));
        ck_assert_int_eq(comm->failure.error, -EPROTO);
    }
    comm->nnodes = 2;
}
END_TEST

SUITE_MAIN("task", FIXTURE(setup, teardown), TEST(at_once), TEST(later), TEST(early_completion_waits),
           TEST(error_in_flight), TEST(given_up), TEST(failed_device), TEST(so_many), TEST(order_of_messages),
           TEST(sends_under_way), TEST(message_to_nobody), TEST(message_before_its_window),
           TEST(slots_of_arrivals))
