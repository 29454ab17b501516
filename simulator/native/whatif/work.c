/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tenant launches: its requests, kernels that are drawn, and programs that were captured.
 */
#include <math.h>
#include <stdlib.h>

#include "simulate.h"

static uint64_t draw(uint64_t *rng)
{ /* xorshift64* */
    *rng ^= *rng >> 12;
    *rng ^= *rng << 25;
    *rng ^= *rng >> 27;
    return *rng * 2685821657736338717ull;
}

static double uniform(uint64_t *rng)
{
    return (double)(draw(rng) >> 11) * 0x1p-53;
}

/* Half the mean to half more: wake-ups have a floor. */
uint64_t spread(uint64_t *rng, uint64_t mean)
{
    return mean ? mean / 2 + draw(rng) % (mean + 1) : 0;
}

/* ---- requests ---- */

void queue_put(struct queue *q, uint64_t at)
{
    if (q->n == q->cap) {
        uint32_t cap = q->cap ? q->cap * 2 : 64;
        uint64_t *grown = malloc(cap * sizeof(*grown));
        if (!grown)
            abort();
        for (uint32_t i = 0; i < q->n; i++)
            grown[i] = q->at[(q->head + i) % q->cap];
        free(q->at);
        *q = (struct queue){.at = grown, .cap = cap, .n = q->n};
    }
    q->at[(q->head + q->n++) % q->cap] = at;
}

static uint64_t queue_take(struct queue *q)
{
    uint64_t at = q->at[q->head];
    q->head = (q->head + 1) % q->cap;
    q->n--;
    return at;
}

uint64_t next_arrival(struct actor *a)
{
    if (a->load == LOAD_PERIODIC)
        return a->arrival_ns + a->period_ns;
    double wait = -log(1 - uniform(&a->rng)) * (double)a->period_ns;
    return a->arrival_ns + (uint64_t)wait + 1;
}

/* ---- kernels ---- */

static const struct stretch *stretch_of(const struct actor *a)
{
    return &a->program->at[a->stretch];
}

/* A kernel is drawn once, also if the window keeps it back. */
static uint64_t next_length(struct actor *a)
{
    if (!a->drawn_ns && a->program)
        a->drawn_ns = stretch_of(a)->length_ns;
    else if (!a->drawn_ns)
        a->drawn_ns = a->kernel_ns[a->nkernels > 1 ? draw(&a->rng) % a->nkernels : 0];
    return a->drawn_ns;
}

/* How many kernels of the next one's length follow each other, the program's own word for it. */
static uint64_t alike(const struct actor *a)
{
    if (a->program)
        return stretch_of(a)->kernels - a->stretch_done;
    return a->nkernels > 1 || a->gap_ns ? 1 : (1ull << 60) / a->drawn_ns;
}

/* What comes behind the kernels that are launched now. */
static void note_rest(struct actor *a, uint64_t kernels)
{
    a->rest = (struct rest){.gap_ns = a->gap_ns, .drawn = a->gap_ns > 0};
    if (!a->program)
        return;
    const struct stretch *s = stretch_of(a);
    a->stretch_done += (uint32_t)kernels;
    if (a->stretch_done < s->kernels)
        return;
    a->rest = (struct rest){.copy_ns = s->copy_ns, .gap_ns = s->gap_ns};
    a->stretch_done = 0;
    a->stretch = (a->stretch + 1) % a->program->n;
}

/* Launches the next kernels, `most` of them, if they are alike. */
static void take(struct actor *a, uint64_t most)
{
    uint64_t length = next_length(a), kernels = alike(a);
    if (kernels > most)
        kernels = most;
    if (a->load != LOAD_ENDLESS && kernels > a->kernels_left)
        kernels = a->kernels_left;
    a->length_ns = length;
    a->run_ns += kernels * length;
    a->drawn_ns = 0;
    note_rest(a, kernels);
    if (a->load != LOAD_ENDLESS)
        a->kernels_left -= (uint32_t)kernels;
}

/* Is there something to launch? Takes the next request where the last one is done. */
bool has_work(struct actor *a)
{
    if (a->run_ns)
        return true;
    if (a->load != LOAD_ENDLESS && !a->kernels_left) {
        if (!a->queue.n)
            return false;
        a->head_ns = queue_take(&a->queue);
        a->kernels_left = a->per_request;
    }
    take(a, UINT64_MAX);
    return true;
}

/* Does it launch another kernel without waiting for this run? */
static bool launches_ahead(const struct actor *a)
{
    return !a->held_ns && !a->rest.copy_ns && !a->rest.gap_ns &&
           (a->load == LOAD_ENDLESS || a->kernels_left);
}

/* What is in flight when no more launches come: the kernel that runs, and what fits into `depth`
 * behind it. */
uint64_t in_flight(struct actor *a, uint64_t depth)
{
    uint64_t rest = a->run_ns % a->length_ns, flight;
    if (!rest)
        rest = a->length_ns;
    flight = rest;
    if (depth > rest)
        flight += (depth - rest) / a->length_ns * a->length_ns;
    if (flight < a->run_ns)
        return flight;
    flight = a->run_ns;
    while (launches_ahead(a) && flight + next_length(a) <= depth) {
        take(a, (depth - flight) / next_length(a));
        flight = a->length_ns = a->run_ns; /* all of it is launched: as one kernel from here */
    }
    return flight;
}

void request_done(const struct world *w, const struct machine *m, struct actor *a)
{
    if (a->load == LOAD_ENDLESS || a->kernels_left)
        return;
    latency_add(&a->latency, m->now - a->head_ns);
    if (w->requests)
        queue_put(&a->latencies, m->now - a->head_ns);
    a->requests++;
}
