/* SPDX-License-Identifier: Apache-2.0 */
/* See facts.h. */
#include "facts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/version.h"
#include "net/tcp/tcp.h"
#include "system.h"

extern char **environ;

#define LINK_AND_CODEC "link and codec"

/* ---- Of this node ---- */

static void value(FILE *f, const char *text)
{
    for (; *text; text++)
        fputc(*text == '\t' || *text == '\n' ? ' ' : *text, f);
}

static void fact(FILE *f, const char *name, const char *text)
{
    fprintf(f, "fact\t%s\t", name);
    value(f, text);
    fputc('\n', f);
}

static void a_setting(void *arg, const struct nb_param_view *view)
{
    FILE *f = arg;

    if (view->is_default)
        return;
    fprintf(f, "%s=", view->name);
    value(f, view->value);
    fputc(' ', f);
}

static void agreed(void *arg, const struct nb_param_view *view)
{
    if (view->agreed)
        a_setting(arg, view);
}

static void others(void *arg, const struct nb_param_view *view)
{
    if (!view->agreed)
        a_setting(arg, view);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Write NCCL's variables that choose algorithms and sizes. Interfaces, files and debugging may differ. */
static void nccl_variables(FILE *f)
{
    static const char *const own[] = {"NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_CONF_FILE",
                                      "NCCL_TOPO",  "NCCL_NET_PLUGIN",    "NCCL_HOSTID", "NCCL_IB_GID_INDEX"};
    size_t n = 0, count = 0;

    while (environ[count])
        count++;
    char **list = calloc(count + 1, sizeof(*list));
    for (size_t i = 0; list && i < count; i++) {
        bool left_out = strncmp(environ[i], "NCCL_", 5) != 0;
        for (size_t k = 0; k < sizeof(own) / sizeof(own[0]); k++)
            left_out |= strncmp(environ[i], own[k], strlen(own[k])) == 0;
        if (!left_out)
            list[n++] = environ[i];
    }
    if (list)
        qsort(list, n, sizeof(*list), by_text);
    fputs("fact\tNCCL's variables\t", f);
    for (size_t i = 0; list && i < n; i++) {
        value(f, list[i]);
        fputc(' ', f);
    }
    fputc('\n', f);
    free(list);
}

static void devices(const struct doctor *d, FILE *f)
{
    const int n = d->list ? d->list->n : 0;

    fprintf(f, "fact\tnumber of devices\t%d\n", n);
    fputs("fact\tMTU\t", f);
    for (int i = 0; i < n && strcmp(d->transport, "tcp") == 0; i++)
        fprintf(f, "%ld ", system_number(0, "/sys/class/net/%s/mtu", d->list->device[i].net.name));
    fputs("\nfact\tspeeds of devices\t", f);
    for (int i = 0; i < n; i++)
        fprintf(f, "%d ", d->list->device[i].net.speed_mbps);
    fputc('\n', f);
}

void facts_write(const struct doctor *d, FILE *f)
{
    static const char *const words[] = {"0", "1", "2"};
    char host[64] = "", text[32];
    int nccl = 0;

    gethostname(host, sizeof(host) - 1);
    fact(f, "host", host);
    fact(f, "version", nb_version_with_commit());
    fact(f, "transport", *d->transport ? d->transport : "none");
    fputs("fact\tcompared settings\t", f);
    nb_params_each(d->params, agreed, f);
    fputs("\nfact\tsettings\t", f);
    nb_params_each(d->params, others, f);
    fputc('\n', f);
    nccl_variables(f);
    devices(d, f);
    for (int i = 0; i < d->nnccl; i++)
        nccl = d->nccl[i].version ? d->nccl[i].version : nccl;
    fact(f, "NCCL", nccl ? info_nccl_version(nccl, text, sizeof(text)) : "none");
    fprintf(f, "fact\tGPUs\t%d\n", d->gpus);
    fprintf(f, "fact\t" LINK_AND_CODEC "\t%u %u %u %u\n", d->facts.mbps, d->facts.codec, d->facts.workers,
            d->facts.buffer);
    for (size_t i = 0; i < d->report.n; i++) {
        const struct check *c = &d->report.check[i];
        if (c->status == STATUS_OK)
            continue;
        fprintf(f, "check\t%s\t%s\t", words[c->status], c->subject);
        value(f, c->found);
        fputc('\t', f);
        value(f, c->remedy);
        fputc('\n', f);
    }
}

/* ---- Of all ---- */

/* Get the value of a fact as text. Return false when it is missing. */
static bool fact_of(const struct blob *b, const char *name, char *text, size_t cap)
{
    const size_t len = strlen(name);

    for (const char *at = b->data; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        if (strncmp(at, "fact\t", 5) == 0 && strncmp(at + 5, name, len) == 0 && at[5 + len] == '\t') {
            snprintf(text, cap, "%.*s", (int)strcspn(at + 6 + len, "\n"), at + 6 + len);
            const size_t n = strlen(text);
            if (n && text[n - 1] == ' ')
                text[n - 1] = '\0';
            return true;
        }
    text[0] = '\0';
    return false;
}

void facts_names(const struct blob *facts, int nodes, node_name *names)
{
    char host[64];

    for (int i = 0; i < nodes; i++) {
        if (fact_of(&facts[i], "host", host, sizeof(host)))
            snprintf(names[i], sizeof(names[i]), "node %d (%s)", i, host);
        else
            snprintf(names[i], sizeof(names[i]), "node %d", i);
    }
}

void facts_slowest(const struct blob *facts, int nodes, struct nb_reckon_facts *all)
{
    struct nb_reckon_facts one = {0};
    unsigned codec;
    char text[64];

    for (int i = 0; i < nodes; i++) {
        if (!facts[i].data || !fact_of(&facts[i], LINK_AND_CODEC, text, sizeof(text)) ||
            sscanf(text, "%" SCNu32 " %u %" SCNu32 " %" SCNu32, &one.mbps, &codec, &one.workers,
                   &one.buffer) != 4)
            continue;
        one.codec = codec;
        nb_reckon_slowest(all, &one);
    }
}

static void compare(struct report *r, const struct blob *facts, int nodes, const node_name *names,
                    const char *name, enum status status, const char *remedy)
{
    char *all = calloc((size_t)nodes, 512);
    int most = 0, best = -1, present = 0;

    if (!all)
        return;
    for (int i = 0; i < nodes; i++)
        if (facts[i].data)
            fact_of(&facts[i], name, all + 512 * (size_t)i, 512);
    for (int i = 0; i < nodes; i++) {
        int same = 0;
        for (int j = 0; j < nodes && facts[i].data; j++)
            same += facts[j].data && strcmp(all + 512 * (size_t)i, all + 512 * (size_t)j) == 0;
        present += facts[i].data != NULL;
        if (same > most) {
            most = same;
            best = i;
        }
    }
    if (best >= 0 && most == present)
        say(r, STATUS_OK, "nodes", NULL, "%s: the same on %d nodes: %.200s", name, present,
            *(all + 512 * (size_t)best) ? all + 512 * (size_t)best : "(none)");
    for (int i = 0; i < nodes && best >= 0; i++) {
        const char *mine = all + 512 * (size_t)i, *theirs = all + 512 * (size_t)best;
        if (!facts[i].data || strcmp(mine, theirs) == 0)
            continue;
        snprintf(r->where, sizeof(r->where), "%.79s", names[i]);
        say(r, status, "nodes", remedy, "%s: %.180s; %d node%s: %.180s", name, *mine ? mine : "(none)", most,
            most == 1 ? " has" : "s have", *theirs ? theirs : "(none)");
        r->where[0] = '\0';
    }
    free(all);
}

/* Subjects that arrived as text. Subjects of this program's own lists stay valid for its life. */
static const char *subject_of(const char *text, size_t len)
{
    static const char *const known[] = {
        "settings", "environment", "library", "device",     "rdma", "gpu",        "gpu-direct", "memlock",
        "files",    "ports",       "shm",     "processors", "nccl", "compressed", "codec",      "gain"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i]) == len && strncmp(known[i], text, len) == 0)
            return known[i];
    return "node";
}

