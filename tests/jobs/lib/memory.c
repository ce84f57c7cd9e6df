/* SPDX-License-Identifier: Apache-2.0 */
/* See memory.h. */
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE UINT64_C(0x7f2a40000000)
#define SIZE (UINT64_C(64) << 30)
#define UNIT 512u

void memory_open(struct memory *m)
{
    m->cap = 64;
    m->piece = calloc(m->cap, sizeof(*m->piece));
    if (!m->piece)
        abort();
    m->piece[0] = (struct piece){.at = BASE, .bytes = SIZE};
    m->n = 1;
}

void memory_close(struct memory *m)
{
    free(m->piece);
}

static void insert(struct memory *m, size_t at, struct piece piece)
{
    if (m->n == m->cap) {
        m->cap *= 2;
        m->piece = realloc(m->piece, m->cap * sizeof(*m->piece));
        if (!m->piece)
            abort();
    }
    memmove(&m->piece[at + 1], &m->piece[at], (m->n - at) * sizeof(*m->piece));
    m->piece[at] = piece;
    m->n++;
}

static void join_next(struct memory *m, size_t i)
{
    if (i + 1 >= m->n || m->piece[i].used || m->piece[i + 1].used)
        return;
    m->piece[i].bytes += m->piece[i + 1].bytes;
    memmove(&m->piece[i + 1], &m->piece[i + 2], (m->n - i - 2) * sizeof(*m->piece));
    m->n--;
}

address memory_take(struct memory *m, uint64_t bytes)
{
    size_t best = m->n;

    bytes = (bytes + UNIT - 1) / UNIT * UNIT;
    for (size_t i = 0; i < m->n; i++)
        if (!m->piece[i].used && m->piece[i].bytes >= bytes &&
            (best == m->n || m->piece[i].bytes < m->piece[best].bytes))
            best = i;
    if (best == m->n || !bytes)
        abort();
    if (m->piece[best].bytes > bytes) {
        struct piece rest = {.at = m->piece[best].at + bytes, .bytes = m->piece[best].bytes - bytes};
        m->piece[best].bytes = bytes;
        insert(m, best + 1, rest);
    }
    m->piece[best].used = 1;
    return m->piece[best].at;
}

void memory_give(struct memory *m, address at)
{
    size_t i = 0;

    if (!at)
        return;
    while (i < m->n && m->piece[i].at != at)
        i++;
    if (i == m->n || !m->piece[i].used) {
        fprintf(stderr, "a job gives back what it has not taken\n");
        abort();
    }
    m->piece[i].used = 0;
    join_next(m, i);
    if (i)
        join_next(m, i - 1);
}
