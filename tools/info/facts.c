/* SPDX-License-Identifier: Apache-2.0 */
/* The features of this build and this machine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "abi/device_list.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/params.h"
#include "base/system.h"
#include "base/version.h"
#include "coll/comm/grid.h"
#include "coll/decide/decide.h"
#include "device/cuda/driver.h"
#include "device/host/host.h"
#include "info.h"
#include "nibble/codec.h"
#include "policy/reckon/reckon.h"
#include "policy/rules/rules.h"

#define VALUES (1u << 20) /* BF16, beyond the caches of one core */
#define ROUNDS 9

void info_version(struct emit *e)
{
    emit_section(e, "version", "nibble");
    emit_row(e);
    emit_text(e, "version", nb_version_with_commit());
    emit_number(e, "wire_format", NB_WIRE_VERSION);
    emit_number(e, "rules", NB_RULES_VERSION);
}

struct settings {
    struct emit *e;
    const struct nb_params *params;
    bool all;
    const char *wanted; /* NULL: every name */
    bool whole;         /* `wanted` is a whole name, with or without NIBBLE_ */
    int found;
};

static bool is_wanted(const struct settings *s, const char *name)
{
    const size_t prefix = strlen("NIBBLE_");

    if (s->whole)
        return strcasecmp(name, s->wanted) == 0 || strcasecmp(name + prefix, s->wanted) == 0;
    return strcasestr(name, s->wanted) != NULL;
}

static void setting(void *arg, const struct nb_param_view *view)
{
    struct settings *s = arg;
    const char *pointless = nb_params_pointless(s->params, view->name);

    if (s->wanted ? !is_wanted(s, view->name) : view->is_default && !s->all)
        return;
    s->found++;
    emit_row(s->e);
    emit_text(s->e, "name", view->name);
    emit_text(s->e, "value", *view->value ? view->value : s->e->json ? "" : "(empty)");
    if (!view->is_default || s->wanted)
        emit_text(s->e, "default", *view->normal ? view->normal : s->e->json ? "" : "(empty)");
    emit_flag(s->e, "compared_by_nodes", view->agreed);
    if (pointless && !view->is_default)
        emit_text(s->e, "no_effect", pointless);
    if (s->wanted)
        emit_text(s->e, "allowed", view->allowed);
    if (s->all || s->wanted)
        emit_text(s->e, "meaning", view->help);
}

void info_settings(struct emit *e, const struct nb_params *params, bool all)
{
    struct settings s = {.e = e, .params = params, .all = all};

    emit_section(e, "settings", all ? "settings" : "settings that differ from their defaults");
    nb_params_each(params, setting, &s);
}

int info_setting(struct emit *e, const struct nb_params *params, const char *name)
{
    struct settings s = {.e = e, .params = params, .wanted = name, .whole = true};

    nb_params_each(params, setting, &s);
    s.whole = false;
    if (!s.found)
        nb_params_each(params, setting, &s);
    return s.found;
}

int info_devices(struct emit *e, struct nb_context *ctx)
{
    struct nb_device_list *list = calloc(1, sizeof(*list));
    int n = 0;

    emit_section(e, "devices", "network devices");
    if (list && nb_device_list_fill(ctx, list) == 0)
        n = list->n;
    for (int i = 0; i < n; i++) {
        const struct nb_device_info *d = &list->device[i];
        emit_row(e);
        emit_text(e, "name", d->net.name);
        emit_text(e, "transport", ctx->net->ops->name);
        emit_number(e, "mbit_per_s", d->net.speed_mbps);
        emit_text(e, "pci", d->net.pci_path);
        emit_flag(e, "gpu_memory", (d->mem_support & NB_MEM_CUDA) != 0);
    }
    free(list);
    return n;
}

unsigned info_thread_count(const struct nb_params *params)
{
    struct nb_cpus mine;
    struct nb_cores cores;

    if (params->host_threads >= 0)
        return (unsigned)params->host_threads;
    nb_cpus_mine(&mine);
    nb_cores_look("", &mine, &cores);
    return (unsigned)nb_cores_default_threads(&cores);
}

