/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs by an author who has not read the plugin's rules: tables that follow their sums as weights follow
 * gradients. The tables hold other things than weights, and their sums have to stay exact. */
#include <math.h>
#include <string.h>

#include "lib/parallel.h"

#define TABLE 24576u

/* ---- tables that follow their sums --------------------------------------------------------------------- */

/* A vector that all nodes gather. Each node adds its part to sums, by which the owner of a block moves the
 * block. */
struct table {
    float *x, *part[2][NODES],
        *extra[2]; /* parts of up to two sums, further values that the kind of table needs */
    address at, in, out;
    uint64_t random, seed;
    int step;
};

struct kind {
    void (*begin)(struct table *t);         /* NULL: zeros */
    void (*fill)(struct table *t, int sum); /* write the parts of a sum */
    void (*apply)(struct table *t);
    int sums; /* 0: 1 */
    ncclDataType_t type;
};

/* Run two tables. beside: on the communicator of a training with layers of their size. */
static void tables(struct job *job, const struct kind *k, int beside)
{
    enum { TABLES = 2 };
    struct comm *world = comm_between(job, NULL);
    struct fsdp f = {0};
    struct table table[TABLES] = {{0}};
    const size_t bytes = TABLE * 4;

    if (beside)
        f = fsdp_open(job, world, model_new(job, &(struct model_settings){.units = 3}), 2);
    for (struct table *t = table; t < table + TABLES; t++) {
        *t = (struct table){.x = values(job, TABLE),
                            .extra = {values(job, TABLE), values(job, TABLE)},
                            .at = memory_take(job_memory(job), bytes),
                            .in = memory_take(job_memory(job), bytes),
                            .out = memory_take(job_memory(job), bytes / NODES)};
        t->seed = t->random = (uint64_t)job_buffer(job) * 7919;
        for (int r = 0; r < NODES; r++)
            for (int s = 0; s < 2; s++)
                t->part[s][r] = values(job, TABLE);
        if (k->begin)
            k->begin(t);
    }
    while (job_step(job)) {
        for (struct table *t = table; t < table + TABLES; t++)
            all_gather(world, &(struct buffer){.type = k->type, .n = TABLE, .send = t->at, .recv = t->at},
                       t->x);
        if (beside) {
            fsdp_forward(&f);
            fsdp_backward(&f);
        }
        for (struct table *t = table; t < table + TABLES; t++) {
            t->step = job_now(job);
            for (int s = 0; s < (k->sums ? k->sums : 1); s++) {
                for (int r = 0; r < NODES; r++)
                    memset(t->part[s][r], 0, bytes);
                k->fill(t, s);
                reduce_scatter(world,
                               &(struct buffer){.type = k->type, .n = TABLE, .send = t->in, .recv = t->out},
                               t->part[s][0], t->part[s][1]);
            }
            k->apply(t);
        }
        if (beside)
            fsdp_update(&f);
    }
}

static float sum_of(const struct table *t, int s, size_t i)
{
    return t->part[s][0][i] + t->part[s][1][i];
}

static uint64_t hash(uint64_t a, uint64_t b)
{
    uint64_t state = a * 1000003u + b;

    return draw(&state);
}

/* PageRank on a graph that loses and gains links. Each node has the links of half the pages. */
static void pages_begin(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] = 1.0f;
}

static void pages_fill(struct table *t, int s)
{
    enum { LINKS = 8 };
    for (size_t from = 0; from < TABLE; from++)
        for (size_t k = 0; k < LINKS; k++) {
            const uint64_t link = hash(t->seed, from * LINKS + k),
                           age = ((uint64_t)t->step + link % 400) / 400;
            const uint64_t to = hash(link, age) % TABLE;
            t->part[s][from / (TABLE / NODES)][to * to / TABLE] += t->x[from] / LINKS; /* some have many */
        }
}

static void pages_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] = 0.15f + 0.85f * sum_of(t, 0, i);
}

/* AD-LDA: counts of words in topics. Each node moves its own tokens from topic to topic, and the sum of the
 * changes is added to the counts. */
