/* SPDX-License-Identifier: Apache-2.0
 *
 * A tenant: its only thread and the gate that this one obeys, and what it shows the arbiter.
 */
#include "simulate.h"

/* Copies of the arbiter's rules for tenants without progress (observe/sample.c, observe/inputs.c):
 * a tenant that waits at an open gate without a launch for GATE_WAIT_NS is passed over for a while,
 * and work without progress gets no more quanta. test_whatif_constants.py compares the values. */
#define GATE_WAIT_NS       (5 * QP_MS)
#define GATE_WAIT_AGAIN_NS (1 * QP_MS)
#define DOUBT_MIN_NS       (10 * QP_MS)
#define DOUBT_MAX_NS       (1000 * QP_MS)
#define STUCK_NS           (2000 * QP_MS)
/* Copies of the shim's rules (window/window.c): at QG_GATE_HOLD launches go while they sum up to
 * HOLD_NS, and the rest waits, LONGEST_HOLD_NS at most. */
#define HOLD_NS         150000u
#define LONGEST_HOLD_NS 2000000u
/* of the online class: the default of the arbiter's --hang-s */
#define STUCK_ONLINE_NS (60000 * QP_MS)

void ring(struct machine *m)
{
    uint64_t at = m->now + spread(&m->rng, m->arbiter_ns);
    if (at < m->decide_ns)
        m->decide_ns = at;
}

static const char *const mode_names[MODES] = {"away",       "idle",           "run",
                                              "wait-share", "wait-preempted", "wake"};

static enum mode mode_of(const struct actor *a)
{
    switch (a->state) {
    case ST_AWAY:
        return MODE_AWAY;
    case ST_RUNNING:
    case ST_DRAINING:
        return MODE_RUN;
    case ST_STANDING:
        return a->gate & QG_GATE_WHY_PREEMPTED ? MODE_PREEMPTED : MODE_SHARE;
    case ST_WAKING:
    case ST_HELD:
        return MODE_WAKE;
    default:
        return MODE_IDLE;
    }
}

static void note_mode(struct world *w, struct machine *m, struct actor *a)
{
    enum mode mode = mode_of(a);
    if (mode == a->mode)
        return;
    a->mode_ns[a->mode] += m->now - a->mode_since_ns;
    a->mode = mode;
    a->mode_since_ns = m->now;
    if (w->timeline)
        fprintf(w->timeline, "%llu,%u,%u,%s\n", (unsigned long long)m->now, m->number,
                (uint32_t)(a - w->actors), mode_names[mode]);
}

static bool on_card(enum state s)
{
    return s == ST_RUNNING || s == ST_DRAINING;
}

void actor_enter(struct world *w, struct machine *m, struct actor *a, enum state state)
{
    bool before = on_card(a->state), after = on_card(state);
    a->state = state;
    if (!before && after)
        a->progress_ns = m->now;
    if (before && !after)
        a->ended_ns = m->now;
    if (before != after) {
        m->nrunning = 0;
        for (uint32_t i = 0; i < m->nactors; i++) {
            if (on_card(m->actors[i]->state))
                m->running[m->nrunning++] = (uint16_t)i;
        }
    }
    note_mode(w, m, a);
}

/* ---- the gate ---- */

/* How much of its run goes at QG_GATE_HOLD, the first kernel in any case. */
static uint64_t let_through(const struct machine *m, struct actor *a)
{
    if (!a->hold_ns || m->now >= a->hold_ns + LONGEST_HOLD_NS)
        return a->run_ns;
    uint64_t room = a->let_ns < HOLD_NS ? (HOLD_NS - a->let_ns) / a->length_ns * a->length_ns : 0;
    if (!a->let_ns && !room)
        room = a->length_ns;
    return room < a->run_ns ? room : a->run_ns;
}

/* Launches what HOLD lets through; false: that is nothing. */
static bool passes_hold(struct world *w, struct machine *m, struct actor *a)
{
    if ((a->gate & QG_GATE_HOLD) && (a->gate & QG_GATE_NOTIFY) && !a->hold_ns)
        a->hold_ns = m->now ? m->now : 1;
    a->run_ns += a->held_ns;
    a->held_ns = 0;
    uint64_t goes = let_through(m, a);
    if (!goes) {
        a->timer_ns = a->hold_ns + LONGEST_HOLD_NS;
        actor_enter(w, m, a, ST_HELD);
        return false;
    }
    a->held_ns = a->run_ns - goes;
    a->run_ns = goes;
    if (a->hold_ns)
        a->let_ns += goes;
    return true;
}

