/* SPDX-License-Identifier: Apache-2.0 */
/* Classification: weighs the evidence on each signature and decides. */
#include "policy/recognise/internal.h"

#include <math.h>
#include <stdio.h>

#include "base/minmax.h"
#include "base/nccl_names.h"
#include "policy/rules/rules.h"

#define LONE_PER_STEP 16u     /* calls a step of a communicator whose steps cannot be counted */
#define LARGE 1024u           /* elements. Smaller sums are scalars, which do not tell steps apart */
#define CHANGES 3u            /* of a gathered block until it counts as weights */
#define STEADY_LIFE 200u      /* calls after the last likeness until it is forgiven */
#define SUM_STEPS 3u          /* steps in a row that must add up */
#define SUM_LIFE 16u          /* steps until the evidence is forgotten after they stopped adding up */
#define MAX_MICRO_BATCHES 64u /* of a step. Beyond, volumes add up by chance */
#define MET 8u                /* steps after which the evidence on a buffer counts more than its place */
#define USUAL_FROM 4u         /* steps in a row from which memory is usual */
#define SIZE_FACTOR 3.0f      /* log2, between a sum and the sums of its buffer before */
#define SIZE_RATE 0.002f      /* a sum, at which the range of sizes narrows */
#define ODD_SIZES 16u         /* sums more outside the range than inside, until it grows */
#define TIMES_TOLD 3u /* log lines of each reason and signature: its buffers may differ at every call */

const char *nb_class_reason_text(enum nb_class_reason reason)
{
    static const char *const text[NB_WHY_COUNT] = {
        [NB_WHY_YOUNG] = "too few calls seen yet",
        [NB_WHY_NO_EVIDENCE] = "no evidence that it is a gradient",
        [NB_WHY_MOVES] = "the gathered weights follow its sums",
        [NB_WHY_SUM] = "a step's reductions add up to the weights it gathers",
        [NB_WHY_AFTER_RS] = "it sums the result of a reduce_scatter",
        [NB_WHY_BUCKET] = "DDP sums a bucket of gradients",
        [NB_WHY_STEADY] = "its content hardly changes from call to call",
        [NB_WHY_ONE_SIGN] = "its values have one sign",
        [NB_WHY_INTEGERS] = "its values are integers",
        [NB_WHY_HOOK] = "a communication hook of DDP sums it, and it may be anything",
        [NB_WHY_USER_YES] = "NIBBLE_GRAD says so",
        [NB_WHY_USER_NO] = "NIBBLE_GRAD excludes it",
        [NB_WHY_SAID_YES] = "the framework says so (tag of the call or name of the communicator)",
        [NB_WHY_SAID_NO] = "the framework excludes it (tag of the call or name of the communicator)",
        [NB_WHY_TYPE] = "it is not a sum of float32, bfloat16 or float16",
        [NB_WHY_UNSEEN] =
            ("no evidence: nibble carries no all-gather of its communicator (NCCL carries gathers below "
             "NIBBLE_MIN_BYTES)"),
    };
    return (unsigned)reason < NB_WHY_COUNT ? text[reason] : "unknown";
}

/* Return the field of the operation's blocks, or NULL. */
static struct nb_causal *field_of(struct nb_classify *c, const struct nb_class_op *op)
{
    const uint64_t values = op->nranks ? op->count / op->nranks : 0;
    uint64_t n;
    size_t width;

    if (op->func == NB_FUNC_REDUCE_SCATTER)
        return nb_field_get(&c->fields, op->comm, values, 0);
    return op->func == NB_FUNC_ALL_GATHER
               ? nb_field_of_bytes(&c->fields, op->comm, op->type, values * nb_nccl_type_size(op->type), &n,
                                   &width)
               : NULL;
}

/* Return 1 when the operation's field has changing weights. There the weights themselves are evidence on the
 * sums, and the volumes of further operations are no evidence on them. */
