/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs whose activations cross the network: tensor, sequence, context and expert parallelism between nodes,
 * beside gradients or alone, in training and inference. Activations must stay exact.
 */
#include "lib/parallel.h"

#define TOKENS 32768u /* values of an activation */

/* Train with tensor parallelism alone, without gathers of weights or sums of gradients. */
static void tensor(struct job *job, int fixed, int micro_batches, int layers)
{
    struct comm *tp = comm_between(job, NULL);
    struct tensor_parallel t = tensor_parallel_open(job, tp, layers, TOKENS, fixed);

    while (job_step(job))
        for (int k = 0; k < micro_batches; k++) {
            tensor_parallel_forward(&t);
            tensor_parallel_backward(&t);
        }
}

JOB(tp_training, tensor(job, 0, 1, 3))
JOB(tp_training_fixed, tensor(job, 1, 1, 3))
JOB(tp_micro_batches, tensor(job, 0, 2, 3))
JOB(tp_one_layer, tensor(job, 1, 1, 1))

/* Inference: one forward pass for each token, and a gather of the vocabulary's logits. */
static void inference(struct job *job, int fixed)
{
    struct comm *tp = comm_between(job, "TENSOR_MODEL_PARALLEL_GROUP");
    struct tensor_parallel t = tensor_parallel_open(job, tp, 3, TOKENS / 2, fixed);
    float *logits = values(job, 32768);
    const address at = memory_take(job_memory(job), 65536);

    while (job_step(job)) {
        tensor_parallel_forward(&t);
        partial_products(&t.random, 5, 1024, 32768, logits);
        all_gather(tp, &(struct buffer){.type = ncclBfloat16, .n = 32768, .send = at, .recv = at}, logits);
    }
}

JOB(tp_inference, inference(job, 0))
JOB(tp_inference_fixed, inference(job, 1))

/* Run steps of Megatron: tensor parallel ranks on two nodes, and data parallel ranks of other pairs.
 * `shared`: one communicator serves both, as where a user makes the groups coincide. */
static void megatron(struct job *job, int micro_batches, size_t n, int shared, int sequence)
{
    struct comm *dp = comm_between(job, shared ? NULL : "DATA_PARALLEL_GROUP_WITH_CP"),
                *tp = shared ? dp : comm_between(job, "TENSOR_MODEL_PARALLEL_GROUP");
    struct model *m = model_new(job, &(struct model_settings){.units = 4, .n = n});
    struct distopt d = distopt_open(job, dp, m);
    struct tensor_parallel t = tensor_parallel_open(job, tp, 2, TOKENS, 0);

    t.sequence = sequence;
    while (job_step(job)) {
        distopt_gather(&d);
        for (int k = 0; k < micro_batches; k++) {
            tensor_parallel_forward(&t);
            tensor_parallel_backward(&t);
            for (int i = m->units - 1; i >= 0; i--)
                model_gradient(m, i, k);
        }
        distopt_reduce(&d);
        model_update(m);
    }
}

JOB(megatron_tp, megatron(job, 1, 24576, 0, 0))
JOB(megatron_tp_micro_batches, megatron(job, 2, 24576, 0, 0))
JOB(megatron_tp_one_comm, megatron(job, 1, 24576, 1, 0))
JOB(megatron_sp, megatron(job, 1, 24576, 0, 1))

/* An activation has as many values as a bucket, on the same communicator. */
JOB(megatron_sp_one_comm, megatron(job, 1, TOKENS, 1, 1))
JOB(megatron_tp_small_gathers, megatron(job, 1, 8192, 1, 0))

/* LoRA with tensor parallelism inside FSDP: frozen weights are gathered, activations summed. */
static void tp_lora(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct model *base = model_new(job, &(struct model_settings){.units = 4}),
                 *adapter = model_new(job, &(struct model_settings){.units = 2, .n = 16384, .lr = 1e-3f});
    struct fsdp f = fsdp_open(job, world, base, 2), a = fsdp_open(job, world, adapter, 2);
    struct tensor_parallel t = tensor_parallel_open(job, world, 2, TOKENS, 0);

    f.frozen = 15;
    while (job_step(job)) {
        fsdp_forward(&f);
        fsdp_forward(&a);
        tensor_parallel_forward(&t);
        tensor_parallel_backward(&t);
        fsdp_backward(&f);
        fsdp_backward(&a);
        fsdp_update(&a);
    }
}

/* Gather frozen weights without training between nodes: inference with sharded weights. */
static void tp_frozen(struct job *job)
{
    struct comm *world = comm_between(job, NULL);
    struct fsdp f = fsdp_open(job, world, model_new(job, &(struct model_settings){.units = 4}), 2);
    struct tensor_parallel t = tensor_parallel_open(job, world, 2, TOKENS, 0);

    while (job_step(job)) {
        fsdp_forward(&f);
        for (int i = 0; i < f.model->units; i++)
            memory_give(job_memory(job), f.full[i]), f.full[i] = 0;
        tensor_parallel_forward(&t);
    }
}