static void launch(struct world *w, struct machine *m, struct actor *a)
{
    if (!passes_hold(w, m, a))
        return;
    a->launched = true;
    if (!a->began_ns)
        a->rang = (a->gate & QG_GATE_NOTIFY) && a->state != ST_WAKING;
    if (!a->began_ns)
        a->began_ns = m->now;
    if (a->gate & QG_GATE_NOTIFY)
        ring(m);
    if (a->job_class == QG_CLASS_ONLINE)
        online_came(m);
    a->alone_ns = m->now + a->run_ns;
    actor_enter(w, m, a, ST_RUNNING);
}

/* Wants to launch now. */
static void come(struct world *w, struct machine *m, struct actor *a)
{
    if (a->halted) {
        actor_enter(w, m, a, ST_IDLE);
    } else if (!has_work(a)) {
        actor_enter(w, m, a, ST_IDLE);
    } else if (a->gate & QG_GATE_CLOSED) {
        actor_enter(w, m, a, ST_STANDING);
        ring(m);
    } else {
        launch(w, m, a);
    }
}

/* The arbiter's window (observe/window.c), but under fixed-share the setting: what the chain has in
 * flight at the end of a budget is closer to that than to a full window. A tenant's processes
 * divide it, so together they have one. */
static uint64_t window_of(const struct machine *m, const struct actor *a)
{
    bool online = a->job_class == QG_CLASS_ONLINE;
    uint32_t live = 0, onlines = 0;
    for (uint32_t i = 0; i < m->nactors; i++) {
        live += m->actors[i]->state != ST_AWAY;
        onlines += m->actors[i]->state != ST_AWAY && m->actors[i]->job_class == QG_CLASS_ONLINE;
    }
    bool lone = online ? onlines <= 1 : live <= 1;
    uint64_t wide = 1000ull * (lone ? QP_LONE_WINDOW_US : QP_SHARED_WINDOW_US);
    if (m->policy[!online] == QG_POLICY_FIXED_SHARE ||
        m->policy_card->cls[!online].way == QP_WAY_LEND || (!online && onlines) ||
        m->window_ns > wide)
        return m->window_ns;
    return wide;
}

/* How much the shim lets it have unfinished. */
static uint64_t depth_of(const struct machine *m, const struct actor *a)
{
    return a->gate & QG_GATE_WINDOW ? window_of(m, a) : m->queue_depth * a->length_ns;
}

static void stop_launching(struct world *w, struct machine *m, struct actor *a)
{
    a->flight_ns = in_flight(a, depth_of(m, a));
    actor_enter(w, m, a, ST_DRAINING);
}

static void closed(struct world *w, struct machine *m, struct actor *a, bool preempted)
{
    if (preempted && (a->state == ST_RUNNING || a->state == ST_WAKING))
        a->preemptions++;
    if (a->state == ST_RUNNING)
        stop_launching(w, m, a);
    else if (a->state == ST_WAKING || a->state == ST_HELD)
        actor_enter(w, m, a, ST_STANDING);
    else if (a->state == ST_DRAINING)
        a->timer_ns = QP_NEVER;
    if (a->state != ST_THINKING && a->state != ST_COPYING)
        a->timer_ns = QP_NEVER;
}

static void opened(struct world *w, struct machine *m, struct actor *a)
{
    a->turns++;
    a->opened_ns = m->now;
    a->began_ns = 0;
    if (a->halted || (a->state != ST_STANDING && a->state != ST_DRAINING))
        return;
    a->timer_ns = m->now + spread(&m->rng, m->tenant_ns);
    if (a->state == ST_STANDING)
        actor_enter(w, m, a, ST_WAKING);
}

void actor_gate(struct world *w, struct machine *m, struct actor *a, uint32_t gate)
{
    uint32_t moved = (a->gate ^ gate) & QG_GATE_CLOSED;
    /* with the old window */
    if (moved && (gate & QG_GATE_CLOSED))
        closed(w, m, a, gate & QG_GATE_WHY_PREEMPTED);
    a->gate = gate;
    if (!(gate & QG_GATE_HOLD)) {
        if (a->state == ST_HELD)
            a->timer_ns = m->now + spread(&m->rng, m->tenant_ns);
    }
    if (!(gate & QG_GATE_HOLD) || (gate & QG_GATE_NOTIFY))
        a->let_ns = a->hold_ns = 0; /* as the shim does: a hold begins with the word that asks */
    if (moved && !(gate & QG_GATE_CLOSED))
        opened(w, m, a);
    note_mode(w, m, a);
}

