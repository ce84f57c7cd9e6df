/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: accepted and refused values, the errors of refusals, the hash, and the texts made from the
 * table. */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/params.h"
#include "tests/base/capture.h"
#include "tests/base/environment.h"
#include "tests/suite.h"

/* The settings of the last successful load. */
static const struct nb_params *params;

static void drop(void)
{
    nb_params_free(params);
    params = NULL;
}

static int load(void)
{
    drop();
    return nb_params_read(&params);
}

/* Load with NAME=value alone, or with an empty environment where name is NULL. Return the result of the
 * load. */
static int load_with(const char *name, const char *value)
{
    if (name)
        setenv(name, value, 1);
    capture_reset();
    int rc = load();
    if (name)
        unsetenv(name);
    return rc;
}

static void must_take(const char *name, const char *value)
{
    ck_assert_msg(load_with(name, value) == 0, "%s=%s was refused: %s", name, value, capture_text);
    ck_assert_int_eq(capture_warnings, 0);
}

/* Require that the load fails with exactly one line, which names the variable, the value and `expected`. */
static void must_refuse(const char *name, const char *value, const char *expected)
{
    char part[256];
    snprintf(part, sizeof(part), "bad setting %s=%s: ", name, value);
    ck_assert_msg(load_with(name, value) == -EINVAL, "%s=%s was taken", name, value);
    ck_assert_msg(capture_has(part), "'%s' is not in: %s", part, capture_text);
    ck_assert_msg(capture_has(expected), "'%s' is not in: %s", expected, capture_text);
    ck_assert_int_eq(capture_warnings, 1);
}

static void setup(void)
{
    nb_log_set(capture_log);
    capture_reset();
}

START_TEST(defaults_hold_without_environment)
{
    ck_assert_int_eq(nb_params_defaults()->unit_bytes, 131072); /* even before the first load */
    must_take(NULL, NULL);
    const struct nb_params *p = params;
    ck_assert_int_eq(p->enable, 1);
    ck_assert_int_eq(p->rs, 3);
    ck_assert_int_eq(p->ag, 5);
    ck_assert_int_eq(p->unit_bytes, 131072);
    ck_assert_double_eq(p->fallback_nmse, 0.05);
    ck_assert_int_eq(p->rs_min_bytes, 16384);
    ck_assert_str_eq(p->fault, "");
}
END_TEST

START_TEST(integers_are_strict)
{
    must_take("NIBBLE_CREDITS", "17");
    ck_assert_int_eq(params->credits, 17);
    drop();
    must_take("NIBBLE_MIN_BYTES", "9223372036854775807");
    ck_assert(params->min_bytes == INT64_MAX);
    drop();
    must_take("NIBBLE_MIN_BYTES", "77"); /* for each kind of operation */
    ck_assert(params->rs_min_bytes == 77 && params->ar_min_bytes == 77 && params->ag_min_bytes == 77 &&
              params->tuner_min_bytes == 77);
    drop();
    must_take("NIBBLE_CREDITS", ""); /* empty means unset */
    ck_assert_int_eq(params->credits, 48);
    drop();

    static const char *const bad[] = {"0",  "4097", "-1", "-",   "+5",   " 5",
                                      "5 ", "5k",   "5.", "0x5", "five", "99999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        must_refuse("NIBBLE_CREDITS", bad[i], "an integer from 1 to 4096");
    must_refuse("NIBBLE_MIN_BYTES", "-2", "an integer of at least -1");
    must_refuse("NIBBLE_MIN_BYTES", "9223372036854775808", "an integer of at least -1");
}
END_TEST

START_TEST(reals_are_strict)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0.5", 0.5}, {".25", 0.25}, {"1e-3", 1e-3}, {"0", 0.0}, {"0.999", 0.999}};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        must_take("NIBBLE_FALLBACK_NMSE", good[i].text);
        ck_assert_double_eq(params->fallback_nmse, good[i].value);
        drop();
    }
    static const char *const bad[] = {"1e10", "-0.1", "nan", "inf", "0,5", "0x1p-1", " 0.5",
                                      "0.5 ", "0.5f", "e",   ".",   "-",   "1e999",  "1e-999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        must_refuse("NIBBLE_FALLBACK_NMSE", bad[i], "a number from 0 to 1e+09");
}
END_TEST