static int is_followed(struct nb_classify *c, const struct nb_class_op *op)
{
    const struct nb_causal *field = field_of(c, op);

    return field && nb_causal_weight_blocks(field);
}

/* ---- gathers ------------------------------------------------------------------------------------------ */

static int is_float_sum(const struct nb_class_op *op)
{
    return op->op == ncclSum &&
           (op->type == ncclFloat32 || op->type == ncclBfloat16 || op->type == ncclFloat16);
}

/* End a step of the communicator, and note whether its reductions add up to its gathers. Padding of the two
 * differs, by less than LARGE elements an operation. */
static void end_step(struct nb_classify *c, struct nb_class_comm *m)
{
    uint64_t slack = (uint64_t)m->operations * LARGE;
    int adds_up = 0;

    /* Reduce-scatters: nearly all gathered elements are weights, and the step reduces no more than these. */
    if (m->scattered && m->weights * 10 >= m->gathered * 9 && m->scattered <= m->weights + slack &&
        m->scattered < 2 * m->weights)
        m->scatter_adds_up++;
    else
        m->scatter_adds_up = 0;
    /* All-reduces: exactly the gathered elements, once a micro-batch. */
    if (m->reduced && m->weights) {
        uint64_t times = (m->reduced + m->weights / 2) / m->weights;
        uint64_t want = times * m->weights;
        adds_up = times >= 1 && times <= MAX_MICRO_BATCHES && m->reduced <= want + slack &&
                  want <= m->reduced + times * slack && slack * 10 < m->reduced;
    }
    m->reduce_adds_up = adds_up ? m->reduce_adds_up + 1 : 0;
    for (struct nb_class_sig *s = NULL; (s = nb_table_next(&c->sigs, s));)
        if (s->entry.a == m->entry.a && s->func == NB_FUNC_ALL_REDUCE)
            s->steps_in_sum = adds_up && s->step == m->weight_steps + 1 ? s->steps_in_sum + 1 : 0;
    m->gathered = m->weights = m->scattered = m->reduced = m->operations = 0;
    m->weight_steps++;
    if (m->weight_steps > c->weight_steps)
        c->weight_steps = m->weight_steps;
}

void nb_classify_gather(struct nb_classify *c, const struct nb_class_op *op, const float *samples, unsigned n)
{
    struct nb_class_sig *s = nb_class_sig_of(c, op);
    struct nb_class_comm *m = nb_class_comm_of(c, op->comm);
    struct nb_book_match look = nb_book_find(&s->book, samples, n);

    s->calls++;
    m->gathers = 1;
    if (look.found && look.changed) {
        if (look.found->changes >= CHANGES)
            s->weights = 1;
        /* Weights change once a step. A block that changes again belongs to the next step. */
        if (look.found->step == m->weight_steps + 1)
            end_step(c, m);
        look.found->step = m->weight_steps + 1;
    }
    if (op->count >= LARGE) {
        m->operations++;
        if (!is_followed(c, op)) {
            m->gathered += op->count;
            if (look.found && s->weights)
                m->weights += op->count;
        }
    }
}

/* ---- reductions --------------------------------------------------------------------------------------- */

static int is_vouched(const struct nb_class_sig *s)
{
    return s->reason == NB_WHY_USER_YES || s->reason == NB_WHY_SAID_YES;
}

/* Return the steps of the communicator. Changes of weights tell them best. Otherwise identity's calls tell
 * passes apart (HSDP), and buffers that come again do. Sums of a script may come from new memory each time,
 * from each in turn, and may all be small. Without any of these, assume LONE_PER_STEP calls a step. */