struct nb_reckon_facts info_reckon_facts(const struct nb_params *params, int mbps, bool gpu, unsigned threads)
{
    return (struct nb_reckon_facts){.mbps = (uint32_t)(params->link_mbps > 0 ? params->link_mbps : mbps),
                                    .codec = gpu ? NB_RECKON_GPU : nb_reckon_codec_of(nb_codec_selected()),
                                    .workers = gpu ? NB_RECKON_NO_LIMIT : threads,
                                    .buffer = nb_facts_buffer()};
}

void info_gain(struct emit *e, struct nb_context *ctx)
{
    static const int nodes[] = {2, 4, 8, 16, 64};
    struct nb_device_list *list = calloc(1, sizeof(*list));
    const unsigned threads = info_thread_count(ctx->params);
    int mbps = INT_MAX;
    bool gpu = false;

    emit_section(e, "gain", "communicators on the slowest of these devices, by their nodes");
    if (!list || nb_device_list_fill(ctx, list) || list->n == 0) {
        free(list);
        return;
    }
    for (int i = 0; i < list->n; i++) {
        mbps = list->device[i].net.rate_mbps < mbps ? list->device[i].net.rate_mbps : mbps;
        gpu |= (list->device[i].mem_support & NB_MEM_CUDA) != 0;
    }
    const struct nb_reckon_facts facts = info_reckon_facts(ctx->params, mbps, gpu, threads);
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        const struct nb_grid grid = nb_grid_choose(nodes[i], ctx->params->schedule, ctx->params->group);
        struct nb_reckoning r;
        char why[200];

        nb_facts_reckon(ctx->params, &grid, &facts, &r);
        const bool declined = nb_policy_declines(ctx->params, &r, why, sizeof(why));

        emit_row(e);
        emit_number(e, "nodes", nodes[i]);
        emit_flag(e, "connects", !declined);
        if (declined)
            emit_text(e, "why", why);
    }
    free(list);
}

void info_threads(struct emit *e, const struct nb_params *params)
{
    struct nb_cpus mine;
    struct nb_cores cores;

    nb_cpus_mine(&mine);
    nb_cores_look("", &mine, &cores);
    emit_section(e, "codec_threads", "codec threads, where codecs run on the CPU");
    emit_row(e);
    emit_number(e, "threads",
                params->host_threads < 0 ? nb_cores_default_threads(&cores) : (double)params->host_threads);
    emit_text(e, "by", params->host_threads < 0 ? "this rank's share of the cores" : "NIBBLE_HOST_THREADS");
    emit_number(e, "share", cores.share);
    emit_number(e, "usable_cores", cores.usable);
    emit_number(e, "cores", cores.machine);
    emit_number(e, "ranks", cores.ranks);
    emit_text(e, "ranks_by", cores.ranks_by);
    if (cores.limit > 0)
        emit_number(e, "control_group_limit", cores.limit);
}

void info_gpu(struct emit *e)
{
    const struct nb_cuda *cu;
    char why[256];
    int count = 0;

    emit_section(e, "gpu", "GPU codecs");
    emit_row(e);
    if (nb_cuda_open(&cu, why, sizeof(why))) {
        emit_text(e, "state", "codecs run on the CPU");
        emit_text(e, "because", why);
        return;
    }
    emit_text(e, "state",
              cu->image ? "kernels are built in" : "built without kernels: codecs run on the CPU");
    if (cu->DeviceGetCount(&count) == 0)
        emit_number(e, "gpus", count);
    nb_cuda_close();
}

/* ---- Codecs -------------------------------------------------------------------------------------------- */

struct data {
    uint16_t *values, *before, *out;
    uint8_t *coded, *ulp;
    size_t cap, len, ulp_cap, ulp_len;
    int8_t *err;
    uint8_t *scale;
};

static bool work_memcpy(struct data *d)
{
    memcpy(d->out, d->values, 2 * VALUES);
    return true;
}

static bool work_encode(struct data *d)
{
    const struct nb_ef ef = {
        .err = d->err, .scale = d->scale, .mode = NB_EF_FULL, .beta = 0.8f, .bound = 0.2f};
    const ssize_t n = nb_encode(NB_CODEC_INT4, NB_BF16, d->values, VALUES, 0, &ef, d->coded, d->cap, NULL);

    d->len = n > 0 ? (size_t)n : 0;
    return n > 0;
}