/* ---- what happens when ---- */

/* Time on the CPU before it can launch again. A program goes on while its kernels wait for the
 * card, and needs less after them. It waits for copies and for each request; then its thread has to
 * wake up before it takes the next one. */
static uint64_t thinks(const struct world *w, struct machine *m, struct actor *a)
{
    bool done = a->load != LOAD_ENDLESS && !a->kernels_left, waited = done && a->queue.n;
    uint64_t gap = a->rest.gap_ns, had = a->ahead_ns < gap ? a->ahead_ns : gap;
    if (a->rest.drawn)
        return spread(&a->rng, gap);
    a->ahead_ns = a->rest.copy_ns || done ? 0 : a->ahead_ns - had;
    if (gap)
        return a->rest.copy_ns || done ? gap : gap - had;
    return waited && !w->fluid ? spread(&m->rng, m->tenant_ns) : 0;
}

/* Its kernels and copies are done: it thinks, and then wants to launch again. */
static void think(struct world *w, struct machine *m, struct actor *a)
{
    uint64_t gap = thinks(w, m, a);
    if (!gap) {
        come(w, m, a);
        return;
    }
    a->timer_ns = m->now + gap;
    actor_enter(w, m, a, ST_THINKING);
    if (a->gate & QG_GATE_IDLE)
        ring(m);
}

/* How far its program ran ahead while this run waited for the card at an open gate. */
static void note_ahead(const struct world *w, const struct machine *m, struct actor *a)
{
    uint64_t most = w->fluid ? 0 : window_of(m, a);
    if (a->state != ST_RUNNING)
        a->ahead_ns = 0; /* it stood at the gate */
    else if (m->now > a->alone_ns)
        a->ahead_ns += m->now - a->alone_ns;
    if (a->ahead_ns > most)
        a->ahead_ns = most;
}

void actor_ran(struct world *w, struct machine *m, struct actor *a)
{
    note_ahead(w, m, a);
    if (!a->run_ns) {
        a->run_ns = a->held_ns;
        a->held_ns = 0;
    }
    if (!a->run_ns)
        request_done(w, m, a);
    if (a->state == ST_DRAINING && a->timer_ns != QP_NEVER) {
        actor_enter(w, m, a, ST_WAKING); /* its gate is open again, its thread not there yet */
    } else if (a->state == ST_DRAINING && a->run_ns) {
        actor_enter(w, m, a, a->halted ? ST_IDLE : ST_STANDING);
        if (!(a->gate & QG_GATE_CLOSED))
            come(w, m, a);
        else if (!a->halted)
            ring(m); /* its thread waits at the gate, and saw the end */
    } else if (a->halted || a->run_ns) {
        come(w, m, a);
    } else if (a->rest.copy_ns) {
        a->timer_ns = m->now + a->rest.copy_ns;
        actor_enter(w, m, a, ST_COPYING);
    } else {
        think(w, m, a);
    }
}

static void arrive(struct world *w, struct machine *m, struct actor *a)
{
    queue_put(&a->queue, a->arrival_ns);
    a->arrival_ns = next_arrival(a);
    if (a->state == ST_IDLE)
        come(w, m, a);
}

static void start(struct world *w, struct machine *m, struct actor *a)
{
    a->state = ST_IDLE;
    a->arrival_ns = QP_NEVER;
    if (a->load != LOAD_ENDLESS) {
        a->arrival_ns = m->now;
        if (a->load == LOAD_POISSON)
            a->arrival_ns = next_arrival(a);
    }
    a->gate = w->fluid ? QG_GATE_WINDOW : QG_GATE_CLOSED; /* closed until the first decision */
    a->timer_ns = QP_NEVER;
    note_mode(w, m, a);
    ring(m);
    if (a->load == LOAD_ENDLESS)
        come(w, m, a);
}

static void leave(struct world *w, struct machine *m, struct actor *a)
{
    actor_enter(w, m, a, ST_AWAY);
    a->timer_ns = a->arrival_ns = a->stop_ns = QP_NEVER;
    a->start_ns = QP_NEVER;
    for (uint32_t i = 0; i < m->nactors; i++) {
        if (m->actors[i] == a)
            qp_forget(m->policy_card, i);
    }
    ring(m);
}