#define TOPICS 32u
static void topics_begin(struct table *t)
{
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < TABLE; i++) {
            t->extra[r][i] = (float)(draw(&t->random) % 20);
            t->x[i] += t->extra[r][i];
        }
}

static void topics_fill(struct table *t, int s)
{
    for (int r = 0; r < NODES; r++)
        for (int token = 0; token < 20000; token++) {
            const uint64_t word = draw(&t->random) % (TABLE / TOPICS), z = draw(&t->random);
            const size_t from = word * TOPICS + z % TOPICS,
                         to = word * TOPICS +
                              (z & 1024 ? hash(t->seed, word) + (z >> 32) % 4 : z >> 40) % TOPICS;
            if (t->extra[r][from] < 1.0f)
                continue;
            t->extra[r][from]--;
            t->part[s][r][from]--;
            t->extra[r][to]++;
            t->part[s][r][to]++;
        }
}

static void add_sum(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] += sum_of(t, 0, i);
}

/* Exploration by counts: how often the actors have visited each hashed state. */
static void visits_fill(struct table *t, int s)
{
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < TABLE; i++) {
            const uint64_t usual = 1 + hash(t->seed, i) % 30;
            t->part[s][r][i] = (float)(draw(&t->random) % (2 * usual));
        }
}

/* Molecular dynamics: atoms of a crystal. Each node computes the forces of half the bonds, and their sums
 * move the atoms. */
#define ATOMS (TABLE / 3)
static void atoms_begin(struct table *t)
{
    for (size_t a = 0; a < ATOMS; a++) {
        const size_t place[3] = {a % 16, a / 16 % 16, a / 256};
        for (size_t d = 0; d < 3; d++)
            t->x[3 * a + d] = (float)place[d] + 0.05f * noise(&t->random);
    }
}

static void atoms_fill(struct table *t, int s)
{
    static const size_t next[3] = {1, 16, 256};
    for (size_t a = 0; a < ATOMS; a++)
        for (size_t axis = 0; axis < 3; axis++) {
            const size_t b = a + next[axis];
            if (axis == 2 ? b >= ATOMS : a / next[axis] % 16 == 15)
                continue;
            for (size_t d = 0; d < 3; d++) {
                const float by = t->x[3 * b + d] - t->x[3 * a + d] - (d == axis ? 1.0f : 0.0f);
                const float force = (d == axis ? 1.0f : 0.3f) * by + 2.0f * by * by * by;
                t->part[s][a % NODES][3 * a + d] += force;
                t->part[s][a % NODES][3 * b + d] -= force;
            }
        }
}

static void atoms_move(struct table *t)
{
    float *const v = t->extra[0];
    for (size_t i = 0; i < TABLE; i++) {
        v[i] = 0.99f * v[i] + 0.1f * sum_of(t, 0, i) + 0.002f * noise(&t->random); /* a thermostat */
        t->x[i] += 0.1f * v[i];
    }
}

/* Relax the crystal instead: go down along the forces, and start from other places now and then. */
static void atoms_relax(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] += 0.05f * sum_of(t, 0, i);
    if (t->step % 60 == 59)
        atoms_begin(t);
}

/* Finite elements: heat between the cells of a plate with conductivities of their own, and a moving flame.
 * Each node assembles half the elements. */
static void plate_fill(struct table *t, int s)
{
    enum { WIDTH = 128, HEIGHT = 192 };
    for (size_t i = 0; i < TABLE; i++)
        for (size_t down = 0; down < 2; down++) {
            const size_t j = down ? i + WIDTH : i + 1;
            const float by = 0.02f + (float)(hash(t->seed, 2 * i + down) % 256) / 1500;
            if (down ? j >= TABLE : j % WIDTH == 0)
                continue;
            t->part[s][i / (TABLE / NODES)][i] += by * (t->x[j] - t->x[i]);
            t->part[s][i / (TABLE / NODES)][j] -= by * (t->x[j] - t->x[i]);
        }
    for (size_t i = 0; i < TABLE; i++) /* the air cools it */
        t->part[s][1][i] -= 0.01f * t->x[i];
    for (size_t k = 0; k < 900; k++) {
        const size_t row = ((size_t)t->step / 2 + k / 30) % HEIGHT,
                     column = (20 + (size_t)t->step + k % 30) % WIDTH;
        t->part[s][0][row * WIDTH + column] += 0.05f;
    }
}

