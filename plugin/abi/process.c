/* SPDX-License-Identifier: Apache-2.0 */
/* The reference-counted context that all tables use. See process.h. */
#include "abi/process.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/context.h"
#include "abi/settings.h"
#include "abi/staging.h"
#include "base/demand.h"
#include "base/log.h"
#include "base/params.h"
#include "base/version.h"
#include "coll/engine.h"

#define MOST_FAILED 16u /* communicators that are kept at once. A new one takes the place of the oldest */

static struct {
    pthread_mutex_t lock;
    struct nb_context context;
    bool made;         /* `context` is initialized */
    bool up;           /* and started */
    int refs;          /* inits, and halves that stay initialized */
    int settings_refs; /* of the settings: one while up, one a tuner instance */
    int profilers;
    int held[NB_HALF_COUNT];
    struct nb_init *inits;
    _Atomic(struct nb_net *) transport; /* set while up: the context's transport, or the staging one over
                                           it */
    struct nb_net *staging;             /* NULL: without staging */
    atomic_long open;
    atomic_bool old;                      /* NCCL uses tables without finalize */
    atomic_bool lost;                     /* an error was lost, see nb_process_loses_first */
    _Atomic uint64_t failed[MOST_FAILED]; /* communicators, see nb_process_fail */
    atomic_uint nfailed;
    struct nb_device_list devices;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *half_name(enum nb_half half)
{
    return half == NB_HALF_NET ? "net" : half == NB_HALF_RMA ? "RMA" : "CollNet";
}

static void banner(void)
{
    const struct nb_device_list *list = &process.devices;
    const int n = list->n;
    char names[256] = "", settings[512];
    size_t at = 0;

    for (int i = 0; i < n && at < sizeof(names); i++)
        at +=
            (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i ? ", " : "", list->device[i].net.name);
    nb_params_describe(process.context.params, settings, sizeof(settings));
    NB_INFO(NCCL_INIT | NCCL_NET, "version %s, transport %s, %d device%s: %s; settings: %s",
            nb_version_with_commit(), process.context.net->ops->name, n, n == 1 ? "" : "s",
            n ? names : "none found", *settings ? settings : "defaults");
}

/* ---- The context; with the lock held ------------------------------------------------------------------- */

static int make(void)
{
    int err = process.made ? 0 : nb_context_init(&process.context, &nb_runner_thread);

    process.made = !err;
    return err;
}

/* An init must not fail on one node alone before the nodes are connected. A bad setting is therefore a reason
 * for the vote (coll/connect/connect.c). No thread is encoding, as no settings were held. */
static int read_settings(void)
{
    struct nb_params *params;
    int err = nb_settings_read(&params);

    if (err)
        return err;
    process.context.params = params;
    atomic_store(&process.context.unmet, false);
    if (params->bad_setting[0] && nb_demands(params, NB_DEMAND_SETTINGS))
        nb_demand_fails(&process.context, NB_DEMAND_SETTINGS, "bad ones are named in the lines above");
    else if (params->bad_setting[0])
        NB_ALERT("because of bad settings, see the lines above, all nodes will do without CollNet");
    nb_params_log_pointless(params);
    return 0;
}

static int hold_settings(void)
{
    int err = process.settings_refs ? 0 : read_settings();

    if (!err)
        process.settings_refs++;
    return err;
}

static void release_settings(void)
{
    const struct nb_params *params = process.context.params;

    if (--process.settings_refs > 0)
        return;
    process.context.params = nb_params_defaults();
    nb_params_free(params);
}

static int list_devices(void)
{
    struct nb_net *transport = process.context.net;
    int err = nb_device_list_fill(&process.context, &process.devices);

    if (!err && process.devices.staged) {
        err = nb_staging_open(transport, &process.staging);
        transport = process.staging;
    }
    if (!err)
        atomic_store_explicit(&process.transport, transport, memory_order_release);
    return err;
}

static int bring_up(void)
{
    int err = make();

    if (err)
        return err;
    err = hold_settings();
    if (err)
        return err;
    err = nb_context_start(&process.context, NULL);
    if (!err)
        err = list_devices();
    if (!err) {
        banner();
        return 0;
    }
    nb_context_stop(&process.context);
    release_settings();
    return err;
}

static void tear_down(void)
{
    process.up = false;
    process.devices.n = 0;
    atomic_store_explicit(&process.transport, NULL, memory_order_release);
    if (process.staging)
        nb_staging_close(process.staging);
    process.staging = NULL;
    nb_context_stop(&process.context);
    release_settings();
    nb_log_set(NULL); /* NCCL's function may go away before the next init */
}

/* ---- References; with the lock held -------------------------------------------------------------------- */

static int take(ncclDebugLogger_t logger)
{
    /* An earlier finalize left the context up because connections were open, and these are closed by now. */
    if (process.up && process.refs == 0 && atomic_load(&process.open) == 0)
        tear_down();
    nb_log_set(logger);
    if (!process.up) {
        int err = bring_up();
        if (err) {
            nb_log_set(NULL);
            return err;
        }
        process.up = true;
    }
    process.refs++;
    return 0;
}

static void give(void)
{
    if (--process.refs > 0)
        return;
    long open = atomic_load(&process.open);
    if (open == 0)
        tear_down();
    else /* staying up costs little, and closing the transport under its users would crash */
        NB_INFO(NCCL_INIT | NCCL_NET, "%ld connections are still open after the last finalize", open);
}

/* ---- For the tables ------------------------------------------------------------------------------------ */

int nb_process_init(enum nb_half half, uint64_t comm_id, int traffic_class, ncclDebugLogger_t logger,
                    struct nb_init **init)
{
    struct nb_init *made = calloc(1, sizeof(*made));
    if (!made)
        return -ENOMEM;
    made->half = half;
    made->comm_id = comm_id;
    made->traffic_class = traffic_class;