static uint64_t stop_due(const struct actor *a)
{
    if (a->next_stop >= a->nstops)
        return QP_NEVER;
    return a->stops[a->next_stop][a->halted];
}

/* SIGSTOP and SIGCONT. */
static void halt_or_go_on(struct world *w, struct machine *m, struct actor *a)
{
    if (!a->halted) {
        a->halted = true;
        if (a->state == ST_RUNNING)
            stop_launching(w, m, a);
        if (a->state != ST_DRAINING && a->state != ST_STANDING && a->state != ST_WAKING)
            a->state = ST_IDLE;
        if (a->state == ST_WAKING)
            actor_enter(w, m, a, ST_STANDING);
        a->timer_ns = QP_NEVER;
        return;
    }
    a->halted = false;
    a->next_stop++;
    if (a->state == ST_IDLE || a->state == ST_STANDING)
        come(w, m, a);
}

uint64_t actor_next(const struct actor *a)
{
    if (a->state == ST_AWAY)
        return a->start_ns;
    uint64_t at = a->timer_ns < a->arrival_ns ? a->timer_ns : a->arrival_ns;
    if (a->stop_ns < at)
        at = a->stop_ns;
    if (a->nstops && stop_due(a) < at)
        at = stop_due(a);
    return at;
}

void actor_due(struct world *w, struct machine *m, struct actor *a)
{
    if (a->state == ST_AWAY) {
        start(w, m, a);
    } else if (a->stop_ns <= m->now) {
        leave(w, m, a);
    } else if (a->nstops && stop_due(a) <= m->now) {
        halt_or_go_on(w, m, a);
    } else if (a->timer_ns <= m->now) {
        a->timer_ns = QP_NEVER;
        if (a->state == ST_DRAINING)
            launch(w, m, a); /* its gate opened again meanwhile */
        else if (a->state == ST_COPYING)
            think(w, m, a);
        else
            come(w, m, a);
    } else {
        arrive(w, m, a);
    }
}

/* ---- what the arbiter's sampling makes of it ---- */

/* Who stands at an open gate and does not move earns no turns for a while. */
static bool standing_believed(const struct machine *m, struct actor *a)
{
    uint64_t lease = a->doubt_ns ? GATE_WAIT_AGAIN_NS : GATE_WAIT_NS;
    if (m->now < a->doubt_until_ns)
        return false;
    if ((a->gate & QG_GATE_CLOSED) || m->now < a->opened_ns + lease)
        return true;
    a->doubt_ns = a->doubt_ns ? a->doubt_ns * 2 : DOUBT_MIN_NS;
    if (a->doubt_ns > DOUBT_MAX_NS)
        a->doubt_ns = DOUBT_MAX_NS;
    a->doubt_until_ns = m->now + a->doubt_ns;
    return false;
}

static uint64_t stuck_after(const struct actor *a)
{
    return a->job_class == QG_CLASS_ONLINE ? STUCK_ONLINE_NS : STUCK_NS;
}

void actor_show(const struct machine *m, struct actor *a, struct qp_tenant *t)
{
    t->live = a->state != ST_AWAY;
    t->job_class = a->job_class;
    t->share = a->share;
    t->ungoverned = a->ungoverned;
    t->launches = a->kernels;
    bool flying = on_card(a->state) || a->state == ST_COPYING,
         standing = a->state == ST_STANDING || a->state == ST_WAKING;
    if (flying)
        a->doubt_ns = a->doubt_until_ns = 0;
    if (a->halted && standing)
        standing = standing_believed(m, a);
    t->undrained = flying;
    t->at_gate = standing || (a->state == ST_DRAINING && !a->halted && a->run_ns > a->flight_ns);
    t->runnable = flying || standing || a->launched || a->state == ST_HELD;
    t->reported_end_ns = flying || standing || a->nkernels != 1 ? 0 : a->ended_ns;
    if (!(a->gate & QG_GATE_CLOSED) && a->began_ns && !t->used_from_ns)
        t->used_from_ns = a->rang ? m->now : a->began_ns;
    t->preempts = t->runnable && !(standing && !flying && !a->launched && a->doubt_ns);
    a->launched = false;
    if (a->lie == LIE_IDLE)
        t->runnable = t->undrained = t->preempts = 0;
    if (a->lie == LIE_BUSY && t->live) {
        t->undrained = 1;
        t->runnable = flying || standing || m->now - a->progress_ns < stuck_after(a);
        t->preempts = t->runnable;
    }
}