/* Emission tomography (OSEM): the sums of the ratios of measured and expected counts correct the picture by
 * factors. A new picture comes after 50 steps. */
static void scan_begin(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++) {
        t->x[i] = 1.0f;
        t->extra[0][i] = fabsf(noise(&t->random)) * (i / 512 % 2 ? 3.0f : 0.5f);
    }
}

static void scan_fill(struct table *t, int s)
{
    enum { RAY = 8 };
    memset(t->extra[1], 0, TABLE * sizeof(float));
    for (size_t bin = (size_t)t->step % 2; bin < TABLE; bin += 2) {
        float expected = 1e-3f, measured = 1e-3f;
        size_t pixel[RAY];
        for (size_t k = 0; k < RAY; k++) {
            pixel[k] = hash(t->seed, bin * RAY + k) % TABLE;
            expected += t->x[pixel[k]];
            measured += t->extra[0][pixel[k]];
        }
        measured = fmaxf(measured + 0.3f * sqrtf(measured) * noise(&t->random), 0.0f);
        for (size_t k = 0; k < RAY; k++) {
            t->part[s][bin / 2 % NODES][pixel[k]] += measured / expected;
            t->extra[1][pixel[k]] += 1.0f;
        }
    }
}

static void scan_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        if (t->extra[1][i] > 0)
            t->x[i] *= sum_of(t, 0, i) / t->extra[1][i];
    if (t->step % 50 == 49)
        scan_begin(t);
}

/* Factors of a matrix by Lee and Seung's rules: one sum is a numerator, another a denominator, and their
 * ratio is the factor of a weight. Each step sees other columns. */
#define RANK 32u
#define FEATURES (TABLE / RANK)
#define COLUMNS 12u
static void factors_begin(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++) {
        t->x[i] = 0.5f + 0.2f * fabsf(noise(&t->random));
        t->extra[0][i] = draw(&t->random) % 4 ? 0.05f : fabsf(noise(&t->random)); /* the true factors */
    }
}

static void factors_fill(struct table *t, int s)
{
    for (int r = 0; r < NODES && !s; r++)
        for (unsigned c = 0; c < COLUMNS; c++) {
            static float column[FEATURES], fit[FEATURES];
            float truth_of[RANK], h[RANK];
            for (unsigned k = 0; k < RANK; k++) {
                truth_of[k] = draw(&t->random) % 4 ? 0.0f : fabsf(noise(&t->random));
                h[k] = 0.3f;
            }
            for (unsigned j = 0; j < FEATURES; j++) {
                column[j] = 0.02f * fabsf(noise(&t->random));
                for (unsigned k = 0; k < RANK; k++)
                    column[j] += t->extra[0][j * RANK + k] * truth_of[k];
            }
            for (int round = 0; round < 3; round++) {
                float above[RANK] = {0}, below[RANK] = {0};
                for (unsigned j = 0; j < FEATURES; j++) {
                    const float *w = t->x + j * RANK;
                    fit[j] = 1e-6f;
                    for (unsigned k = 0; k < RANK; k++)
                        fit[j] += w[k] * h[k];
                    for (unsigned k = 0; k < RANK && round < 2; k++) {
                        above[k] += w[k] * column[j];
                        below[k] += w[k] * fit[j];
                    }
                }
                for (unsigned k = 0; k < RANK && round < 2; k++)
                    h[k] *= above[k] / (below[k] + 1e-6f);
            }
            for (unsigned i = 0; i < TABLE; i++) {
                t->part[0][r][i] += column[i / RANK] * h[i % RANK];
                t->part[1][r][i] += fit[i / RANK] * h[i % RANK];
            }
        }
}