static bool work_decode(struct data *d)
{
    const struct nb_source s = {NB_CODEC_INT4, d->coded, d->len};

    return nb_reduce(NB_BF16, &s, 1, d->out, VALUES, 0, d->out) == 0;
}

static bool work_ulp_encode(struct data *d)
{
    const ssize_t n =
        nb_ulp_encode(NB_ULP_16, d->values, d->before, 2 * VALUES, SIZE_MAX, d->ulp, d->ulp_cap);

    d->ulp_len = n > 0 ? (size_t)n : 0;
    return n > 0;
}

static bool work_ulp_decode(struct data *d)
{
    return nb_ulp_decode(NB_ULP_16, d->ulp, d->ulp_len, d->before, 2 * VALUES, d->out) == 0;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Return GB of values a second, the median of some rounds, or NAN when the work fails. */
static double speed_of(bool (*work)(struct data *), struct data *d)
{
    double seconds[ROUNDS];

    for (int i = -1; i < ROUNDS; i++) {
        const uint64_t from = nb_now_ns();
        if (!work(d))
            return NAN;
        if (i >= 0)
            seconds[i] = 1e-9 * (double)(nb_now_ns() - from);
    }
    qsort(seconds, ROUNDS, sizeof(seconds[0]), ascending);
    return 2e-9 * VALUES / seconds[ROUNDS / 2];
}

/* Fill with data like gradients, and like weights before and after a step. */
static void fill(struct data *d)
{
    uint64_t state = 1;

    for (size_t i = 0; i < VALUES; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint32_t r = (uint32_t)(state >> 32);
        d->values[i] = (uint16_t)((r & 0x807f) | (0x3a00 + (r >> 20 & 0x180)));
        d->before[i] = (uint16_t)(d->values[i] + (r >> 24 & 1));
    }
}

bool info_codec_speeds(struct info_speeds *speeds)
{
    struct data d = {.cap = nb_encode_bound(NB_CODEC_INT4, NB_BF16, VALUES),
                     .ulp_cap = nb_ulp_bound(NB_ULP_16, 2 * VALUES)};
    bool enough;

    d.values = malloc(2 * VALUES);
    d.before = malloc(2 * VALUES);
    d.out = calloc(2, VALUES);
    d.coded = malloc(d.cap);
    d.ulp = malloc(d.ulp_cap);
    d.err = calloc(1, nb_ef_err_bytes(VALUES));
    d.scale = calloc(1, nb_ef_scale_bytes(VALUES));
    enough = d.values && d.before && d.out && d.coded && d.ulp && d.err && d.scale;
    if (enough) {
        fill(&d);
        speeds->copy = speed_of(work_memcpy, &d);
        speeds->encode = speed_of(work_encode, &d);
        speeds->decode = speed_of(work_decode, &d);
        speeds->ulp_encode = speed_of(work_ulp_encode, &d);
        speeds->ulp_decode = speed_of(work_ulp_decode, &d);
    }
    free(d.values);
    free(d.before);
    free(d.out);
    free(d.coded);
    free(d.ulp);
    free(d.err);
    free(d.scale);
    return enough;
}

static void measure(struct emit *e)
{
    struct info_speeds speeds;

    if (!info_codec_speeds(&speeds))
        return;
    emit_section(e, "codec_speed", "codec speed on one core, BF16, GB of values a second");
    emit_row(e);
    emit_text(e, "variant", nb_variant_name(nb_codec_selected()));
    emit_number(e, "memcpy", speeds.copy);
    emit_number(e, "encode_with_feedback", speeds.encode);
    emit_number(e, "decode_and_add", speeds.decode);
    emit_number(e, "difference", speeds.ulp_encode);
    emit_number(e, "difference_decode", speeds.ulp_decode);
}

void info_codecs(struct emit *e, bool speed)
{
    emit_section(e, "codecs", "codec variants of the CPU (all give the same bytes)");
    for (int v = NB_VARIANT_PORTABLE; v < NB_VARIANT_COUNT; v++) {
        emit_row(e);
        emit_text(e, "name", nb_variant_name((enum nb_variant)v));
        emit_flag(e, "available", nb_codec_available((enum nb_variant)v) != 0);
        emit_flag(e, "in_force", nb_codec_selected() == (enum nb_variant)v);
    }
    if (speed)
        measure(e);
}
