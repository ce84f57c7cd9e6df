/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings: read once from the environment, checked strictly, constant afterwards.
 */
#ifndef NIBBLE_BASE_PARAMS_H
#define NIBBLE_BASE_PARAMS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Raised with every change of the messages between nodes. Part of nb_params_hash. */
#define NB_WIRE_VERSION 3u
/* Raised with every change of a rule by which all nodes decide alike without a message
 * (coll/schedule/schedule.c, policy/reckon/reckon.c). */
#define NB_RULES_VERSION 11u

/* For each enumerated setting: its words as an enumeration, and as texts in the same order. */
#define NB_WORD(id, text) id,
#define NB_PARAM_WORDS(type, prefix, words) \
    enum nb_##type##_word{words prefix##_COUNT}; \
    extern const char *const nb_##type##_words[prefix##_COUNT];
#include "base/params.def"

/* Bytes of NIBBLE_SITE, a site's name and perhaps a rate, with its end. */
#define NB_SITE_BYTES 32

struct nb_params {
#define NB_PARAM_INT(field, name, def, min, max, help) int64_t field;
#define NB_PARAM_REAL(field, name, def, min, max, help) double field;
#define NB_PARAM_BOOL(field, name, def, help) int field;
#define NB_PARAM_STR(field, name, def, help) const char *field;
#define NB_PARAM_ENUM(field, name, type, def, help) enum nb_##type##_word field;
#define NB_PARAM_FIXED(type, field, value) type field;
#include "base/params.def"
    char bad_setting[160]; /* the first bad setting, which keeps its default (nb_params_read_anyway); ""
                              without one */
};

/* Read the process's environment into a new object. An empty value counts as unset. Return 0 and *params,
 * which nb_params_free frees. Return -EINVAL after one line for each bad value, with the variable, the value
 * and the allowed values, or -ENOMEM. An unknown name counts as a bad value if it is near a setting's. Other
 * unknown names that start with NIBBLE_ are only logged. */
int nb_params_read(const struct nb_params **params);
/* Do the same, but leave bad values at their defaults, and note the first of them in `bad_setting`. Return 0
 * or -ENOMEM. For a process whose start must not fail on one node alone. */
int nb_params_read_anyway(struct nb_params **params);
/* Leave a setting at its default because of `why`, and note that as above. */
void nb_params_give_up(struct nb_params *params, const char *name, const char *why);
/* Read a list "NAME=value" ..., ended by NULL, instead of the environment, otherwise as nb_params_read. The
 * caller means every entry for nibble, so any other name and an entry without "=" are bad values. */
int nb_params_read_list(const char *const *list, const struct nb_params **params);
/* NULL is allowed. */
void nb_params_free(const struct nb_params *params);
/* Return the defaults, in static storage. */
const struct nb_params *nb_params_defaults(void);

/* Find the parts of NIBBLE_SITE, "paris" or "paris:10000": the length of the name, and the rate in Mbit/s, 0
 * without one. Return 0, or -EINVAL when the rate is no number from 1 to 100000000 or the name is missing. */
int nb_params_site(const char *site, size_t *name, uint32_t *mbps);

/* Return whether a setting has its default value, false for an unknown name. */
bool nb_params_is_default(const struct nb_params *params, const char *name);

/* One setting, for a program that shows them all. The texts are valid during the call. */
struct nb_param_view {
    const char *name, *value, *normal, *allowed, *help;
    bool agreed; /* nodes compare it */
    bool is_default;
};
/* Show every setting, in the order of the table. */
void nb_params_each(const struct nb_params *params, void (*see)(void *arg, const struct nb_param_view *view),
                    void *arg);

/* Return a hash over names and values of the AGREED settings and the wire format's version. It is equal on
 * nodes that can talk to each other. */
uint64_t nb_params_hash(const struct nb_params *params);

/* Write "NAME=value, NAME=value" of the settings that differ from their defaults into buf, "" if all have
 * them. End the text with "..." where buf is too small. */
void nb_params_describe(const struct nb_params *params, char *buf, size_t cap);

/* Print the table as Markdown, from which docs/parameters.md is made. */
void nb_params_print_table(FILE *out);

/* Return the value of a standard NCCL_* variable that nibble honours, or NULL when it is unset or "". */
const char *nb_env(const char *name);

/* ---- params_effect.c: settings that another one leaves without effect ---- */

/* Return why the other settings leave this one without effect, or NULL when it has an effect or may have one.
 * Static storage. */
const char *nb_params_pointless(const struct nb_params *params, const char *name);

/* Log an INFO line for each setting that differs from its default but has no effect because of another one.
 * Return their number. */
int nb_params_log_pointless(const struct nb_params *params);

#endif
