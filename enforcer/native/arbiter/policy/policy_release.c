/* SPDX-License-Identifier: Apache-2.0
 *
 * idle_release: auto. When offline may come after online fell idle: at once those tenants that were
 * measured to leave the card within online_delay, after idle_release all others. The hold keeps
 * offline out of the pauses inside online's requests.
 */
#include "policy/policy_parts.h"

/* ns: Shortest gap that is told apart; each bucket is twice as long as the one before. Evidence:
 * bound. */
#define GAP_NS 64000ull

static uint32_t bucket_of(uint64_t gap)
{
    uint32_t b = 0;
    while (b + 1 < QP_GAPS && gap >= GAP_NS << (b + 1))
        b++;
    return b;
}

/* Notes a gap: from the end of all online work to the next launch. */
static void note_gap(struct qp_tenant *t, uint64_t gap)
{
    uint32_t b = bucket_of(gap), n = 0;
    t->gaps[b]++;
    t->gap_us[b] += (uint32_t)min_u64(gap / 1000, UINT32_MAX / QP_GAPS_KEPT);
    for (uint32_t i = 0; i < QP_GAPS; i++)
        n += t->gaps[i];
    for (uint32_t i = 0; n >= QP_GAPS_KEPT && i < QP_GAPS; i++) {
        t->gap_us[i] -= t->gap_us[i] / 2;
        t->gaps[i] -= t->gaps[i] / 2;
    }
}

/* The hold that would have cost the least over the known gaps. A gap no longer than the hold costs
 * its own length, because the card idles. A longer one costs the hold and one entry. An entry is
 * QP_ENTRY_COST times what online waits for offline to leave. */
static uint64_t best_hold(const struct qp_tenant *t, uint64_t leave)
{
    uint64_t after = 0, best = 0, least = UINT64_MAX, idled = 0;
    for (uint32_t i = 0; i < QP_GAPS; i++)
        after += t->gaps[i];
    for (uint32_t b = 0; b < QP_GAPS; b++) {
        uint64_t hold = b ? GAP_NS << b : 0, cost = idled + after * (hold + QP_ENTRY_COST * leave);
        if (cost < least) {
            least = cost;
            best = hold;
        }
        idled += t->gap_us[b] * 1000ull;
        after -= t->gaps[b];
    }
    return best;
}

/* Which online tenant fell idle last? Its gaps tell how long the next one may be. */
static const struct qp_tenant *last_idle(const struct qp_card *c)
{
    const struct qp_tenant *last = NULL;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        if (t->live && class_of(t) == ONLINE &&
            (!last || t->online_idle_since_ns > last->online_idle_since_ns))
            last = t;
    }
    return last;
}

/* Starts of online that a late leave costs at least. All offline tenants together are late at one
 * start in QP_LATE_COST at most. */
static uint32_t late_cost(const struct members *offline)
{
    return offline->n * QP_LATE_COST;
}

/* Does it wait for idle_release? One late leave is forgiven. */
static bool waits(const struct qp_tenant *t, const struct members *offline)
{
    return t->owed > late_cost(offline);
}

/* Online has work again: the gap is known. Each start that offline could have delayed pays a part
 * of what late tenants owe. */
static void online_returned(struct qp_card *c, const struct members *offline, uint64_t now)
{
    struct qp_tenant *t = c->fell_idle >= 0 ? &c->tenant[c->fell_idle] : NULL;
    uint64_t gap = now - c->online_busy_ns;
    if (t && t->live && class_of(t) == ONLINE)
        note_gap(t, gap);
    for (uint32_t j = 0; gap >= c->hold_ns && j < offline->n; j++)
        c->tenant[offline->at[j]].owed -= c->tenant[offline->at[j]].owed > 0;
}

/* An offline tenant took this long to leave the card for online. A late leave costs as often as
 * online_delay fits into it. What it owes is bounded, because a tenant that leaves in time again
 * must be able to come again. The hold is for those that leave in time: the others wait anyway. */
static void note_leave(struct qp_card *c, struct qp_tenant *t, uint32_t cost, uint64_t leave)
{
    if (leave <= c->online_delay_ns) {
        c->leave_ns = c->leave_ns - c->leave_ns / 16 + leave / 16;
        return;
    }
    uint64_t times = min_u64(leave, QP_DRAIN_TIMEOUT_NS) / c->online_delay_ns;
    uint64_t more = cost * max_u64(times, 1);
    t->owed =
        (uint32_t)min_u64(t->owed < more ? t->owed + more : max_u64(t->owed, 2 * more), UINT32_MAX);
}