static uint64_t steps_of(struct nb_classify *c, const struct nb_class_comm *m, const struct nb_class_sig *s,
                         const struct nb_class_op *op)
{
    const uint64_t of_process = c->weight_steps - m->first_weight_step,
                   changes = nb_max64(m->weight_steps, of_process),
                   over = s->passes ? s->passes - 1 : 0; /* the current pass is not over */
    const uint64_t known = nb_max64(m->alike_rounds, over);

    /* Small gathers are not visible, and of quantized weights few changes are recognised. Identity compares
     * whole blocks, but counts two contents in turn as two steps. */
    if (is_vouched(s) && s->func == NB_FUNC_REDUCE_SCATTER)
        return changes || known || s->passes ? nb_max64(changes, known) : s->calls / LONE_PER_STEP;
    if (changes >= 2)
        return m->weight_steps >= 2 ? m->weight_steps : of_process;
    if (s->bucket)
        return m->round;
    if (s->reason == NB_WHY_USER_YES)
        return nb_max64(known, nb_max64(op->cycles, s->calls / LONE_PER_STEP));
    return known;
}

/* Count an all-reduce that is a gradient by its caller or its user. A buffer that comes again is in the next
 * step. */
static void count_round(struct nb_classify *c, struct nb_class_comm *m, struct nb_class_sig *s,
                        const struct nb_class_op *op)
{
    struct nb_class_key *k = nb_class_key_of(c, s, op->send);

    if (k->round == m->round) {
        m->alike_rounds += m->set == m->last_set;
        m->last_set = m->set;
        m->set = 0;
        m->round++;
    }
    k->round = m->round;
    m->set ^= nb_mix(op->send, s->count);
}

/* Return the signature's name within its field. */
static uint64_t signature_of(const struct nb_class_op *op)
{
    return nb_mix(op->count, (uint64_t)op->type + 1);
}

/* Return the field's name for identity's prediction, or 0 without a prediction. */
static uint64_t guess_of(uint64_t signature, uint64_t predicted)
{
    return predicted ? nb_mix(signature + 1, predicted) | 1 : 0;
}

/* Return the field's name for a buffer, or 0 for none. */
static uint64_t key_of(uint64_t signature, uint64_t buffer)
{
    return buffer ? nb_mix(~signature, buffer) | 1 : 0;
}

/* Store the names under which the sum's field knows the buffer of a reduce-scatter: its place in the step,
 * then the buffers that identity states and predicts. */
static void name_keys(const struct nb_class_op *op, struct nb_causal *field, uint64_t key[NB_CAUSAL_NAMES])
{
    const uint64_t signature = signature_of(op);

    key[0] = nb_mix(signature, nb_causal_place(field)) | 1;
    key[1] = key_of(signature, op->buffer);
    key[NB_CAUSAL_GUESS] = guess_of(signature, op->predicted);
}

/* Return 1 when the buffer's place in the step is proved and the buffer's strongest hypothesis is the same.
 * At low learning rates the buffer's own proof takes longer, because the place has been followed for
 * longer. Without this 1.9 % of the gradients of fsdp2-low-rate-late-proof stay raw (seed 5). */
static int place_agrees(const struct nb_causal *field, const uint64_t key[NB_CAUSAL_NAMES])
{
    return nb_causal_proved(field, key[0]) &&
           nb_causal_state(field, key[0]).weight_block == nb_causal_state(field, key[1]).weight_block;
}

/* Note that a sum comes from this memory in the communicator's present step, and return 1 when it has come
 * from there in the steps before. Gradients come from the same few pieces of memory, step after step. */
static int is_usual_memory(struct nb_class_key *k, uint64_t step)
{
    if (k->step != step) {
        k->streak = k->step && step - k->step == 1 ? k->streak + 1 : 0;
        k->step = step;
    }
    return k->streak >= USUAL_FROM;
}

/* Note the size of a sum. Return 1 when it is within SIZE_FACTOR of the earlier ones, or unknown. The range
 * narrows slowly. It grows when most sums are outside, as after a change of the loss scale, or when another
 * buffer's sums came first. */
