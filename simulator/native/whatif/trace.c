/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the trace. whatif/simulate.py has checked everything for people; here only what would
 * break the program.
 *
 *   world SEED DURATION BINS CARDS TENANTS PROGRAMS
 *   card POLICY_ONLINE POLICY_OFFLINE IDLE_RELEASE SLICE WINDOW SWITCH TIMESLICE ARBITER TENANT
 *       QUEUE ONLINE_DELAY ONLINE_SHARE
 *   program N  KERNELS LENGTH COPY GAP  KERNELS LENGTH ...
 *   tenant CARD CLASS SHARE PROCS START STOP LOAD PERIOD KERNELS GAP FREE LIE  N LENGTH...  N FROM
 *       TO...
 *
 * With 0 kernels the number of a program follows in their place.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "simulate.h"

static bool word(FILE *in, const char *expected)
{
    char got[16];
    if (fscanf(in, "%15s", got) == 1 && !strcmp(got, expected))
        return true;
    fprintf(stderr, "qgpu-simulate: the trace has no '%s' where one is due\n", expected);
    return false;
}

static bool number(FILE *in, uint64_t low, uint64_t high, uint64_t *out)
{
    if (fscanf(in, "%" SCNu64, out) == 1 && *out >= low && *out <= high)
        return true;
    fprintf(stderr,
            "qgpu-simulate: a number of the trace is missing, or not in %" PRIu64 "..%" PRIu64 "\n",
            low, high);
    return false;
}

static bool number32(FILE *in, uint64_t low, uint64_t high, uint32_t *out)
{
    uint64_t v;
    if (!number(in, low, high, &v))
        return false;
    *out = (uint32_t)v;
    return true;
}

#define HOUR (3600000 * QP_MS)
#define LONG (1000 * HOUR)

static bool policy(FILE *in, uint32_t *out)
{
    return number32(in, QG_POLICY_FIRST, QG_POLICY_LAST, out);
}

static bool read_card(FILE *in, struct machine *m)
{
    return word(in, "card") && policy(in, &m->policy[0]) && policy(in, &m->policy[1]) &&
           number(in, 0, HOUR, &m->idle_release_ns) && number(in, 1000, HOUR, &m->slice_ns) &&
           number(in, 0, HOUR, &m->window_ns) && number(in, 0, HOUR, &m->switch_ns) &&
           number(in, 1000, HOUR, &m->timeslice_ns) && number(in, 0, HOUR, &m->arbiter_ns) &&
           number(in, 0, HOUR, &m->tenant_ns) && number(in, 1, 1000000, &m->queue_depth) &&
           number(in, 0, HOUR, &m->online_delay_ns) && number(in, 0, 100, &m->online_share);
}

static bool read_stretch(FILE *in, struct stretch *s)
{
    return number32(in, 1, 1000000, &s->kernels) && number(in, 100, HOUR, &s->length_ns) &&
           number(in, 0, HOUR, &s->copy_ns) && number(in, 0, HOUR, &s->gap_ns);
}

static bool read_program(FILE *in, struct program *p)
{
    if (!word(in, "program") || !number32(in, 1, SM_MAX_STRETCHES, &p->n))
        return false;
    p->at = calloc(p->n, sizeof(*p->at));
    for (uint32_t i = 0; i < p->n; i++) {
        if (!p->at || !read_stretch(in, &p->at[i]))
            return false;
    }
    return true;
}

static bool read_kernels(const struct world *w, FILE *in, struct actor *a)
{
    uint32_t program;
    if (!number32(in, w->nprograms ? 0 : 1, SM_MAX_KERNELS, &a->nkernels))
        return false;
    if (!a->nkernels) {
        if (!number32(in, 0, w->nprograms - 1, &program))
            return false;
        a->program = &w->programs[program];
    }
    for (uint32_t i = 0; i < a->nkernels; i++) {
        if (!number(in, 100, HOUR, &a->kernel_ns[i]))
            return false;
    }
    return true;
}