/* The most online tenants with work on the card at once, since they want it. HOLD leaves each of
 * them one kernel there, and the card divides its time: offline waits for theirs, too. */
static void note_crowd(struct qp_card *c, bool begins)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->ntenants; i++) {
        const struct qp_tenant *t = &c->tenant[i];
        n += t->live && class_of(t) == ONLINE && t->undrained;
    }
    c->crowd = (uint32_t)max_u64(n, begins ? 1 : c->crowd);
}

/* Measures how long each offline tenant takes to leave the card when online wants it. Online's work
 * may end before: then nothing waited for it any more. */
static void measure(struct qp_card *c, const struct members *offline, bool begins, uint64_t now)
{
    note_crowd(c, begins);
    for (uint32_t j = 0; j < offline->n; j++) {
        struct qp_tenant *t = &c->tenant[offline->at[j]];
        if (!c->online_delay_ns || t->held || t->suspended)
            t->leaving_ns = 0;
        else if (begins && t->undrained && !t->leaving_ns)
            t->leaving_ns = now;
        if (!t->leaving_ns || (t->undrained && c->preempting))
            continue;
        uint64_t leave = (now - t->leaving_ns) / c->crowd;
        if (!t->undrained || leave > c->online_delay_ns)
            note_leave(c, t, late_cost(offline), leave);
        t->leaving_ns = 0;
    }
}

/* Is there one that may come before idle_release has passed? */
static bool any_quick(const struct qp_card *c, const struct members *offline)
{
    for (uint32_t j = 0; j < offline->n; j++) {
        const struct qp_tenant *t = &c->tenant[offline->at[j]];
        if (!waits(t, offline) && !t->suspended && !t->held)
            return true;
    }
    return false;
}

/* Is an offline tenant's work on the card? */
static bool on_card(const struct qp_card *c, const struct members *offline)
{
    for (uint32_t j = 0; j < offline->n; j++) {
        if (c->tenant[offline->at[j]].undrained)
            return true;
    }
    return false;
}

/* online_share: what leaves take of online's time is paid with a part of its time without them.
 * Little is saved, so the share holds in any ten seconds; and no more than one long kernel is owed,
 * so that offline comes again. */
static void account(struct qp_card *c, const struct members *offline, bool works, uint64_t now)
{
    int64_t most = (int64_t)c->online_delay_ns, least = -(int64_t)QP_DRAIN_TIMEOUT_NS;
    int64_t passed = (int64_t)((works ? now : c->online_busy_ns) - c->last_ns);
    if (!c->online_share || !most)
        c->spare_ns = 0;
    else if (c->online_working)
        c->spare_ns += c->beside ? -passed : passed * c->online_share / 100;
    else if (works && on_card(c, offline))
        c->spare_ns -= QP_TAKE_NS;
    c->spare_ns = c->spare_ns > most ? most : c->spare_ns < least ? least : c->spare_ns;
    c->beside = works && on_card(c, offline);
}

void qp_release(struct qp_card *c, const struct members *offline, bool works, uint64_t now)
{
    bool was = c->preempting;
    account(c, offline, works, now);
    if (c->online_delay_ns && works && !c->online_working && c->online_busy_ns)
        online_returned(c, offline, now);
    if (c->online_delay_ns && !works && c->online_working) {
        const struct qp_tenant *t = last_idle(c);
        c->fell_idle = t ? (int32_t)(t - c->tenant) : -1;
        c->leave_ns = c->leave_ns ? c->leave_ns : c->online_delay_ns / 2;
        c->hold_ns = t ? best_hold(t, c->leave_ns) : 0;
    }
    bool quick = c->online_delay_ns && c->spare_ns >= 0 && any_quick(c, offline);
    c->release_ns = quick ? min_u64(c->hold_ns, c->idle_release_ns) : c->idle_release_ns;
    uint64_t since = works ? now : c->online_busy_ns;
    c->preempting = works || (since && now < since + c->release_ns);
    measure(c, offline, c->preempting && !was, now);
    bool early = since && now < since + c->idle_release_ns;
    for (uint32_t j = 0; j < offline->n; j++) {
        struct qp_tenant *t = &c->tenant[offline->at[j]];
        t->late = quick && early && waits(t, offline);
    }
}