static int is_usual_size(struct nb_sizes *s, float size)
{
    const float log = size > 0 ? log2f(size) : 0;

    if (size == 0)
        return 1;
    if (s->known && (log < s->smallest - SIZE_FACTOR || log > s->largest + SIZE_FACTOR)) {
        if (++s->odd <= ODD_SIZES)
            return 0;
        s->odd = 0;
    }
    s->odd -= s->odd > 0;
    s->smallest = !s->known || log < s->smallest ? log : s->smallest + SIZE_RATE * (log - s->smallest);
    s->largest = !s->known || log > s->largest ? log : s->largest + SIZE_RATE * (log - s->largest);
    s->known = 1;
    return 1;
}

/* Return 1 when the weights follow the sums of this buffer.
 *
 * A sum that is far larger or smaller than all sums of its signature, or unlike its predicted buffer, proves
 * nothing: the job may have lent the memory to another sum. A buffer that has met the weights often enough is
 * judged by itself, where its memory is usual or its prediction has come true of late. Another sum (its
 * buffer is unknown, new, or only its content names it) may be any sum that the job makes in the gradients'
 * place. Its place in the step vouches for it only when it comes from memory that gradients usually come
 * from. A place without any word from identity has to move its weight block clearly. */
static int moves(const struct nb_class_op *op, const struct nb_causal *field,
                 const uint64_t key[NB_CAUSAL_NAMES], int repeats, int usual_memory, int usual_size)
{
    const int certain = key[NB_CAUSAL_GUESS] && nb_causal_certain(field, key[NB_CAUSAL_GUESS]);

    if (!usual_size || op->unlike)
        return 0;
    if (repeats) /* only the place in the step tells these sums apart */
        return nb_causal_proved(field, key[0]);
    if (!op->found && key[1]) {
        if (nb_causal_state(field, key[1]).steps >= MET)
            return (usual_memory || certain) && (nb_causal_proved(field, key[1]) || place_agrees(field, key));
    }
    if (!usual_memory)
        return 0;
    return key[1] || key[NB_CAUSAL_GUESS] ? nb_causal_proved(field, key[0]) : nb_causal_clear(field, key[0]);
}

static enum nb_class_reason evidence_for(struct nb_classify *c, const struct nb_class_comm *m,
                                         struct nb_class_sig *s, const struct nb_class_op *op, float size,
                                         uint64_t key[NB_CAUSAL_NAMES])
{
    uint32_t adds_up;

    if (s->func == NB_FUNC_REDUCE_SCATTER) {
        struct nb_class_key *k = nb_class_key_of(c, s, op->send);
        const int usual_memory = is_usual_memory(k, m->weight_steps + 1);
        struct nb_causal *field =
            op->nranks ? nb_field_get(&c->fields, op->comm, op->count / op->nranks, 1) : NULL;
        if (field) {
            /* A sum that is unlike its predicted buffer takes this buffer's place, too. */
            const uint64_t taken = op->predicted ? op->predicted : op->buffer;
            int repeats;
            name_keys(op, field, key);
            repeats = nb_causal_repeats(field, key_of(signature_of(op), taken), op->buffer != 0);
            k = nb_class_key_of(c, s, key[NB_CAUSAL_GUESS] && !repeats ? key[NB_CAUSAL_GUESS] : key[0]);
            if (moves(op, field, key, repeats, usual_memory, is_usual_size(&k->sizes, size)))
                return NB_WHY_MOVES;
        }
        if (field && nb_causal_weight_blocks(field))
            return NB_WHY_YOUNG;
        adds_up = m->scatter_adds_up;
    } else {
        if (s->bucket)
            return NB_WHY_BUCKET;
        if (op->linked && s->linked * 10 >= s->calls * 9)
            return NB_WHY_AFTER_RS;
        adds_up = s->steps_in_sum;
    }
    if (adds_up >= SUM_STEPS)
        s->sum_step = m->weight_steps;
    return s->sum_step && m->weight_steps - s->sum_step < SUM_LIFE ? NB_WHY_SUM : NB_WHY_YOUNG;
}

