/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums: sliding windows of one and ten seconds, latencies, and the JSON that whatif/simulate.py
 * reads.
 */
#include <inttypes.h>
#include <string.h>

#include "simulate.h"

/* Buckets of 1/32 of a power of two. */
static uint32_t bucket_of(uint64_t ns)
{
    if (ns < 64)
        return (uint32_t)ns;
    uint32_t top = 63 - (uint32_t)__builtin_clzll(ns);
    return (top - 5) * 32 + (uint32_t)(ns >> (top - 5));
}

/* The middle of a bucket. */
static uint64_t bucket_ns(uint32_t b)
{
    if (b < 64)
        return b;
    uint32_t top = b / 32 + 4;
    uint64_t low = (uint64_t)(b % 32 + 32) << (top - 5);
    return low + (1ull << (top - 5)) / 2;
}

void latency_add(struct histogram *h, uint64_t ns)
{
    uint32_t b = bucket_of(ns);
    h->count[b < SM_BUCKETS ? b : SM_BUCKETS - 1]++;
    h->n++;
}

static uint64_t percentile(const struct histogram *h, double p)
{
    uint64_t seen = 0, want = (uint64_t)((double)h->n * p);
    for (uint32_t b = 0; b < SM_BUCKETS; b++) {
        seen += h->count[b];
        if (seen > want)
            return bucket_ns(b);
    }
    return 0;
}

static void slide(struct sliding *s, uint64_t busy)
{
    uint32_t *oldest = &s->step[s->seen++ % SM_STEPS];
    s->sum += busy - *oldest;
    *oldest = (uint32_t)busy;
    if (s->seen < SM_STEPS)
        return;
    bool first = !s->max && !s->min;
    if (first || s->sum < s->min)
        s->min = s->sum;
    if (first || s->sum > s->max)
        s->max = s->sum;
}

/* The extremes stay. */
static void start_again(struct sliding *s)
{
    if (!s->seen)
        return;
    memset(s->step, 0, sizeof(s->step));
    s->seen = s->sum = 0;
}

/* One more step ended. Windows count while the tenant is there for all of them. */
void sliding_step(struct actor *a)
{
    uint64_t busy = a->step_busy_ns;
    a->step_busy_ns = 0;
    if (a->state == ST_AWAY) {
        start_again(&a->one);
        start_again(&a->ten);
        a->ten_busy_ns = 0;
        return;
    }
    slide(&a->one, busy);
    a->ten_busy_ns += busy;
    if (a->one.seen % SM_STEPS_TEN)
        return;
    slide(&a->ten, a->ten_busy_ns);
    a->ten_busy_ns = 0;
}

#define FIELD(name, value) fprintf(out, ",\"" name "\":%" PRIu64, (uint64_t)(value))

static void print_actor(const struct world *w, const struct actor *a, FILE *out)
{
    fprintf(out, "{\"card\":%u", a->card);
    FIELD("busy_ns", a->busy_ns);
    FIELD("due_ns", a->due_ns);
    FIELD("present_ns", w->duration_ns - a->mode_ns[MODE_AWAY]);
    FIELD("idle_ns", a->mode_ns[MODE_IDLE]);
    FIELD("waited_share_ns", a->mode_ns[MODE_SHARE]);
    FIELD("waited_preempted_ns", a->mode_ns[MODE_PREEMPTED]);
    FIELD("preemptions", a->preemptions);
    FIELD("turns", a->turns);
    FIELD("requests", a->requests);
    FIELD("waiting_requests",
          a->queue.n + (a->kernels_left || (a->run_ns && a->load != LOAD_ENDLESS)));
    FIELD("p50_ns", percentile(&a->latency, 0.5));
    FIELD("p99_ns", percentile(&a->latency, 0.99));
    FIELD("max_1s_ns", a->one.max);
    FIELD("min_1s_ns", a->one.min);
    FIELD("max_10s_ns", a->ten.max);
    FIELD("min_10s_ns", a->ten.min);
    fprintf(out, ",\"bins\":[");
    for (uint32_t i = 0; i < w->bins; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", a->bins[i]);
    fprintf(out, "],\"due_bins\":[");
    for (uint32_t i = 0; i < w->bins; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", (uint64_t)a->due_bins[i]);
    fprintf(out, "],\"paused_bins\":[");
    for (uint32_t i = 0; i < w->bins; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", a->paused_bins[i]);
    fprintf(out, "],\"latencies_ns\":[");
    for (uint32_t i = 0; i < a->latencies.n; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", a->latencies.at[i]);
    fprintf(out, "]}");
}

static void print_card(const struct machine *m, FILE *out)
{
    fprintf(out, "{\"card\":%u", m->number);
    FIELD("busy_ns", m->busy_ns);
    FIELD("switches", m->switches);
    FIELD("switch_lost_ns", m->switch_lost_ns);
    FIELD("decisions", m->decisions);
    FIELD("freed", m->freed.n);
    FIELD("freed_p99_ns", percentile(&m->freed, 0.99));
    FIELD("freed_max_ns", percentile(&m->freed, 1 - 1e-9));
    FIELD("events", m->events);
    fprintf(out, "}");
}

void world_print(const struct world *w, FILE *out)
{
    fprintf(out, "{\"duration_ns\":%" PRIu64 ",\"cards\":[", w->duration_ns);
    for (uint32_t i = 0; i < w->ncards; i++) {
        if (i)
            fputc(',', out);
        print_card(&w->cards[i], out);
    }
    fprintf(out, "],\"tenants\":[");
    for (uint32_t i = 0; i < w->nactors; i++) {
        if (i)
            fputc(',', out);
        print_actor(w, &w->actors[i], out);
    }
    fprintf(out, "]}\n");
}
