/* SPDX-License-Identifier: Apache-2.0 */
/* Settings. base/params.def describes each setting, and everything here follows from its descriptions. */
#include "base/params.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define NB_PREFIX "NIBBLE_"
#define NB_VALUE_TEXT 256
#define NB_SHOWN 40 /* characters of a name or value in a message, so that the reason behind it stays */

enum nb_param_kind { NB_KIND_INT, NB_KIND_REAL, NB_KIND_BOOL, NB_KIND_STR, NB_KIND_ENUM };

struct nb_param_desc {
    const char *name;
    const char *help;
    const char *const *words; /* enum: its words, by their numbers */
    int nwords;
    const char *def_text; /* str */
    size_t offset;        /* of the field in struct nb_params */
    enum nb_param_kind kind;
    int agreed;
    int64_t def_int, min_int, max_int; /* int, bool and enum */
    double def_real, min_real, max_real;
};

#define NB_DESC(k, a, field, n, h, ...) \
    {.name = (n), \
     .help = (h), \
     .offset = offsetof(struct nb_params, field), \
     .kind = (k), \
     .agreed = (a), \
     __VA_ARGS__},
#define NB_DESC_INT(a, f, n, d, lo, hi, h) \
    NB_DESC(NB_KIND_INT, a, f, n, h, .def_int = (d), .min_int = (lo), .max_int = (hi))
#define NB_DESC_REAL(a, f, n, d, lo, hi, h) \
    NB_DESC(NB_KIND_REAL, a, f, n, h, .def_real = (d), .min_real = (lo), .max_real = (hi))