static void factors_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] *= sqrtf((sum_of(t, 0, i) + 1e-4f) / (sum_of(t, 1, i) + 1e-4f));
    for (unsigned k = 0; k < RANK; k++) { /* the other factor takes the scale */
        float squares = 1e-20f;
        for (unsigned j = 0; j < FEATURES; j++)
            squares += t->x[j * RANK + k] * t->x[j * RANK + k];
        for (unsigned j = 0; j < FEATURES; j++)
            t->x[j * RANK + k] *= sqrtf(0.25f * FEATURES / squares);
    }
}

/* Principal components by power iteration: all nodes sum products of the data with the gathered basis, and
 * the method of Gram and Schmidt makes the next basis of them. */
static void basis_fill(struct table *t, int s)
{
    enum { SAMPLES = 24, SOURCES = 40 };
    for (int r = 0; r < NODES; r++) {
        uint64_t data = t->seed + 1 + (uint64_t)r; /* the same in each step */
        for (int k = 0; k < SAMPLES; k++) {
            float x[FEATURES], along[RANK] = {0};
            for (unsigned j = 0; j < FEATURES; j++)
                x[j] = 0.3f * noise(&data);
            for (unsigned source = 0; source < SOURCES; source++) {
                const float by = noise(&data) * 4.0f / (float)(1 + source);
                uint64_t direction = t->seed + source;
                for (unsigned j = 0; j < FEATURES; j += 4) {
                    const uint64_t bits = draw(&direction);
                    for (unsigned i = 0; i < 4; i++)
                        x[j + i] += bits >> i & 1 ? by : -by;
                }
            }
            for (unsigned i = 0; i < TABLE; i++)
                along[i % RANK] += x[i / RANK] * t->x[i];
            for (unsigned i = 0; i < TABLE; i++)
                t->part[s][r][i] += x[i / RANK] * along[i % RANK] / SAMPLES;
        }
    }
}

static void orthonormal(float *x)
{
    for (unsigned c = 0; c < RANK; c++) {
        float squares = 1e-20f;
        for (unsigned d = 0; d < c; d++) {
            float along = 0;
            for (unsigned j = 0; j < FEATURES; j++)
                along += x[j * RANK + c] * x[j * RANK + d];
            for (unsigned j = 0; j < FEATURES; j++)
                x[j * RANK + c] -= along * x[j * RANK + d];
        }
        for (unsigned j = 0; j < FEATURES; j++)
            squares += x[j * RANK + c] * x[j * RANK + c];
        for (unsigned j = 0; j < FEATURES; j++)
            x[j * RANK + c] /= sqrtf(squares);
    }
}

static void basis_begin(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] = noise(&t->random);
    orthonormal(t->x);
}

static void basis_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] = sum_of(t, 0, i);
    orthonormal(t->x);
}

/* A neural ODE whose field is tensor parallel: Euler's steps add the summed field to the gathered state. Each
 * batch starts anew. */
static void ode_begin(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] = noise(&t->random);
}

static void ode_fill(struct table *t, int s)
{
    for (size_t i = 0; i < TABLE; i++) {
        const size_t token = i / 256 * 256, c = i % 256;
        for (int r = 0; r < NODES; r++)
            for (size_t k = 0; k < 2; k++) {
                const uint64_t link = hash(t->seed + k, 2 * c + (size_t)r);
                t->part[s][r][i] += tanhf(2.0f * t->x[token + link % 256]) * (link & 4096 ? 0.8f : -0.8f);
            }
        t->part[s][0][i] -= 0.3f * t->x[i];
    }
}

static void ode_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] += 0.1f * sum_of(t, 0, i);
    if (t->step % 10 == 9)
        ode_begin(t);
}

/* A network of leaky neurons that follows an input without an end. */
static void leaky_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] += 0.1f * (tanhf(sum_of(t, 0, i) + 0.5f * noise(&t->random)) - t->x[i]);
}

/* Linear attention over sequences in parts: the state of 24 heads decays and adds the products of keys and
 * values of all nodes. */