static bool read_tenant(const struct world *w, FILE *in, struct actor *a)
{
    uint32_t load, lie;
    if (!word(in, "tenant") || !number32(in, 0, w->ncards - 1, &a->card) ||
        !number32(in, 1, 2, &a->job_class) || !number32(in, 1, 100, &a->share) ||
        !number(in, 0, LONG, &a->start_ns) || !number(in, 0, LONG, &a->stop_ns) ||
        !number32(in, 0, 2, &load) || !number(in, load ? 1 : 0, LONG, &a->period_ns) ||
        !number32(in, 1, 100000000, &a->per_request) || !number(in, 0, HOUR, &a->gap_ns) ||
        !number32(in, 0, 1, &a->ungoverned) || !number32(in, 0, 2, &lie) || !read_kernels(w, in, a))
        return false;
    a->load = (enum load)load;
    a->lie = (enum lie)lie;
    if (!number32(in, 0, SM_MAX_STOPS, &a->nstops))
        return false;
    for (uint32_t i = 0; i < a->nstops; i++) {
        if (!number(in, 0, LONG, &a->stops[i][0]) ||
            !number(in, a->stops[i][0], LONG, &a->stops[i][1]))
            return false;
    }
    return true;
}

/* Gives each card its tenants, in the order of the trace. */
static bool deal_out(struct world *w)
{
    for (uint32_t i = 0; i < w->ncards; i++) {
        struct machine *m = &w->cards[i];
        m->actors = calloc(QP_MAX_TENANTS, sizeof(*m->actors));
        m->policy_card = calloc(1, sizeof(*m->policy_card));
        if (!m->actors || !m->policy_card)
            return false;
    }
    for (uint32_t i = 0; i < w->nactors; i++) {
        struct machine *m = &w->cards[w->actors[i].card];
        if (m->nactors == QP_MAX_TENANTS) {
            fprintf(stderr, "qgpu-simulate: card %u has more than %u tenants\n", m->number,
                    QP_MAX_TENANTS);
            return false;
        }
        m->actors[m->nactors++] = &w->actors[i];
    }
    return true;
}

bool trace_read(struct world *w, FILE *in)
{
    if (!word(in, "world") || !number(in, 0, UINT64_MAX, &w->seed) ||
        !number(in, 1, LONG, &w->duration_ns) || !number32(in, 1, SM_BINS, &w->bins) ||
        !number32(in, 1, 4096, &w->ncards) || !number32(in, 1, 65536, &w->nactors) ||
        !number32(in, 0, SM_MAX_PROGRAMS, &w->nprograms))
        return false;
    w->cards = calloc(w->ncards, sizeof(*w->cards));
    w->actors = calloc(w->nactors, sizeof(*w->actors));
    w->programs = calloc(w->nprograms + 1, sizeof(*w->programs));
    if (!w->cards || !w->actors || !w->programs)
        return false;
    for (uint32_t i = 0; i < w->ncards; i++) {
        w->cards[i].number = i;
        if (!read_card(in, &w->cards[i]))
            return false;
    }
    for (uint32_t i = 0; i < w->nprograms; i++) {
        if (!read_program(in, &w->programs[i]))
            return false;
    }
    for (uint32_t i = 0; i < w->nactors; i++) {
        if (!read_tenant(w, in, &w->actors[i]))
            return false;
    }
    return deal_out(w);
}

void trace_free(struct world *w)
{
    for (uint32_t i = 0; i < w->nactors && w->actors; i++) {
        free(w->actors[i].queue.at);
        free(w->actors[i].latencies.at);
    }
    for (uint32_t i = 0; i < w->ncards && w->cards; i++) {
        free(w->cards[i].actors);
        free(w->cards[i].policy_card);
    }
    for (uint32_t i = 0; i < w->nprograms && w->programs; i++)
        free(w->programs[i].at);
    free(w->programs);
    free(w->cards);
    free(w->actors);
}