/* Take one line of a node. The same line of several nodes becomes one check. */
static void take_check(struct report *r, size_t first, const char *line, const char *who)
{
    const char *field[5] = {line};
    size_t len[5];

    for (int i = 0; i < 5; i++) {
        len[i] = strcspn(field[i], "\t\n");
        if (i < 4 && field[i][len[i]] != '\t')
            return;
        if (i < 4)
            field[i + 1] = field[i] + len[i] + 1;
    }
    const enum status status = *field[1] == '2' ? STATUS_PROBLEM : STATUS_WARNING;
    for (size_t i = first; i < r->n; i++) {
        struct check *c = &r->check[i];
        if (c->status == status && strlen(c->found) == len[3] && strncmp(c->found, field[3], len[3]) == 0) {
            const size_t used = strlen(c->where);
            if (used + strlen(who) + 3 < sizeof(c->where))
                snprintf(c->where + used, sizeof(c->where) - used, ", %s", who);
            else if (used + 3 < sizeof(c->where) && !strstr(c->where, "..."))
                strcat(c->where, "...");
            return;
        }
    }
    snprintf(r->where, sizeof(r->where), "%.76s", who);
    say(r, status, subject_of(field[2], len[2]), NULL, "%.*s", (int)len[3], field[3]);
    say_remedy(r, "%.*s", (int)len[4], field[4]);
    r->where[0] = '\0';
}

void facts_judge(struct report *r, const struct blob *facts, int nodes, const node_name *names)
{
    static const struct {
        const char *name;
        enum status status;
        const char *remedy;
    } rules[] = {
        {"version", STATUS_PROBLEM, "install the same release on all nodes"},
        {"compared settings", STATUS_PROBLEM, "set them alike on all nodes: else CollNet is declined"},
        {"settings", STATUS_WARNING, "set them alike, unless that is meant"},
        {"NCCL's variables", STATUS_WARNING,
         "set them alike: what chooses algorithms and sizes must be the same"},
        {"transport", STATUS_PROBLEM, "set NIBBLE_NET alike; nibble-info says why a node has no other"},
        {"number of devices", STATUS_PROBLEM, "name the same interfaces or adapters on all nodes"},
        {"speeds of devices", STATUS_WARNING, "look at the slower node's link"},
        {"MTU", STATUS_WARNING, "set the same MTU on all nodes and switches"},
        {"NCCL", STATUS_PROBLEM, "the same NCCL on all nodes"},
        {"GPUs", STATUS_WARNING, "nodes with as many GPUs"},
    };

    for (int i = 0; i < nodes; i++)
        if (!facts[i].data)
            say(r, STATUS_PROBLEM, "nodes",
                "did it start, with the same --key and --nodes? is node 0's port open to it?",
                "%s has not come, or has ended", names[i]);
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        compare(r, facts, nodes, names, rules[i].name, rules[i].status, rules[i].remedy);
    const size_t first = r->n;
    for (int i = 0; i < nodes; i++)
        for (const char *at = facts[i].data; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
            if (strncmp(at, "check\t", 6) == 0)
                take_check(r, first, at, names[i]);
}
