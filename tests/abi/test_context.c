/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts as tests and simulations make them. Each has its own settings, clock, label, transport and lists,
 * and is independent of other contexts, of the process and of the environment. tests/coll/test_contexts.c
 * tests two contexts that work together.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "abi/context.h"
#include "abi/process.h"
#include "abi/settings.h"
#include "base/context.h"
#include "base/log.h"
#include "coll/engine.h"
#include "nibble/codec.h"
#include "policy/job/job.h"
#include "policy/records/records.h"
#include "state/budget.h"
#include "tests/base/capture.h"
#include "tests/base/environment.h"
#include "tests/net/loopback.h"
#include "tests/suite.h"

static const char *const first_settings[] = {"NIBBLE_CREDITS=5", "NIBBLE_EF_MAX_MB=1", "NIBBLE_FAULT=alloc",
                                             NULL};
static const char *const second_settings[] = {"NIBBLE_CREDITS=6", NULL};

static void setup(void)
{
    setenv("NIBBLE_CREDITS", "9", 1);
    nb_log_set(capture_log);
    capture_reset();
}

static void teardown(void)
{
    nb_log_set(NULL);
    ck_assert_int_eq(loopback_open_objects(), 0);
}

static uint64_t fixed(void *arg)
{
    return *(const uint64_t *)arg;
}

static int second_gpu(struct nb_context *ctx)
{
    (void)ctx;
    return 1;
}

static struct nb_context *make(const char *const *settings, const char *label)
{
    const struct nb_context_options options = {
        .settings = settings, .label = label, .transport = &loopback_ops, .current_gpu = second_gpu};
    struct nb_context *ctx = NULL;

    ck_assert_msg(nb_context_create(&options, &ctx) == 0, "%s", capture_text);
    return ctx;
}

START_TEST(each_has_its_own)
{
    struct nb_context *a = make(first_settings, "a"), *b = make(second_settings, "b");
    struct nb_job *job[2] = {nb_job_get(a, 1), nb_job_get(b, 1)};
    struct nb_queue *queue[2] = {nb_queue_get(a, 7, 1), nb_queue_get(b, 7, 1)};

    ck_assert(a->params->credits == 5 && b->params->credits == 6);
    ck_assert(nb_fault(a, "alloc") == 1 && nb_fault(b, "alloc") == 0);
    ck_assert_ptr_ne(a->net, b->net);
    ck_assert(job[0] && job[1] && job[0] != job[1]);
    ck_assert(queue[0] && queue[1] && queue[0] != queue[1]);
    ck_assert_int_eq(nb_budget_take(a->budgets, NB_BUDGET_FEEDBACK, 1 << 20), 0);
    ck_assert_int_eq(nb_budget_take(a->budgets, NB_BUDGET_FEEDBACK, 1), -ENOMEM);
    ck_assert_int_eq(nb_budget_take(b->budgets, NB_BUDGET_FEEDBACK, 1), 0);
    nb_note_tuner(a);
    ck_assert(nb_tuner_seen(a) && !nb_tuner_seen(b));
    ck_assert(nb_count_profiler(a) == 0 && nb_count_profiler(a) == 1 && nb_count_profiler(b) == 0);
    for (int i = 0; i < 2; i++) {
        nb_job_put(job[i]);
        nb_queue_put(queue[i]);
    }
    nb_context_destroy(a);
    ck_assert_int_eq(b->params->credits, 6);
    nb_context_destroy(b);
    nb_context_destroy(NULL);
}
END_TEST

START_TEST(driven_by_the_caller_with_its_clock)
{
    uint64_t time = 12345;
    const struct nb_context_options options = {
        .settings = second_settings, .transport = &loopback_ops, .clock = {.now_ns = fixed, .arg = &time}};
    struct nb_context *ctx = NULL;

    ck_assert_int_eq(nb_context_create(&options, &ctx), 0);
    ck_assert(nb_engine_is_stepped(ctx->engine));
    ck_assert_int_eq(nb_clock_ns(&ctx->clock), 12345);
    time = 99999;
    ck_assert_int_eq(nb_clock_ns(&ctx->clock), 99999);
    ck_assert(!nb_engine_step(ctx->engine, nb_clock_ns(&ctx->clock)));
    nb_context_destroy(ctx);
}
END_TEST

#define LONG 4096

/* The lists among the settings: a good item, a wrong one for their end, and the message, which must be
 * whole. */
static const struct {
    const char *name, *good, *wrong, *reason;
} lists[] = {
    {"NIBBLE_GRAD", "reduce_scatter:bfloat16:123904000000@16,", "reduce_scatter:bfloat61:123904@16",
     "NIBBLE_GRAD: rule \"reduce_scatter:bfloat61:123904@16\": the type must be float32, bfloat16 or "
     "float16"},
    {"NIBBLE_COMMS", "!nnodes=3:local=8,", "nnodes=3:size=4",
     "NIBBLE_COMMS: rule \"nnodes=3:size=4\": a condition is nranks=, nnodes=, local=, order= or name= and a "
     "value"},
    {"NIBBLE_REQUIRE", "collnet,", "colnet",
     "NIBBLE_REQUIRE: \"colnet\" must be settings, collnet, all-reduce, tuner or window, or the whole list "
     "none"},
};