/* Return the content's evidence against a gradient, or NB_WHY_YOUNG. */
static enum nb_class_reason veto(const struct nb_class_sig *s, const struct nb_content *call)
{
    if (s->last_steady && s->sampled - s->last_steady < STEADY_LIFE)
        return NB_WHY_STEADY;
    if (nb_content_one_sign(&s->content, call))
        return NB_WHY_ONE_SIGN;
    return nb_content_integers(&s->content, call) ? NB_WHY_INTEGERS : NB_WHY_YOUNG;
}

static void settle(struct nb_classify *c, const struct nb_class_comm *m, struct nb_class_sig *s,
                   const struct nb_class_op *op, const struct nb_content *call, float size,
                   uint64_t key[NB_CAUSAL_NAMES])
{
    enum nb_grad_word word = nb_grad_rules_ask(&c->rules, s->func, s->type, s->count, s->nranks);
    enum nb_class_reason against = veto(s, call);

    /* A sum that its content rules out takes no place in the step and proves nothing. */
    s->evidence = s->said || against != NB_WHY_YOUNG ? NB_WHY_YOUNG : evidence_for(c, m, s, op, size, key);
    if (word != NB_GRAD_SILENT) {
        s->kind = word == NB_GRAD_YES ? NB_CLASS_GRADIENT : NB_CLASS_OTHER;
        s->reason = word == NB_GRAD_YES ? NB_WHY_USER_YES : NB_WHY_USER_NO;
    } else if (s->said) {
        s->kind = s->said == NB_CALLER_SAYS_GRADIENT ? NB_CLASS_GRADIENT : NB_CLASS_OTHER;
        s->reason = s->said == NB_CALLER_SAYS_GRADIENT ? NB_WHY_SAID_YES : NB_WHY_SAID_NO;
    } else if (s->bucket && against == NB_WHY_YOUNG) {
        s->kind = NB_CLASS_GRADIENT;
        s->reason = NB_WHY_BUCKET;
    } else if (!s->bucket && s->sampled < NB_CLASSIFY_CALLS) {
        s->kind = NB_CLASS_UNKNOWN;
        s->reason = NB_WHY_YOUNG;
    } else if (against != NB_WHY_YOUNG) {
        s->kind = NB_CLASS_OTHER;
        s->reason = against;
    } else {
        s->kind = s->evidence == NB_WHY_YOUNG ? NB_CLASS_UNKNOWN : NB_CLASS_GRADIENT;
        s->reason = s->evidence != NB_WHY_YOUNG                        ? s->evidence
                    : op->caller == NB_CALLER_HOOK                     ? NB_WHY_HOOK
                    : s->func == NB_FUNC_REDUCE_SCATTER && !m->gathers ? NB_WHY_UNSEEN
                                                                       : NB_WHY_NO_EVIDENCE;
    }
}