#define NB_DESC_BOOL(a, f, n, d, h) NB_DESC(NB_KIND_BOOL, a, f, n, h, .def_int = (d), .max_int = 1)
#define NB_DESC_STR(a, f, n, d, h) NB_DESC(NB_KIND_STR, a, f, n, h, .def_text = (d))
#define NB_DESC_ENUM(a, f, n, type, d, h) \
    NB_DESC(NB_KIND_ENUM, a, f, n, h, .def_int = (d), .words = nb_##type##_words, \
            .nwords = sizeof(nb_##type##_words) / sizeof(nb_##type##_words[0]))

#define NB_WORD(id, text) [id] = (text),
#define NB_PARAM_WORDS(type, prefix, words) \
    const char *const nb_##type##_words[prefix##_COUNT] = {words}; \
    _Static_assert(sizeof(enum nb_##type##_word) == sizeof(int), "fields of enumerations are read as int");
#include "base/params.def"

static const struct nb_param_desc nb_descs[] = {
#define NB_PARAM_INT(...) NB_DESC_INT(0, __VA_ARGS__)
#define NB_PARAM_REAL(...) NB_DESC_REAL(0, __VA_ARGS__)
#define NB_PARAM_BOOL(...) NB_DESC_BOOL(0, __VA_ARGS__)
#define NB_PARAM_STR(...) NB_DESC_STR(0, __VA_ARGS__)
#define NB_PARAM_ENUM(...) NB_DESC_ENUM(0, __VA_ARGS__)
#define NB_PARAM_AGREED_INT(...) NB_DESC_INT(1, __VA_ARGS__)
#define NB_PARAM_AGREED_REAL(...) NB_DESC_REAL(1, __VA_ARGS__)
#define NB_PARAM_AGREED_BOOL(...) NB_DESC_BOOL(1, __VA_ARGS__)
#define NB_PARAM_AGREED_STR(...) NB_DESC_STR(1, __VA_ARGS__)
#define NB_PARAM_AGREED_ENUM(...) NB_DESC_ENUM(1, __VA_ARGS__)
#include "base/params.def"
};
#define NB_NDESCS (sizeof(nb_descs) / sizeof(nb_descs[0]))

static pthread_once_t nb_defaults_once = PTHREAD_ONCE_INIT;
static struct nb_params nb_defaults;

static void *nb_field(struct nb_params *params, const struct nb_param_desc *d)
{
    return (char *)params + d->offset;
}

static const void *nb_const_field(const struct nb_params *params, const struct nb_param_desc *d)
{
    return (const char *)params + d->offset;
}

/* Return the number of the setting's word `text`, or -1. */
static int nb_word_number(const struct nb_param_desc *d, const char *text)
{
    for (int i = 0; i < d->nwords; i++)
        if (strcmp(d->words[i], text) == 0)
            return i;
    return -1;
}

static void nb_fill_defaults(void)
{
    for (size_t i = 0; i < NB_NDESCS; i++) {
        const struct nb_param_desc *d = &nb_descs[i];
        void *field = nb_field(&nb_defaults, d);
        switch (d->kind) {
        case NB_KIND_INT: *(int64_t *)field = d->def_int; break;
        case NB_KIND_REAL: *(double *)field = d->def_real; break;
        case NB_KIND_BOOL: *(int *)field = (int)d->def_int; break;
        case NB_KIND_STR: *(const char **)field = d->def_text; break;
        case NB_KIND_ENUM: *(int *)field = (int)d->def_int; break;
        }
    }
#define NB_PARAM_FIXED(type, field, value) nb_defaults.field = (value);
#include "base/params.def"
}

static const struct nb_params *nb_get_defaults(void)
{
    pthread_once(&nb_defaults_once, nb_fill_defaults);
    return &nb_defaults;
}

/* Call strtod in the C locale: a locale that the job has chosen may read "0.5" as 0. */
static int nb_parse_real(const char *text, double *value)
{
    if (!*text || text[strspn(text, "0123456789.eE+-")])
        return -EINVAL; /* strtod would also take blanks, hex, inf and nan */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c == (locale_t)0)
        return -errno;
    char *end;
    errno = 0;
    *value = strtod_l(text, &end, c);
    int bad = errno == ERANGE || *end || end == text;
    freelocale(c);
    return bad ? -EINVAL : 0;
}

static int nb_parse_int(const char *text, int64_t *value)
{
    const char *digits = text + (*text == '-');
    if (!*digits || digits[strspn(digits, "0123456789")])
        return -EINVAL;
    errno = 0;
    long long v = strtoll(text, NULL, 10);
    *value = v;
    return errno ? -EINVAL : 0;
}

/* Describe the values that a setting takes, such as "an integer from 1 to 5", for messages and the table. */
static void nb_allowed(const struct nb_param_desc *d, char *buf, size_t cap)
{
    switch (d->kind) {
    case NB_KIND_INT:
        if (d->max_int == INT64_MAX)
            snprintf(buf, cap, "an integer of at least %lld", (long long)d->min_int);
        else
            snprintf(buf, cap, "an integer from %lld to %lld", (long long)d->min_int, (long long)d->max_int);
        break;
    case NB_KIND_REAL: snprintf(buf, cap, "a number from %g to %g", d->min_real, d->max_real); break;
    case NB_KIND_BOOL: snprintf(buf, cap, "0 or 1"); break;
    case NB_KIND_STR: snprintf(buf, cap, "text"); break;
    case NB_KIND_ENUM:
        for (int i = 0; i < d->nwords && cap; i++) {
            const char *join = i == 0 ? "" : i + 1 < d->nwords ? ", " : " or ";
            const size_t n = (size_t)snprintf(buf, cap, "%s%s", join, d->words[i]);
            buf += n < cap ? n : cap;
            cap -= n < cap ? n : cap;
        }
        break;
    }
}

/* Parse `text` into the setting's field of `params`. */
static int nb_parse(const struct nb_param_desc *d, const char *text, struct nb_params *params)
{
    void *field = nb_field(params, d);
    int64_t i = 0;
    double r = 0.0;
    switch (d->kind) {
    case NB_KIND_INT:
        if (nb_parse_int(text, &i) || i < d->min_int || i > d->max_int)
            return -EINVAL;
        *(int64_t *)field = i;
        return 0;
    case NB_KIND_REAL:
        if (nb_parse_real(text, &r) || !(r >= d->min_real && r <= d->max_real))
            return -EINVAL;
        *(double *)field = r;
        return 0;
    case NB_KIND_BOOL:
        if ((text[0] != '0' && text[0] != '1') || text[1])
            return -EINVAL;
        *(int *)field = text[0] - '0';
        return 0;
    case NB_KIND_STR: {
        char *copy = strdup(text); /* the environment may change later */
        if (!copy)
            return -ENOMEM;
        *(const char **)field = copy;
        return 0;
    }
    case NB_KIND_ENUM: {
        int number = nb_word_number(d, text);
        if (number < 0)
            return -EINVAL;
        *(int *)field = number;
        return 0;
    }
    }
    return -EINVAL;
}

static void nb_free_strings(struct nb_params *params)
{
    const struct nb_params *defaults = nb_get_defaults();
    for (size_t i = 0; i < NB_NDESCS; i++) {
        if (nb_descs[i].kind != NB_KIND_STR)
            continue;
        const char **field = nb_field(params, &nb_descs[i]);
        if (*field != *(const char *const *)nb_const_field(defaults, &nb_descs[i]))
            free((char *)(uintptr_t)*field);
    }
    *params = *defaults;
}

/* Return the edit distance between the first n characters of `a`, in capitals, and the whole of `b`. Names
 * are short. */
static unsigned nb_distance(const char *a, size_t n, const char *b)
{
    unsigned row[64];
    size_t m = strlen(b);
    if (m >= sizeof(row) / sizeof(row[0]))
        return ~0u;
    for (size_t j = 0; j <= m; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned best = diagonal + (toupper((unsigned char)a[i - 1]) != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

/* Record the fault if it is the first. */
static void nb_note_fault(char *fault, size_t cap, const char *text)
{
    if (!fault[0])
        snprintf(fault, cap, "%.*s", (int)cap - 1, text);
}

/* Return the setting of which an unknown name may be a misspelling, or NULL. A quarter of its characters may
 * be wrong, or its end missing. Other programs have names that begin like ours, too: where a service is named
 * nibble-train, Kubernetes gives every container NIBBLE_TRAIN_SERVICE_HOST. */
static const char *nb_nearest(const char *name, size_t n, bool *known)
{
    const size_t own = n - strlen(NB_PREFIX);
    const char *closest = NULL;
    unsigned least = own / 4 ? (unsigned)own / 4 + 1 : 2;

    *known = false;
    for (size_t i = 0; i < NB_NDESCS; i++) {
        const char *setting = nb_descs[i].name;
        unsigned distance = nb_distance(name, n, setting);
        if (own && strncmp(name, setting, n) == 0 && setting[n] == '_')
            distance = 1;
        if (distance < least) {
            least = distance;
            closest = setting;
        }
        *known |= strlen(setting) == n && memcmp(name, setting, n) == 0;
    }
    return closest;
}

static const struct {
    const char *name, *instead;
} nb_removed[] = {
#define NB_PARAM_REMOVED(name, instead) {name, instead},
#include "base/params.def"
};

/* Warn of `entry`, NAME=value, if its setting or word was removed, and return whether it was. Scripts that
 * still have it continue to work. */
static bool nb_tell_removed(const char *entry)
{
    for (size_t i = 0; i < sizeof(nb_removed) / sizeof(nb_removed[0]); i++) {
        const char *name = nb_removed[i].name;
        const size_t n = strlen(name);
        if (strncmp(entry, name, n) != 0 || (entry[n] && (entry[n] != '=' || strchr(name, '='))))
            continue;
        NB_WARN("setting %s is gone, and ignored: %s", name, nb_removed[i].instead);
        return true;
    }
    return false;
}

/* Reject unknown names that start like ours, so that a misspelt setting is reported. In a list that is
 * `ours`, reject any other name, too. */
static int nb_reject_unknown(const char *const *list, bool ours, char *fault, size_t cap)
{
    int rc = 0;
    for (const char *const *e = list; e && *e; e++) {
        const bool prefixed = strncmp(*e, NB_PREFIX, strlen(NB_PREFIX)) == 0;
        if (!ours && !prefixed)
            continue;
        const size_t n = strcspn(*e, "=");
        const int shown = n < NB_SHOWN ? (int)n : NB_SHOWN;
        char text[NB_VALUE_TEXT];
        bool known = false;
        const char *closest = prefixed ? nb_nearest(*e, n, &known) : NULL;
        if ((known && ((*e)[n] || !ours)) || nb_tell_removed(*e))
            continue;
        if (!closest && !ours) {
            NB_WARN("%.*s is not a setting of nibble and is ignored", shown, *e);
            continue;
        }
        if (known)
            snprintf(text, sizeof(text), "setting %.*s has no value", shown, *e);
        else if (closest)
            snprintf(text, sizeof(text), "unknown setting %.*s (did you mean %s?)", shown, *e, closest);
        else
            snprintf(text, sizeof(text), "unknown setting %.*s", shown, *e);
        NB_ALERT("%s", text);
        nb_note_fault(fault, cap, text);
        rc = -EINVAL;
    }
    return rc;
}

/* Return the value of a variable in a list, NULL when it is missing or empty. */
static const char *nb_look_up(const char *const *list, const char *name)
{
    size_t n = strlen(name);

    for (const char *const *e = list; e && *e; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return (*e)[n + 1] ? *e + n + 1 : NULL;
    return NULL;
}

/* Read all settings. Bad values stay at their defaults. Return 0, or the error of the first, which
 * params->bad_setting describes. */
static int nb_load(const char *const *list, bool ours, struct nb_params *params)
{
    *params = *nb_get_defaults();
    int rc = nb_reject_unknown(list, ours, params->bad_setting, sizeof(params->bad_setting));
    for (size_t i = 0; i < NB_NDESCS; i++) {
        const struct nb_param_desc *d = &nb_descs[i];
        const char *text = nb_look_up(list, d->name);
        int err = text ? nb_parse(d, text, params) : 0;
        if (!err)
            continue;
        char allowed[NB_VALUE_TEXT], line[2 * NB_VALUE_TEXT];
        snprintf(line, sizeof(line), "%s=%s", d->name, text);
        if (nb_tell_removed(line))
            continue;
        if (err == -EINVAL) {
            nb_allowed(d, allowed, sizeof(allowed));
            snprintf(line, sizeof(line), "bad setting %s=%.*s%s: it must be %s", d->name, NB_SHOWN, text,
                     strlen(text) > NB_SHOWN ? "..." : "", allowed);
        } else {
            snprintf(line, sizeof(line), "cannot read setting %s: %s", d->name, strerror(-err));
        }
        NB_ALERT("%s", line);
        nb_note_fault(params->bad_setting, sizeof(params->bad_setting), line);
        rc = rc ? rc : err;
    }
    if (params->min_bytes >= 0)
        params->rs_min_bytes = params->ar_min_bytes = params->ag_min_bytes = params->tuner_min_bytes =
            params->min_bytes;
    return rc;
}

static int nb_read(const char *const *list, bool ours, const struct nb_params **params)
{
    struct nb_params *made = malloc(sizeof(*made));

    if (!made)
        return -ENOMEM;
    int rc = nb_load(list, ours, made);
    if (rc) {
        nb_params_free(made);
        return rc;
    }
    *params = made;
    return 0;
}

int nb_params_read_list(const char *const *list, const struct nb_params **params)
{
    return nb_read(list, true, params);
}

int nb_params_read(const struct nb_params **params)
{
    extern char **environ;
    return nb_read((const char *const *)environ, false, params);
}

int nb_params_read_anyway(struct nb_params **params)
{
    extern char **environ;
    struct nb_params *made = malloc(sizeof(*made));

    if (!made)
        return -ENOMEM;
    int rc = nb_load((const char *const *)environ, false, made);
    if (rc && rc != -EINVAL) {
        nb_params_free(made);
        return rc;
    }
    *params = made;
    return 0;
}

void nb_params_give_up(struct nb_params *params, const char *name, const char *why)
{
    const struct nb_params *defaults = nb_get_defaults();

    nb_note_fault(params->bad_setting, sizeof(params->bad_setting), why);
    for (size_t i = 0; i < NB_NDESCS; i++) {
        if (strcmp(nb_descs[i].name, name) != 0 || nb_descs[i].kind != NB_KIND_STR)
            continue;
        const char **field = nb_field(params, &nb_descs[i]);
        const char *before = *(const char *const *)nb_const_field(defaults, &nb_descs[i]);
        if (*field != before)
            free((char *)(uintptr_t)*field);
        *field = before;
    }
}

void nb_params_free(const struct nb_params *params)
{
    struct nb_params *own = (struct nb_params *)(uintptr_t)params;

    if (!own)
        return;
    nb_free_strings(own);
    free(own);
}

const struct nb_params *nb_params_defaults(void)
{
    return nb_get_defaults();
}

/* Write the setting's value in the form that the environment would have. */
static void nb_value_text(const struct nb_param_desc *d, const struct nb_params *params, char *buf,
                          size_t cap)
{
    const void *field = nb_const_field(params, d);
    switch (d->kind) {
    case NB_KIND_INT: snprintf(buf, cap, "%lld", (long long)*(const int64_t *)field); break;
    case NB_KIND_REAL: {
        snprintf(buf, cap, "%.10g", *(const double *)field);
        char *comma = strchr(buf, ','); /* the job's locale */
        if (comma)
            *comma = '.';
        break;
    }
    case NB_KIND_BOOL: snprintf(buf, cap, "%d", *(const int *)field); break;
    case NB_KIND_STR: snprintf(buf, cap, "%s", *(const char *const *)field); break;
    case NB_KIND_ENUM: snprintf(buf, cap, "%s", d->words[*(const int *)field]); break;
    }
}

static const struct nb_param_desc *nb_desc_of(const char *name)
{
    for (size_t i = 0; i < NB_NDESCS; i++)
        if (strcmp(nb_descs[i].name, name) == 0)
            return &nb_descs[i];
    return NULL;
}

int nb_params_site(const char *site, size_t *name, uint32_t *mbps)
{
    const char *rate = strchr(site, ':');
    long value = 0;
    char *end;

    *name = rate ? (size_t)(rate - site) : strlen(site);
    *mbps = 0;
    if (!rate)
        return 0;
    if (isdigit((unsigned char)rate[1]))
        value = strtol(rate + 1, &end, 10);
    if (value < 1 || value > 100000000 || *end || !*name)
        return -EINVAL;
    *mbps = (uint32_t)value;
    return 0;
}

bool nb_params_is_default(const struct nb_params *params, const char *name)
{
    const struct nb_param_desc *d = nb_desc_of(name);
    char value[NB_VALUE_TEXT], normal[NB_VALUE_TEXT];

    if (!d)
        return false;
    nb_value_text(d, params, value, sizeof(value));
    nb_value_text(d, nb_get_defaults(), normal, sizeof(normal));
    return strcmp(value, normal) == 0;
}

/* FNV-1a: short, and the same on every machine. It need not withstand attacks. */
static uint64_t nb_fnv(uint64_t hash, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        hash = (hash ^ *p) * 0x100000001b3u;
    return (hash ^ 0xff) * 0x100000001b3u; /* a separator that occurs in no text */
}

uint64_t nb_params_hash(const struct nb_params *params)
{
    char text[NB_VALUE_TEXT];
    snprintf(text, sizeof(text), "wire format %u, rules %u", NB_WIRE_VERSION, NB_RULES_VERSION);
    uint64_t hash = nb_fnv(0xcbf29ce484222325u, text);
    for (size_t i = 0; i < NB_NDESCS; i++) {
        if (!nb_descs[i].agreed)
            continue;
        nb_value_text(&nb_descs[i], params, text, sizeof(text));
        hash = nb_fnv(hash, nb_descs[i].name);
        /* The whole string, of which `text` holds the beginning. */
        const char *value = text;
        if (nb_descs[i].kind == NB_KIND_STR)
            value = *(const char *const *)nb_const_field(params, &nb_descs[i]);
        hash = nb_fnv(hash, value);
    }
    return hash;
}

void nb_params_describe(const struct nb_params *params, char *buf, size_t cap)
{
    const struct nb_params *defaults = nb_get_defaults();
    size_t at = 0;
    if (cap == 0)
        return;
    buf[0] = '\0';
    for (size_t i = 0; i < NB_NDESCS; i++) {
        char value[NB_VALUE_TEXT];
        char normal[NB_VALUE_TEXT];
        nb_value_text(&nb_descs[i], params, value, sizeof(value));
        nb_value_text(&nb_descs[i], defaults, normal, sizeof(normal));
        if (strcmp(value, normal) == 0)
            continue;
        int n = snprintf(buf + at, cap - at, "%s%s=%s", at ? ", " : "", nb_descs[i].name, value);
        at += (size_t)n;
        if (at >= cap) {
            if (cap >= 4)
                memcpy(buf + cap - 4, "...", 4);
            return;
        }
    }
}

void nb_params_each(const struct nb_params *params, void (*see)(void *arg, const struct nb_param_view *view),
                    void *arg)
{
    for (size_t i = 0; i < NB_NDESCS; i++) {
        const struct nb_param_desc *d = &nb_descs[i];
        char value[NB_VALUE_TEXT], normal[NB_VALUE_TEXT], allowed[NB_VALUE_TEXT];
        nb_value_text(d, params, value, sizeof(value));
        nb_value_text(d, nb_get_defaults(), normal, sizeof(normal));
        nb_allowed(d, allowed, sizeof(allowed));
        const struct nb_param_view view = {.name = d->name,
                                           .value = value,
                                           .normal = normal,
                                           .allowed = allowed,
                                           .help = d->help,
                                           .agreed = d->agreed,
                                           .is_default = strcmp(value, normal) == 0};
        see(arg, &view);
    }
}

static const struct {
    const char *title;
    size_t from; /* offset of the first setting's field */
} nb_groups[] = {
#define NB_PARAM_GROUP(title, field) {title, offsetof(struct nb_params, field)},
#include "base/params.def"
};

void nb_params_print_table(FILE *out)
{
    for (size_t i = 0, group = 0; i < NB_NDESCS; i++) {
        const struct nb_param_desc *d = &nb_descs[i];
        char normal[NB_VALUE_TEXT];
        char allowed[NB_VALUE_TEXT];
        if (group < sizeof(nb_groups) / sizeof(nb_groups[0]) && nb_groups[group].from == d->offset) {
            fprintf(out, "%s## %s\n\n| Variable | Default | Allowed | Meaning |\n|---|---|---|---|\n",
                    group ? "\n" : "", nb_groups[group].title);
            group++;
        }
        nb_value_text(d, nb_get_defaults(), normal, sizeof(normal));
        nb_allowed(d, allowed, sizeof(allowed));
        fprintf(out, "| `%s`%s | %s%s%s | %s | %s |\n", d->name, d->agreed ? " \\*" : "", *normal ? "`" : "",
                *normal ? normal : "(empty)", *normal ? "`" : "", allowed, d->help);
    }
}

const char *nb_env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}