START_TEST(reals_do_not_depend_on_the_locale)
{
    static const char *const with_comma[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "fr_FR"};
    const char *set = NULL;
    for (size_t i = 0; i < 4 && !set; i++)
        set = setlocale(LC_ALL, with_comma[i]);
    if (!set)
        return; /* without such a locale the strings above cover the C locale */
    must_take("NIBBLE_FALLBACK_NMSE", "0.5");
    ck_assert_double_eq(params->fallback_nmse, 0.5);
    char text[64];
    nb_params_describe(params, text, sizeof(text));
    ck_assert_str_eq(text, "NIBBLE_FALLBACK_NMSE=0.5");
}
END_TEST

START_TEST(booleans_are_strict)
{
    must_take("NIBBLE_ENABLE", "0");
    ck_assert_int_eq(params->enable, 0);
    drop();
    must_take("NIBBLE_ENABLE", "1");
    ck_assert_int_eq(params->enable, 1);
    drop();
    static const char *const bad[] = {"2", "yes", "true", "01", "1 ", "-0"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        must_refuse("NIBBLE_ENABLE", bad[i], "0 or 1");
}
END_TEST

START_TEST(words_are_strict)
{
    static const char *const words[] = {"raw", "int4", "int8", "auto"};
    for (int i = 0; i < 4; i++) {
        must_take("NIBBLE_RS", words[i]);
        ck_assert_int_eq(params->rs, i);
        drop();
    }
    static const char *const bad[] = {"INT4", "int", "int44", "1", "raw|int4", "|", " raw"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        must_refuse("NIBBLE_RS", bad[i], "raw, int4, int8 or auto");
}
END_TEST

/* Every word of every enumerated setting sets the number of that name. */
START_TEST(every_word_has_its_number)
{
    size_t words = 0;
#define NB_PARAM_ENUM(field, name, type, def, help) \
    for (size_t i = 0; i < sizeof(nb_##type##_words) / sizeof(nb_##type##_words[0]); i++, words++) { \
        must_take(name, nb_##type##_words[i]); \
        ck_assert_uint_eq(params->field, i); \
        drop(); \
    }
#include "base/params.def"
    ck_assert_uint_gt(words, 2);
    ck_assert_str_eq(nb_schedule_words[NB_SCHEDULE_TWO_LEVEL], "two-level");
}
END_TEST

START_TEST(strings_are_copied)
{
    setenv("NIBBLE_FAULT", "connect", 1);
    ck_assert_int_eq(load(), 0);
    setenv("NIBBLE_FAULT", "xxxxxxx", 1);
    ck_assert_str_eq(params->fault, "connect");
    drop();
    ck_assert_str_eq(nb_params_defaults()->fault, "");
}
END_TEST

START_TEST(unknown_names_are_refused_with_a_proposal)
{
    ck_assert_int_eq(load_with("NIBBLE_CREDIT", "5"), -EINVAL);
    ck_assert(capture_has("unknown setting NIBBLE_CREDIT (did you mean NIBBLE_CREDITS?)"));
    ck_assert_int_eq(load_with("NIBBLE_TCP_STREAM", ""), -EINVAL); /* even when empty */
    ck_assert(capture_has("NIBBLE_TCP_STREAM (did you mean NIBBLE_TCP_STREAMS?)"));
    ck_assert_int_eq(load_with("NIBBLE_WARMUP", "5"), -EINVAL);
    ck_assert(capture_has("NIBBLE_WARMUP (did you mean NIBBLE_WARMUP_STEPS?)"));
    must_take("NIBBLER", "1"); /* another program's variable */
}
END_TEST

START_TEST(names_that_are_near_no_setting_are_told_and_ignored)
{
    char longest[200] = "NIBBLE_";
    memset(longest + 7, 'X', sizeof(longest) - 8);
    /* Kubernetes makes the last three for services named nibble, nibble-train and nibble-net. */
    const char *const names[] = {"NIBBLE_",
                                 longest,
                                 "NIBBLE_HOME",
                                 "NIBBLE_PORT",
                                 "NIBBLE_TRAIN_SERVICE_HOST",
                                 "NIBBLE_NET_SERVICE_PORT"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        ck_assert_msg(load_with(names[i], "1") == 0, "%s: %s", names[i], capture_text);
        ck_assert_int_eq(capture_warnings, 1);
        ck_assert(capture_has("is not a setting of nibble and is ignored"));
        ck_assert(!capture_has("did you mean"));
    }
}
END_TEST

/* Job scripts outlive settings. NIBBLE_REQUIRE=settings, the default, lets them run. */
START_TEST(removed_settings_are_told_and_ignored)
{
    static const char *const values[] = {"8", "0", "-1", "words"};
    static const char *const removed[] = {
#define NB_PARAM_REMOVED(name, instead) name,
#include "base/params.def"
    };
    char name[64], told[128];

    for (size_t r = 0; r < sizeof(removed) / sizeof(removed[0]); r++)
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
            const char *word = strchr(removed[r], '=');
            snprintf(name, sizeof(name), "%.*s", (int)strcspn(removed[r], "="), removed[r]);
            snprintf(told, sizeof(told), "setting %s is gone, and ignored: ", removed[r]);
            ck_assert_msg(load_with(name, word ? word + 1 : values[i]) == 0, "%s", capture_text);
            ck_assert_int_eq(capture_warnings, 1);
            ck_assert_msg(capture_has(told), "%s", capture_text);
            ck_assert_str_eq(params->bad_setting, "");
        }
    ck_assert(load_with("NIBBLE_HAND_BAC", "8") == 0 && !capture_has("gone"));
    must_refuse("NIBBLE_AG", "int88", "raw, exact, delta4, delta4-fp32, off or auto");
}
END_TEST

START_TEST(what_another_setting_leaves_without_effect_is_told)
{
    ck_assert_int_eq(load_with(NULL, NULL), 0);
    ck_assert_int_eq(nb_params_log_pointless(params), 0);
    setenv("NIBBLE_TUNER", "0", 1);
    ck_assert_int_eq(load_with("NIBBLE_TUNER_CHUNK_BYTES", "4096"), 0);
    ck_assert_int_eq(nb_params_log_pointless(params), 1);
    ck_assert(capture_has("setting NIBBLE_TUNER_CHUNK_BYTES has no effect: NIBBLE_TUNER=0"));
    ck_assert_int_eq(load_with("NIBBLE_METRICS_PERIOD", "5"), 0);
    ck_assert_int_eq(nb_params_log_pointless(params), 1);
    setenv("NIBBLE_METRICS", "/tmp", 1);
    ck_assert_int_eq(load_with("NIBBLE_METRICS_PERIOD", "5"), 0);
    ck_assert_int_eq(nb_params_log_pointless(params), 0);
}
END_TEST

START_TEST(every_bad_value_is_told_and_a_failed_load_is_tried_again)
{
    setenv("NIBBLE_RS", "int5", 1);
    setenv("NIBBLE_ENABLE", "on", 1);
    setenv("NIBBLE_FAULT", "kept", 1);
    setenv("NIBBLE_WHAT", "on", 1);
    ck_assert_int_eq(load(), -EINVAL);
    ck_assert_int_eq(capture_warnings, 3);
    ck_assert_ptr_null(params); /* a failed load sets no parameter */
    unsetenv("NIBBLE_RS");
    unsetenv("NIBBLE_ENABLE");
    unsetenv("NIBBLE_WHAT");
    ck_assert_int_eq(load(), 0);
    ck_assert_str_eq(params->fault, "kept");
}
END_TEST

START_TEST(objects_do_not_change_and_do_not_know_each_other)
{
    const struct nb_params *first, *second;

    setenv("NIBBLE_CREDITS", "5", 1);
    ck_assert_int_eq(nb_params_read(&first), 0);
    setenv("NIBBLE_CREDITS", "6", 1);
    ck_assert_int_eq(first->credits, 5);
    ck_assert_int_eq(nb_params_read(&second), 0);
    nb_params_free(first);
    ck_assert_int_eq(second->credits, 6);
    nb_params_free(second);
    nb_params_free(NULL);
}
END_TEST

START_TEST(a_list_in_place_of_the_environment)
{
    static const char *const good[] = {"NIBBLE_CREDITS=7", "NIBBLE_FAULT=alloc", "NIBBLE_RS=", NULL};
    static const char *const none[] = {NULL};
    static const char *const bad[] = {"NIBBLE_CREDITS=7", "NIBBLE_RS=int5", NULL};
    static const char *const unknown[] = {"NIBBLE_CREDIT=7", NULL};
    static const char *const none_of_ours[] = {"NIBBLE_TRAIN_SERVICE_HOST=7", "PATH=/bin", "NIBBLE_CREDITS",
                                               "NIBBLE_credits=7", NULL};
    const struct nb_params *p = NULL;

    setenv("NIBBLE_CREDITS", "5", 1);
    setenv("NIBBLE_UNIT_BYTES", "nonsense", 1);
    ck_assert_int_eq(nb_params_read_list(good, &p), 0);
    ck_assert_int_eq(p->credits, 7);
    ck_assert_str_eq(p->fault, "alloc");
    ck_assert_int_eq(p->rs, 3);
    ck_assert(nb_params_hash(p) == nb_params_hash(nb_params_defaults()));
    nb_params_free(p);
    ck_assert_int_eq(nb_params_read_list(none, &p), 0);
    ck_assert_int_eq(p->credits, 48);
    nb_params_free(p);
    ck_assert_int_eq(nb_params_read_list(bad, &p), -EINVAL);
    ck_assert(capture_has("bad setting NIBBLE_RS=int5"));
    ck_assert_int_eq(nb_params_read_list(unknown, &p), -EINVAL);
    ck_assert(capture_has("did you mean NIBBLE_CREDITS?"));
    capture_reset();
    ck_assert_int_eq(nb_params_read_list(none_of_ours, &p), -EINVAL);
    ck_assert(capture_has("unknown setting NIBBLE_TRAIN_SERVICE_HOST"));
    ck_assert(capture_has("unknown setting PATH"));
    ck_assert(capture_has("setting NIBBLE_CREDITS has no value"));
    ck_assert(capture_has("unknown setting NIBBLE_credits (did you mean NIBBLE_CREDITS?)"));
}
END_TEST

static uint64_t hash_with(const char *name, const char *value)
{
    must_take(name, value);
    uint64_t hash = nb_params_hash(params);
    drop();
    return hash;
}

START_TEST(hash_covers_what_nodes_must_agree_on)
{
    uint64_t plain = hash_with(NULL, NULL);
    ck_assert(hash_with("NIBBLE_RS", "auto") == plain); /* the default, spelt out */
    ck_assert(hash_with("NIBBLE_UNIT_BYTES", "0131072") == plain);
    ck_assert(hash_with("NIBBLE_CREDITS", "7") == plain); /* nodes may differ in it */
    ck_assert(hash_with("NIBBLE_FAULT", "connect") == plain);
    ck_assert(hash_with("NIBBLE_RS", "raw") != plain);
    ck_assert(hash_with("NIBBLE_RS", "int4") !=
              plain); /* `auto` may mean this value here and another one on another node */
    ck_assert(hash_with("NIBBLE_LINK_MBPS", "25000") != plain);
    ck_assert(hash_with("NIBBLE_UNIT_BYTES", "65536") != plain);
    ck_assert(hash_with("NIBBLE_MIN_BYTES", "1") != hash_with("NIBBLE_LINK_MBPS", "1"));
}
END_TEST

/* Rules of communicators may be long, and nodes may differ in the last rule only. */
START_TEST(hash_covers_long_values)
{
    char value[600];

    memset(value, 'a', sizeof(value));
    memcpy(value, "name=", 5);
    value[sizeof(value) - 1] = 0;
    uint64_t one = hash_with("NIBBLE_COMMS", value);
    value[sizeof(value) - 2] = 'b';
    ck_assert(hash_with("NIBBLE_COMMS", value) != one);
}
END_TEST

START_TEST(describe_tells_differences_only)
{
    char text[256];
    must_take(NULL, NULL);
    nb_params_describe(params, text, sizeof(text));
    ck_assert_str_eq(text, "");
    drop();

    setenv("NIBBLE_RS", "int8", 1);
    setenv("NIBBLE_FALLBACK_NMSE", "0.25", 1);
    setenv("NIBBLE_CREDITS", "48", 1);
    must_take("NIBBLE_FAULT", "a,b");
    nb_params_describe(params, text, sizeof(text));
    ck_assert_str_eq(text, "NIBBLE_RS=int8, NIBBLE_FALLBACK_NMSE=0.25, NIBBLE_FAULT=a,b");
    size_t full = strlen(text) + 1;
    char cut[256];
    for (size_t cap = 0; cap <= full; cap++) {
        memset(cut, '#', sizeof(cut));
        nb_params_describe(params, cut, cap);
        ck_assert_int_eq(cut[cap], '#'); /* bytes after the end are untouched */
        if (cap == 0)
            continue;
        ck_assert_uint_lt(strlen(cut), cap);
        if (cap == full)
            ck_assert_str_eq(cut, text);
        else if (cap >= 4 && strlen(cut) == cap - 1)
            ck_assert_str_eq(cut + cap - 4, "...");
    }
}
END_TEST

/* A default that its own limits refuse, or that is missing from its list of words, would only show up in a
 * user's job. */
START_TEST(every_default_passes_its_own_rules)
{
    char text[64];
#define NB_PARAM_INT(f, n, d, lo, hi, h) \
    snprintf(text, sizeof(text), "%lld", (long long)(d)); \
    setenv(n, text, 1);
#define NB_PARAM_REAL(f, n, d, lo, hi, h) \
    snprintf(text, sizeof(text), "%.17g", (double)(d)); \
    setenv(n, text, 1);
#define NB_PARAM_BOOL(f, n, d, h) \
    snprintf(text, sizeof(text), "%d", (d)); \
    setenv(n, text, 1);
#define NB_PARAM_STR(f, n, d, h) setenv(n, d, 1);
#define NB_PARAM_ENUM(f, n, t, d, h) setenv(n, nb_##t##_words[d], 1);
#include "base/params.def"
    must_take(NULL, NULL);
    nb_params_describe(params, text, sizeof(text));
    ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(table_has_a_row_for_each_setting)
{
    char *table = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&table, &size);
    ck_assert_ptr_nonnull(out);
    nb_params_print_table(out);
    fclose(out);
    static const char *const names[] = {
#define NB_PARAM_INT(f, n, ...) n,
#define NB_PARAM_REAL(f, n, ...) n,
#define NB_PARAM_BOOL(f, n, ...) n,
#define NB_PARAM_STR(f, n, ...) n,
#define NB_PARAM_ENUM(f, n, ...) n,
#include "base/params.def"
    };
    size_t settings = 0;
    for (const char *at = table; (at = strstr(at, "\n| `NIBBLE_")); at++)
        settings++;
    ck_assert_uint_eq(settings, sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char cell[80];
        snprintf(cell, sizeof(cell), "\n| `%s`", names[i]);
        ck_assert_msg(strstr(table, cell), "no row for %s", names[i]);
    }
    ck_assert(strstr(table, "\n| `NIBBLE_RS` \\* | `auto` | raw, int4, int8 or auto | "));
    ck_assert(strstr(table, "\n| `NIBBLE_FAULT` | (empty) | text | "));
    free(table);
}
END_TEST

START_TEST(env_takes_empty_for_unset)
{
    unsetenv("NCCL_SOCKET_IFNAME");
    ck_assert_ptr_null(nb_env("NCCL_SOCKET_IFNAME"));
    setenv("NCCL_SOCKET_IFNAME", "", 1);
    ck_assert_ptr_null(nb_env("NCCL_SOCKET_IFNAME"));
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ck_assert_str_eq(nb_env("NCCL_SOCKET_IFNAME"), "lo");
}
END_TEST

int main(void)
{
    environment_clear();
    return SUITE(
        "params", FIXTURE(setup, NULL), TEST(defaults_hold_without_environment), TEST(integers_are_strict),
        TEST(reals_are_strict), TEST(reals_do_not_depend_on_the_locale), TEST(booleans_are_strict),
        TEST(words_are_strict), TEST(every_word_has_its_number), TEST(strings_are_copied),
        TEST(unknown_names_are_refused_with_a_proposal),
        TEST(names_that_are_near_no_setting_are_told_and_ignored),
        TEST(removed_settings_are_told_and_ignored), TEST(what_another_setting_leaves_without_effect_is_told),
        TEST(every_bad_value_is_told_and_a_failed_load_is_tried_again),
        TEST(objects_do_not_change_and_do_not_know_each_other), TEST(a_list_in_place_of_the_environment),
        TEST(hash_covers_what_nodes_must_agree_on), TEST(hash_covers_long_values),
        TEST(describe_tells_differences_only), TEST(every_default_passes_its_own_rules),
        TEST(table_has_a_row_for_each_setting), TEST(env_takes_empty_for_unset));
}