static void attention_fill(struct table *t, int s)
{
    enum { HEAD = 32, TOKENS = 8 };
    for (int r = 0; r < NODES; r++)
        for (unsigned head = 0; head < TABLE / HEAD / HEAD; head++)
            for (int token = 0; token < TOKENS; token++) {
                float key[HEAD], value[HEAD];
                for (unsigned k = 0; k < HEAD; k++) {
                    key[k] = fmaxf(noise(&t->random), 0.0f) / HEAD;
                    value[k] = noise(&t->random) + (float)(hash(head, k) % 3) - 1.0f;
                }
                for (unsigned i = 0; i < HEAD * HEAD; i++)
                    t->part[s][r][head * HEAD * HEAD + i] += key[i / HEAD] * value[i % HEAD];
            }
}

static void attention_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] = 0.97f * t->x[i] + sum_of(t, 0, i);
}

/* A Boltzmann machine by contrastive divergence: one sum has products of units with data, another has
 * products with reconstructions, and their difference moves the weights. */
static void boltzmann_fill(struct table *t, int s)
{
    enum { VISIBLE = 192, HIDDEN = 128, SAMPLES = 8 };
    for (int r = 0; r < NODES && !s; r++)
        for (int k = 0; k < SAMPLES; k++) {
            const uint64_t pattern = draw(&t->random) % 10;
            float v[VISIBLE], h[HIDDEN];
            for (unsigned i = 0; i < VISIBLE; i++)
                v[i] = (float)((hash(t->seed + pattern, i) & 1) ^ (draw(&t->random) % 10 == 0));
            for (int phase = 0; phase < 2; phase++) {
                for (unsigned j = 0; j < HIDDEN; j++) {
                    float x = 0;
                    for (unsigned i = 0; i < VISIBLE; i++)
                        x += t->x[i * HIDDEN + j] * v[i];
                    h[j] = 1.0f / (1.0f + expf(-x));
                }
                for (unsigned i = 0; i < TABLE; i++)
                    t->part[phase][r][i] += v[i / HIDDEN] * h[i % HIDDEN] / SAMPLES;
                for (unsigned j = 0; j < HIDDEN && !phase; j++)
                    h[j] = h[j] > (float)(draw(&t->random) % 1024) / 1024 ? 1.0f : 0.0f;
                for (unsigned i = 0; i < VISIBLE && !phase; i++) {
                    float x = 0;
                    for (unsigned j = 0; j < HIDDEN; j++)
                        x += t->x[i * HIDDEN + j] * h[j];
                    v[i] = 1.0f / (1.0f + expf(-x));
                }
            }
        }
}

static void boltzmann_begin(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] = 0.01f * noise(&t->random);
}

static void boltzmann_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] += 0.02f * (sum_of(t, 0, i) - sum_of(t, 1, i));
}

/* Consensus ADMM with sparse weights: the sums of local weights and their duals become the common weights.
 * extra: the duals. */
static void admm_fill(struct table *t, int s)
{
    for (int r = 0; r < NODES; r++)
        for (size_t i = 0; i < TABLE; i++) {
            uint64_t home = t->seed + i, own = home * 2 + (uint64_t)r;
            const float best = (i % 5 ? 0.0f : noise(&home)) + 0.2f * noise(&own) + 0.1f * noise(&t->random);
            const float local = (best + 0.5f * (t->x[i] - t->extra[r][i])) / 1.5f;
            t->extra[r][i] += local - t->x[i];
            t->part[s][r][i] = local + t->extra[r][i];
        }
}

static void admm_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++) {
        const float mean = sum_of(t, 0, i) / NODES;
        t->x[i] = mean > 0.05f ? mean - 0.05f : mean < -0.05f ? mean + 0.05f : 0.0f;
    }
}

/* A membrane's waves, by finite elements of the same kind, each half of them on a node. Pushes come now and
 * then. extra: velocities. */