/* Tied embeddings of the first and the last pipeline stage: a communicator of the two sums their
 * gradients. */
static void pipeline(struct job *job)
{
    struct comm *dp = comm_between(job, "DATA_PARALLEL_GROUP_WITH_CP"),
                *embedding = comm_between(job, "EMBEDDING_GROUP");
    struct model *m = model_new(job, &(struct model_settings){.units = 4});
    struct distopt d = distopt_open(job, dp, m);
    struct buffer tied = {.type = ncclFloat32, .n = m->unit[0].n, .send = d.grad[0], .recv = d.grad[0]};

    tied.what = EITHER(job_buffer(job));
    while (job_step(job)) {
        distopt_gather(&d);
        for (int k = 0; k < 4; k++)
            for (int i = m->units - 1; i >= 0; i--)
                model_gradient(m, i, k);
        all_reduce(embedding, &tied, m->unit[0].g[0], m->unit[0].g[1]);
        distopt_reduce(&d);
        model_update(m);
    }
}

/* Experts: count the tokens of each expert and sum their loads. Gradients of experts have their own group. */
static void experts(struct job *job)
{
    struct comm *dp = comm_between(job, NULL), *edp = comm_between(job, NULL);
    struct model *dense = model_new(job, &(struct model_settings){.units = 3}),
                 *expert = model_new(job, &(struct model_settings){.units = 4});
    struct distopt d = distopt_open(job, dp, dense), e = distopt_open(job, edp, expert);
    const size_t n = 32 * 256;
    const struct buffer load = {.type = ncclFloat32, .n = n, .send = memory_take(job_memory(job), n * 4)};
    float *count[NODES] = {values(job, n), values(job, n)};
    uint64_t random = 8;

    while (job_step(job)) {
        distopt_gather(&d);
        distopt_gather(&e);
        for (int r = 0; r < NODES; r++)
            for (size_t i = 0; i < n; i++)
                count[r][i] = (float)(draw(&random) % 97);
        all_reduce(dp, &load, count[0], count[1]);
        for (int i = 0; i < expert->units; i++) {
            model_gradient(expert, i, 0);
            if (draw(&random) % 8 == 0) /* no token came */
                for (size_t k = 0; k < expert->unit[i].n; k++)
                    expert->unit[i].g[0][k] = 0;
        }
        for (int i = 0; i < dense->units; i++)
            model_gradient(dense, i, 0);
        distopt_reduce(&d);
        distopt_reduce(&e);
        model_update(dense);
        model_update(expert);
    }
}

/* Context parallelism by gathered keys and values: their gradients are reduce-scattered, between FSDP's
 * operations. */
static void context(struct job *job)
{
    struct comm *world = comm_between(job, NULL), *cp = comm_between(job, NULL);
    struct fsdp f = fsdp_open(job, world, model_new(job, &(struct model_settings){.units = 4}), 2);
    struct tensor_parallel t = tensor_parallel_open(job, cp, 2, 24576, 0);

    t.sequence = 1;
    while (job_step(job)) {
        fsdp_forward(&f);
        tensor_parallel_forward(&t);
        tensor_parallel_backward(&t);
        fsdp_backward(&f);
        fsdp_update(&f);
    }
}

const struct job_entry jobs_model_parallel[] = {
    {"tp-training", tp_training, {0}},
    {"tp-training-fixed", tp_training_fixed, {0}},
    {"tp-micro-batches", tp_micro_batches, {0}},
    {"tp-one-layer", tp_one_layer, {0}},
    {"tp-inference", tp_inference, {0}},
    {"tp-inference-fixed", tp_inference_fixed, {0}},
    {"tp-lora", tp_lora, {0}},
    {"tp-frozen", tp_frozen, {0}},
    {"megatron-tp", megatron_tp, {0}},
    {"megatron-tp-micro-batches", megatron_tp_micro_batches, {0}},
    {"megatron-tp-one-comm", megatron_tp_one_comm, {0}},
    {"megatron-tp-small-gathers", megatron_tp_small_gathers, {0}},
    {"megatron-tp-small-gathers-vouched",
     megatron_tp_small_gathers,
     {.grad = "reduce_scatter:float32:8192@2"}},
    {"megatron-tp-small-gathers-taken", megatron_tp_small_gathers, {.ag_min = 2048}},
    {"megatron-sp", megatron_sp, {0}},
    {"megatron-sp-one-comm", megatron_sp_one_comm, {0}},
    {"megatron-pipeline", pipeline, {0}},
    {"moe-experts", experts, {0}},
    {"fsdp2-context-parallel", context, {0}},
    {0},
};