/* Give the setting a bad value of many characters, and look for the reason in the log and in bad_setting. */
static void set_long(void *arg, const struct nb_param_view *view)
{
    char value[LONG + 64] = "", reason[300] = "";
    int *messages = arg;
    struct nb_params *params;

    if (strcmp(view->allowed, "text") != 0)
        snprintf(reason, sizeof(reason), "it must be %s", view->allowed);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        if (strcmp(lists[i].name, view->name) != 0)
            continue;
        for (int n = 0; n < 30; n++) /* no more rules than there may be */
            strcat(value, lists[i].good);
        strcat(value, lists[i].wrong);
        snprintf(reason, sizeof(reason), "%s", lists[i].reason);
    }
    if (!*value)
        memset(value, 'x', LONG);
    setenv(view->name, value, 1);
    capture_reset();
    ck_assert_int_eq(nb_settings_read(&params), 0);
    ck_assert_msg(capture_has(reason), "%s: no \"%s\" in %s", view->name, reason, capture_text);
    if (*reason) {
        ck_assert_msg(strstr(params->bad_setting, view->name) &&
                          strstr(params->bad_setting, strstr(reason, "rule") ? "rule" : "must be"),
                      "%s", params->bad_setting);
        ++*messages;
    }
    nb_params_free(params);
    unsetenv(view->name);
}

START_TEST(a_long_value_leaves_the_reason)
{
    struct nb_params *params;
    char name[LONG + 32] = "NIBBLE_CREDITSX";
    int messages = 0;

    nb_params_each(nb_params_defaults(), set_long, &messages);
    ck_assert_int_gt(messages, 30);
    memset(name + strlen(name), 'X', LONG);
    setenv(name, "1", 1);
    setenv("NIBBLE_RSS", name, 1);
    capture_reset();
    ck_assert_int_eq(nb_settings_read(&params), 0);
    ck_assert(capture_has("XX is not a setting of nibble and is ignored"));
    ck_assert(capture_has("unknown setting NIBBLE_RSS (did you mean NIBBLE_RS?)"));
    nb_params_free(params);
    unsetenv(name);
    unsetenv("NIBBLE_RSS");
}
END_TEST

START_TEST(lines_have_the_label)
{
    static const char *const bad[] = {"NIBBLE_CREDITS=many", NULL};
    static const char *const bad_rule[] = {"NIBBLE_GRAD=nonsense", NULL};
    struct nb_context_options options = {.settings = bad, .label = "node 3", .transport = &loopback_ops};
    struct nb_context *ctx = NULL;

    ck_assert_int_eq(nb_context_create(&options, &ctx), -EINVAL);
    ck_assert_msg(capture_has("node 3: bad setting NIBBLE_CREDITS=many"), "%s", capture_text);
    capture_reset();
    options.settings = bad_rule;
    ck_assert_int_eq(nb_context_create(&options, &ctx), -EINVAL);
    ck_assert_msg(capture_has("node 3: NIBBLE_GRAD: rule \"nonsense\""), "%s", capture_text);
    ck_assert_ptr_null(ctx);
    capture_reset();
    NB_WARN("of nobody"); /* the label ended with the call */
    ck_assert(!capture_has("node 3"));
}
END_TEST

START_TEST(the_process_has_another)
{
    struct nb_context *ctx = make(first_settings, "a"), *process = nb_process_context();
    struct nb_init *init = NULL;

    ck_assert(process && process != ctx);
    ck_assert_ptr_eq(nb_process_context(), process);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ck_assert_int_eq(nb_process_init(NB_HALF_NET, 1, -1, capture_log, &init), 0);
    ck_assert_int_eq(process->params->credits, 9); /* from the environment */
    ck_assert_int_eq(ctx->params->credits, 5);
    ck_assert_int_eq(nb_process_finalize(NB_HALF_NET, init), 0);
    ck_assert_int_eq(process->params->credits, nb_params_defaults()->credits);
    ck_assert_int_eq(ctx->params->credits, 5);
    nb_context_destroy(ctx);
}
END_TEST

START_TEST(the_setting_selects_the_codecs)
{
    struct nb_init *init = NULL;

    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NIBBLE_CODEC_VARIANT", "portable", 1);
    ck_assert_int_eq(nb_process_init(NB_HALF_NET, 1, -1, capture_log, &init), 0);
    ck_assert_int_eq(nb_codec_selected(), NB_VARIANT_PORTABLE);
    ck_assert_int_eq(nb_process_finalize(NB_HALF_NET, init), 0);
    for (int v = NB_VARIANT_AVX2; v < NB_VARIANT_COUNT; v++) {
        const bool has = nb_codec_available((enum nb_variant)v);
        capture_reset();
        setenv("NIBBLE_CODEC_VARIANT", nb_variant_name((enum nb_variant)v), 1);
        ck_assert_int_eq(nb_process_init(NB_HALF_NET, 1, -1, capture_log, &init), 0);
        ck_assert_int_eq(nb_codec_selected() == (enum nb_variant)v, has);
        ck_assert_int_eq(capture_has("this processor lacks it"), !has);
        ck_assert_int_eq(nb_process_finalize(NB_HALF_NET, init), 0);
    }
    unsetenv("NIBBLE_CODEC_VARIANT");
}
END_TEST

int main(void)
{
    environment_clear();
    return SUITE("abi/context", FIXTURE(setup, teardown), TEST(each_has_its_own),
                 TEST(driven_by_the_caller_with_its_clock), TEST(a_long_value_leaves_the_reason),
                 TEST(lines_have_the_label), TEST(the_process_has_another),
                 TEST(the_setting_selects_the_codecs));
}