static void waves_fill(struct table *t, int s)
{
    enum { WIDTH = 128 };
    for (size_t i = 0; i < TABLE; i++)
        for (size_t down = 0; down < 2; down++) {
            const size_t j = down ? i + WIDTH : i + 1;
            if (down ? j >= TABLE : j % WIDTH == 0)
                continue;
            t->part[s][i / (TABLE / NODES)][i] += 0.2f * (t->x[j] - t->x[i]);
            t->part[s][i / (TABLE / NODES)][j] -= 0.2f * (t->x[j] - t->x[i]);
        }
}

static void waves_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++) {
        t->extra[0][i] = 0.995f * t->extra[0][i] + sum_of(t, 0, i);
        t->x[i] += t->extra[0][i];
    }
    for (int push = 0; t->step % 10 == 0 && push < 40; push++)
        t->extra[0][draw(&t->random) % TABLE] += noise(&t->random);
}

/* Oscillators of a power grid (Kuramoto): each turns at its own rate, and neighbors pull it. */
static void oscillators_fill(struct table *t, int s)
{
    enum { LINES = 4 };
    for (size_t i = 0; i < TABLE; i++)
        for (size_t k = 0; k < LINES; k++) {
            const size_t j = hash(t->seed, i * LINES + k) % TABLE;
            const float pull = 0.3f * sinf(t->x[j] - t->x[i]);
            t->part[s][k % NODES][i] += pull;
            t->part[s][k % NODES][j] -= pull;
        }
}

static void oscillators_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++) {
        uint64_t own = t->seed + i;
        t->x[i] += 0.1f * (sum_of(t, 0, i) + 0.5f * noise(&own) + 0.2f * noise(&t->random));
    }
}

/* Dynamic programming: values of states follow Bellman's residuals. Each node knows half of the transitions,
 * some of which change from step to step. */
static void bellman_fill(struct table *t, int s)
{
    enum { NEXT = 4 };
    for (size_t i = 0; i < TABLE; i++) {
        uint64_t reward = t->seed + i;
        t->part[s][0][i] += noise(&reward) + 0.3f * noise(&t->random) - t->x[i];
        for (size_t k = 0; k < NEXT; k++) {
            const uint64_t way = hash(t->seed, i * NEXT + k);
            t->part[s][k % NODES][i] +=
                0.9f * t->x[hash(way, (way % 100 + (uint64_t)t->step) / 100) % TABLE] / NEXT;
        }
    }
}

static void bellman_apply(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] += 0.2f * sum_of(t, 0, i);
}

/* Annealed Langevin sampling: pictures follow a score that is tensor parallel, under less and less noise.
 * A new picture comes after 50 steps. extra: the picture. */
static void score_begin(struct table *t)
{
    for (size_t i = 0; i < TABLE; i++) {
        t->x[i] = noise(&t->random);
        t->extra[0][i] = noise(&t->random);
    }
}

static float score_scale(const struct table *t)
{
    return powf(0.03f, (float)(t->step % 50 / 5) / 9.0f);
}

static void score_fill(struct table *t, int s)
{
    const float scale = score_scale(t);
    for (size_t i = 0; i < TABLE; i++) {
        const float score = (t->extra[0][i] - t->x[i]) / (scale * scale) + 0.2f * noise(&t->random) / scale,
                    own = 0.3f * noise(&t->random) / scale;
        t->part[s][0][i] = 0.5f * score + own;
        t->part[s][1][i] = 0.5f * score - own;
    }
}

static void score_apply(struct table *t)
{
    const float rate = 0.1f * score_scale(t) * score_scale(t);
    for (size_t i = 0; i < TABLE; i++)
        t->x[i] += rate * sum_of(t, 0, i) + sqrtf(2.0f * rate) * noise(&t->random);
    if (t->step % 50 == 49)
        score_begin(t);
}