    pthread_mutex_lock(&process.lock);
    int err = take(logger);
    if (!err) {
        made->next = process.inits;
        process.inits = made;
    }
    pthread_mutex_unlock(&process.lock);
    if (err) {
        free(made);
        return err;
    }
    *init = made;
    return 0;
}

int nb_process_finalize(enum nb_half half, struct nb_init *init)
{
    pthread_mutex_lock(&process.lock);
    struct nb_init **at = &process.inits;
    while (*at && *at != init)
        at = &(*at)->next;
    int known = *at && init->half == half;
    if (known) {
        *at = init->next;
        free(init);
        give();
    } else {
        NB_WARN("finalize of a %s context that does not exist", half_name(half));
    }
    pthread_mutex_unlock(&process.lock);
    return known ? 0 : -EINVAL;
}

int nb_process_init_for_good(enum nb_half half, ncclDebugLogger_t logger)
{
    pthread_mutex_lock(&process.lock);
    int err = 0;
    if (process.held[half])
        nb_log_set(logger);
    else
        err = take(logger);
    if (!err)
        process.held[half] = 1;
    pthread_mutex_unlock(&process.lock);
    atomic_store(&process.old, true);
    return err;
}

bool nb_process_loses_first(void)
{
    return atomic_load(&process.old) && !atomic_exchange(&process.lost, true);
}

bool nb_process_fail(uint64_t comm_id)
{
    if (nb_process_has_failed(comm_id))
        return false;
    atomic_store(&process.failed[atomic_fetch_add(&process.nfailed, 1) % MOST_FAILED], comm_id);
    return true;
}

bool nb_process_has_failed(uint64_t comm_id)
{
    const unsigned n = atomic_load(&process.nfailed);

    for (unsigned i = 0; i < n && i < MOST_FAILED; i++)
        if (atomic_load(&process.failed[i]) == comm_id)
            return true;
    return false;
}

uint64_t nb_process_comm_id(const void *ctx)
{
    uint64_t comm_id = 0;

    pthread_mutex_lock(&process.lock);
    for (const struct nb_init *i = process.inits; i; i = i->next)
        if (i == ctx)
            comm_id = i->comm_id;
    pthread_mutex_unlock(&process.lock);
    return comm_id;
}

/* Return 1 between init and finalize of this half. */
static int has(enum nb_half half)
{
    int has = process.held[half];

    for (const struct nb_init *i = process.inits; i && !has; i = i->next)
        has = i->half == half;
    return has;
}

const struct nb_params *nb_process_share_settings(void)
{
    const struct nb_params *params = NULL;

    pthread_mutex_lock(&process.lock);
    if (has(NB_HALF_COLLNET)) {
        process.settings_refs++;
        params = process.context.params;
    }
    pthread_mutex_unlock(&process.lock);
    return params;
}

void nb_process_release_settings(void)
{
    pthread_mutex_lock(&process.lock);
    release_settings();
    pthread_mutex_unlock(&process.lock);
}

struct nb_context *nb_process_context(void)
{
    pthread_mutex_lock(&process.lock);
    int err = make();
    pthread_mutex_unlock(&process.lock);
    return err ? NULL : &process.context;
}

void nb_process_profilers(int change)
{
    pthread_mutex_lock(&process.lock);
    process.profilers += change;
    pthread_mutex_unlock(&process.lock);
}

struct nb_net *nb_process_transport(void)
{
    struct nb_net *net = atomic_load_explicit(&process.transport, memory_order_acquire);
    if (!net)
        NB_WARN("called before init or after finalize");
    return net;
}

bool nb_process_stops(void)
{
    return nb_demand_unmet(&process.context);
}

void nb_process_forwarded(int on)
{
    pthread_mutex_lock(&process.lock);
    process.context.forwarded_to = on != 0;
    pthread_mutex_unlock(&process.lock);
}

void nb_process_count(int change)
{
    atomic_fetch_add_explicit(&process.open, change, memory_order_relaxed);
}

int nb_process_devices(int *ndev)
{
    if (!nb_process_transport())
        return -EINVAL;
    *ndev = process.devices.n;
    return 0;
}

const struct nb_device_info *nb_process_device(int dev)
{
    if (!nb_process_transport())
        return NULL;
    if (dev < 0 || dev >= process.devices.n) {
        NB_WARN("device %d is not one of the %d devices", dev, process.devices.n);
        return NULL;
    }
    return &process.devices.device[dev];
}

/* Release the references of tables without finalize. With open connections the process is ending in the
 * middle of a job: threads may still run, and the kernel cleans up. */
__attribute__((destructor)) static void nb_process_unload(void)
{
    pthread_mutex_lock(&process.lock);
    for (int half = 0; half < NB_HALF_COUNT && atomic_load(&process.open) == 0; half++) {
        if (!process.held[half])
            continue;
        process.held[half] = 0;
        nb_log_set(NULL); /* NCCL may be unloaded already */
        give();
    }
    if (process.made && !process.up && process.profilers == 0) {
        nb_context_fini(&process.context);
        process.made = false;
    }
    pthread_mutex_unlock(&process.lock);
}
