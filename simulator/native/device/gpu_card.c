/* SPDX-License-Identifier: Apache-2.0
 *
 * One card: its identity, bringing its model up to now, predicting the next wake-up, and
 * utilization.
 */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "gpu.h"

/* host functions end by a doorbell; the words of a WAIT32 are polled */
#define POLL_NS     50000ull
#define BACKOFF_MIN 2000ull
#define BACKOFF_MAX 50000ull

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* The same node name and index give the same UUID after each restart, as a real card keeps its own.
 */
static void make_uuid(char *uuid, const char *kind, const char *node, unsigned index)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const char *c = node; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
    uint64_t hi = mix(hash ^ index), lo = mix(hi);
    snprintf(uuid, SIM_UUID_LEN, "%s-%08x-%04x-%04x-%04x-%012llx", kind, (unsigned)(hi >> 32),
             (unsigned)(hi >> 16 & 0xffff), (unsigned)(hi & 0xffff), (unsigned)(lo >> 48),
             (unsigned long long)(lo & 0xffffffffffffull));
}

bool gpu_card_init(struct gpu *gpu, unsigned index)
{
    struct gpu_card *card = &gpu->cards[index];
    int len = snprintf(card->path, sizeof card->path, "%s/dev/qgpusim%u", gpu->config.dir, index);
    if (len < 0 || (size_t)len >= sizeof card->path) {
        fprintf(stderr,
                "qgpu-simgpu: the directory's name is too long (%zu characters, at most 160)\n",
                strlen(gpu->config.dir));
        return false;
    }
    card->gpu = gpu;
    card->index = index;
    card->minor = gpu->config.minor_base + index;
    card->mem_total = gpu->config.memory;
    make_uuid(card->uuid, gpu->config.mig ? "MIG" : "GPU", gpu->config.node, index);
    model_init(&card->model, &gpu->config.params, &gpu_hooks, card, gpu_now());
    return true;
}

static bool on_card(const struct gpu_ctx *ctx, const struct gpu_card *card)
{
    return ctx->card == card;
}

static void drain_all(struct gpu_card *card, uint64_t now)
{
    for (struct gpu_conn *conn = card->gpu->conns; conn; conn = conn->next)
        for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
            if (on_card(ctx, card) && !ctx->hostile)
                gpu_ctx_drain(ctx, now);
}

static bool poll_clients(struct gpu_card *card)
{
    bool polled = false;
    for (struct gpu_conn *conn = card->gpu->conns; conn; conn = conn->next)
        for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
            if (on_card(ctx, card) && model_waits_for_client(ctx->model)) {
                gpu_ctx_poll_client(ctx);
                polled = true;
            }
    return polled;
}

static void poison_faulted(struct gpu_card *card)
{
    if (!card->faulted)
        return;
    card->faulted = false;
    for (struct gpu_conn *conn = card->gpu->conns; conn; conn = conn->next)
        for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
            if (on_card(ctx, card) && ctx->faulted)
                gpu_ctx_poison(ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
}

void gpu_card_sync(struct gpu_card *card)
{
    /* The clock first: everything stamped before it and visible now is in the rings when the model
     * passes it. */
    uint64_t now = gpu_now();
    drain_all(card, now);
    model_advance(&card->model, now);
    if (poll_clients(card))
        model_advance(&card->model, gpu_now());
    poison_faulted(card);
}

/* A launch is blocked at the queue depth, or the ring holds commands that the model has no room
 * for. */
static bool wants_room(const struct model_ctx *model)
{
    const struct gpu_ctx *ctx = model->owner;
    return __atomic_load_n(&ctx->shm->space_waiters, __ATOMIC_SEQ_CST) ||
           __atomic_load_n(&ctx->shm->head, __ATOMIC_RELAXED) != ctx->tail;
}

static bool polls_words(const struct gpu_card *card)
{
    for (const struct model_ctx *ctx = card->model.ctxs; ctx; ctx = ctx->next)
        for (unsigned i = 0; i < ctx->nactive; i++)
            if (model_awaits_word(model_head(ctx, ctx->active[i])->op))
                return true;
    return false;
}

uint64_t gpu_card_next(struct gpu_card *card, uint64_t now)
{
    uint64_t next = model_next_wake(&card->model, wants_room);
    if (card->published)
        card->backoff_ns = 0;
    card->published = false;
    /* due, yet not over: others are in between. Look again soon, and ever less often */
    if (next <= now) {
        card->backoff_ns = card->backoff_ns ? card->backoff_ns * 2 : BACKOFF_MIN;
        if (card->backoff_ns > BACKOFF_MAX)
            card->backoff_ns = BACKOFF_MAX;
        next = now + card->backoff_ns;
    }
    if (next > now + POLL_NS && polls_words(card))
        next = now + POLL_NS;
    return next;
}

void gpu_sample(struct gpu_samples *samples, uint64_t now, uint64_t busy)
{
    samples->t[samples->next] = now;
    samples->busy[samples->next] = busy;
    samples->next = (samples->next + 1) % GPU_SAMPLES;
    if (samples->count < GPU_SAMPLES)
        samples->count++;
}

void gpu_card_sample(struct gpu_card *card, uint64_t now)
{
    gpu_sample(&card->samples, now, card->model.busy_ns[ENG_COMPUTE]);
}

/* Busy percent since the oldest sample that is no older than about a second. */
unsigned gpu_percent(const struct gpu_samples *samples, uint64_t now, uint64_t busy)
{
    uint64_t t = 0, then = 0;
    for (unsigned i = 0; i < samples->count; i++)
        if (now - samples->t[i] <= 1100000000ull && (!t || samples->t[i] < t)) {
            t = samples->t[i];
            then = samples->busy[i];
        }
    return t && now > t ? (unsigned)((busy - then) * 100 / (now - t)) : 0;
}

uint64_t gpu_conn_busy(const struct gpu_conn *conn, const struct gpu_card *card)
{
    uint64_t busy = conn->past_busy[card->index];
    for (const struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
        if (ctx->card == card)
            busy += ctx->model->busy_ns[ENG_COMPUTE];
    return busy;
}
