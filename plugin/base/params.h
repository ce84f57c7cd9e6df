/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings: read once from the environment, checked strictly, constant afterwards.
 */
#ifndef NIBBLE_BASE_PARAMS_H
#define NIBBLE_BASE_PARAMS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Raised with every change of what nodes send each other; part of nb_params_hash. */
#define NB_WIRE_VERSION 3u
/* Raised whenever a rule changes by which all nodes decide alike without a message (coll/schedule/schedule.c,
 * policy/reckon/reckon.c). */
#define NB_RULES_VERSION 9u

/* For each enumerated setting: its words as an enumeration, and as texts in the same order. */
#define NB_WORD(id, text) id,
#define NB_PARAM_WORDS(type, prefix, words) \
    enum nb_##type##_word{words prefix##_COUNT}; \
    extern const char *const nb_##type##_words[prefix##_COUNT];
#include "base/params.def"

struct nb_params {
#define NB_PARAM_INT(field, name, def, min, max, help) int64_t field;
#define NB_PARAM_REAL(field, name, def, min, max, help) double field;
#define NB_PARAM_BOOL(field, name, def, help) int field;
#define NB_PARAM_STR(field, name, def, help) const char *field;
#define NB_PARAM_ENUM(field, name, type, def, help) enum nb_##type##_word field;
#define NB_PARAM_FIXED(type, field, value) type field;
#include "base/params.def"
    char bad_setting[160]; /* the first, which has its default for that (nb_params_read_anyway); "" */
};

/* Read the process's environment into a new object; an empty value counts as unset. 0 and *params, to be
 * freed with nb_params_free, or -EINVAL after one line for each bad value (variable, value, what is allowed;
 * an unknown name that is near a setting's is one, others that start with NIBBLE_ are only told), or
 * -ENOMEM. */
int nb_params_read(const struct nb_params **params);
/* The same, but bad values are left at their defaults, and the first of them is noted in `bad_setting`: 0 or
 * -ENOMEM. For a process whose start must not fail on one node alone. */
int nb_params_read_anyway(struct nb_params **params);
/* Leave a setting at its default because of `why`, as above. */
void nb_params_give_up(struct nb_params *params, const char *name, const char *why);
/* As nb_params_read of a list, "NAME=value" ..., ended by NULL, instead of the environment. */
int nb_params_read_list(const char *const *list, const struct nb_params **params);
/* NULL is allowed. */
void nb_params_free(const struct nb_params *params);
/* The defaults, of static storage. */
const struct nb_params *nb_params_defaults(void);

/* Whether a setting has its default value; false for a name that is no setting's. */
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

/* Hash over names and values of the AGREED settings and the wire format's version: equal on nodes that can
 * talk to each other. */
uint64_t nb_params_hash(const struct nb_params *params);

/* "NAME=value, NAME=value" of settings that differ from their defaults ("" when none) into buf, truncated
 * with "..." when it does not fit. */
void nb_params_describe(const struct nb_params *params, char *buf, size_t cap);

/* The table as Markdown (docs/parameters.md is made of it). */
void nb_params_print_table(FILE *out);

/* Standard NCCL_* variables that nibble honours are read with this: the value, or NULL when unset or "". */
const char *nb_env(const char *name);

/* ---- params_effect.c: settings that another one leaves without effect ---- */

/* Why the setting means nothing as the others are, or NULL: it does, or nobody knows better. Static
 * storage. */
const char *nb_params_pointless(const struct nb_params *params, const char *name);

/* An INFO line for each setting that differs from its default and means nothing because of another one.
 * Returns how many. */
int nb_params_tell_pointless(const struct nb_params *params);

#endif