#define FP32 .type = ncclFloat32
static const struct kind pages = {pages_begin, pages_fill, pages_apply, FP32},
                         topics = {topics_begin, topics_fill, add_sum, FP32},
                         visits = {NULL, visits_fill, add_sum, FP32},
                         atoms = {atoms_begin, atoms_fill, atoms_move, FP32},
                         relaxed = {atoms_begin, atoms_fill, atoms_relax, FP32},
                         plate = {NULL, plate_fill, add_sum, FP32},
                         scan = {scan_begin, scan_fill, scan_apply, FP32},
                         factors = {factors_begin, factors_fill, factors_apply, .sums = 2, FP32},
                         basis = {basis_begin, basis_fill, basis_apply, FP32},
                         ode = {ode_begin, ode_fill, ode_apply, .type = ncclBfloat16},
                         leaky = {ode_begin, ode_fill, leaky_apply, .type = ncclBfloat16},
                         attention = {NULL, attention_fill, attention_apply, FP32},
                         boltzmann = {boltzmann_begin, boltzmann_fill, boltzmann_apply, .sums = 2, FP32},
                         admm = {NULL, admm_fill, admm_apply, FP32},
                         waves = {NULL, waves_fill, waves_apply, FP32},
                         oscillators = {NULL, oscillators_fill, oscillators_apply, FP32},
                         bellman = {NULL, bellman_fill, bellman_apply, FP32},
                         score = {score_begin, score_fill, score_apply, .type = ncclBfloat16};
JOB(pages_alone, tables(job, &pages, 0))
JOB(topics_alone, tables(job, &topics, 0))
JOB(visits_alone, tables(job, &visits, 0))
JOB(visits_beside, tables(job, &visits, 1))
JOB(atoms_alone, tables(job, &atoms, 0))
JOB(relaxed_alone, tables(job, &relaxed, 0))
JOB(plate_alone, tables(job, &plate, 0))
JOB(scan_alone, tables(job, &scan, 0))
JOB(factors_alone, tables(job, &factors, 0))
JOB(basis_alone, tables(job, &basis, 0))
JOB(ode_alone, tables(job, &ode, 0))
JOB(ode_beside, tables(job, &ode, 1))
JOB(leaky_alone, tables(job, &leaky, 0))
JOB(attention_alone, tables(job, &attention, 0))
JOB(boltzmann_alone, tables(job, &boltzmann, 0))
JOB(admm_alone, tables(job, &admm, 0))
JOB(admm_beside, tables(job, &admm, 1))
JOB(waves_alone, tables(job, &waves, 0))
JOB(oscillators_alone, tables(job, &oscillators, 0))
JOB(bellman_alone, tables(job, &bellman, 0))
JOB(score_alone, tables(job, &score, 0))
JOB(atoms_beside, tables(job, &atoms, 1))

const struct job_entry jobs_fresh_tables[] = {
    {"pagerank", pages_alone, {.steps = 110}},
    {"topic-counts", topics_alone, {.steps = 110}},
    {"visit-counts", visits_alone, {.steps = 110}},
    {"visit-counts-beside", visits_beside, {.steps = 120}},
    {"molecular-dynamics", atoms_alone, {.steps = 110}},
    {"crystal-relaxation", relaxed_alone, {.steps = 110}},
    {"finite-elements", plate_alone, {.steps = 110}},
    {"tomography", scan_alone, {.steps = 110}},
    {"matrix-factors", factors_alone, {.steps = 100}},
    {"power-iteration", basis_alone, {.steps = 80}},
    {"neural-ode", ode_alone, {.steps = 110}},
    {"neural-ode-beside", ode_beside, {.steps = 120}},
    {"leaky-neurons", leaky_alone, {.steps = 110}},
    {"linear-attention", attention_alone, {.steps = 110}},
    {"boltzmann", boltzmann_alone, {.steps = 120}},
    {"consensus-admm", admm_alone, {.steps = 110}},
    {"consensus-admm-beside", admm_beside, {.steps = 120}},
    {"waves", waves_alone, {.steps = 110}},
    {"oscillators", oscillators_alone, {.steps = 110}},
    {"value-iteration", bellman_alone, {.steps = 110}},
    {"annealed-langevin", score_alone, {.steps = 110}},
    {"molecular-dynamics-beside", atoms_beside, {.steps = 120}},
    {0},
};