struct nb_class_decision nb_classify_reduce(struct nb_classify *c, const struct nb_class_op *op,
                                            const float *samples, unsigned n)
{
    struct nb_class_decision d = {.kind = NB_CLASS_OTHER, .reason = NB_WHY_TYPE};
    enum nb_class_kind kind;
    enum nb_class_reason reason;
    struct nb_class_comm *m;
    struct nb_class_sig *s;
    struct nb_content call = {0};
    struct nb_book_match look;
    enum nb_dtype dtype;

    if (!is_float_sum(op) || op->func == NB_FUNC_ALL_GATHER)
        return d;
    s = nb_class_sig_of(c, op);
    m = nb_class_comm_of(c, op->comm);
    kind = s->kind;
    reason = s->reason;
    s->calls++;
    s->linked += op->linked != 0;
    look = nb_book_find(&s->book, samples, n);
    if (samples && !nb_policy_dtype(op->type, &dtype)) {
        call = nb_content_of(dtype, samples, n);
        if (!s->bucket) /* only a bucket's own samples have a veto */
            nb_content_add(&s->content, &call);
    }
    if (look.varies && !s->bucket) {
        s->sampled++;
        if (look.found)
            s->last_steady = s->sampled;
    }
    if (op->count >= LARGE) {
        m->operations++;
        if (op->func == NB_FUNC_REDUCE_SCATTER)
            m->scattered += is_followed(c, op) ? 0 : op->count;
        else
            m->reduced += op->count;
    }
    s->step = m->weight_steps + 1;
    s->passes = nb_max64(s->passes, op->passes);
    settle(c, m, s, op, &call, nb_content_size(samples, n), d.key);
    if (op->func == NB_FUNC_ALL_REDUCE && (s->bucket || is_vouched(s)))
        count_round(c, m, s, op);
    if (d.key[1])
        d.shared = nb_causal_shared(field_of(c, op), d.key[1]);
    if (op->found) /* a sum that only looks like the buffer is no proof for it */
        d.key[1] = 0;
    d.kind = s->kind;
    d.reason = s->reason;
    d.changed = (s->kind != kind || s->reason != reason) && s->told[s->reason] < TIMES_TOLD;
    s->told[s->reason] += (unsigned char)d.changed;
    d.step = steps_of(c, m, s, op);
    d.warmup = d.kind == NB_CLASS_GRADIENT && d.step < c->warmup;
    return d;
}

int nb_classify_certain(struct nb_classify *c, const struct nb_class_op *op)
{
    const struct nb_causal *field = op->func == NB_FUNC_REDUCE_SCATTER ? field_of(c, op) : NULL;

    return field && nb_causal_certain(field, guess_of(signature_of(op), op->predicted));
}

void nb_classify_sum(struct nb_classify *c, const struct nb_class_op *op, const uint64_t key[NB_CAUSAL_NAMES],
                     const uint32_t *raw, unsigned picks)
{
    struct nb_causal *field = field_of(c, op);
    struct nb_signs signs;
    enum nb_dtype dtype;

    if (!field || !key[0] || picks != nb_causal_positions(field) || nb_policy_dtype(op->type, &dtype))
        return;
    nb_signs_of(dtype, raw, picks, &signs);
    nb_causal_sum(field, key, &signs);
}

uint64_t nb_classify_shard(struct nb_classify *c, uint64_t comm, ncclDataType_t type, uint64_t bytes,
                           size_t *width)
{
    uint64_t values = 0;

    return nb_field_of_bytes(&c->fields, comm, type, bytes, &values, width) ? values : 0;
}

void nb_classify_weights(struct nb_classify *c, uint64_t comm, ncclDataType_t type, uint64_t bytes,
                         const uint32_t *raw)
{
    uint64_t values;
    size_t width;
    struct nb_causal *field = nb_field_of_bytes(&c->fields, comm, type, bytes, &values, &width);

    if (field)
        nb_causal_gather(field, width, raw);
}

int nb_classify_text(const struct nb_class_op *op, const struct nb_class_decision *d, char *buf, size_t cap)
{
    static const char *const kinds[] = {"raw for now", "a gradient", "not a gradient, raw"};
    char rule[128];

    nb_grad_rule_text(op->func, op->type, op->count, op->nranks, rule, sizeof(rule));
    if (d->reason == NB_WHY_TYPE)
        return snprintf(buf, cap, "%s: %s: %s", rule, kinds[d->kind], nb_class_reason_text(d->reason));
    return snprintf(buf, cap, "%s: %s (step %llu): %s; NIBBLE_GRAD=%s%s would change that", rule,
                    kinds[d->kind], (unsigned long long)d->step, nb_class_reason_text(d->reason),
                    d->kind == NB_CLASS_GRADIENT ? "!" : "", rule);
}
