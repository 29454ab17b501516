/* SPDX-License-Identifier: Apache-2.0
 *
 * The idle report: the time at which the last work of this process on a card ended. The arbiter
 * samples at intervals. A thread that waited for the end knows it exactly and writes it into its
 * slot. Offline work then starts sooner. At a gate with QG_GATE_IDLE it rings, too: others wait for
 * the pauses of this tenant.
 */
#include "gate/gate.h"
#include "track/streams.h"

static uint64_t launches(const struct qg_proc *proc)
{
    uint64_t sum = __atomic_load_n(&proc->launches, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < QG_LANES; i++)
        sum += __atomic_load_n(&proc->lanes[i].launches, __ATOMIC_ACQUIRE);
    return sum;
}

static bool idle(const struct qg_proc *proc)
{
    bool left = __atomic_load_n(&proc->unfenced, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; !left && i < QG_FENCES; i++)
        left = __atomic_load_n(&proc->fences[i].submitted, __ATOMIC_ACQUIRE) !=
               __atomic_load_n(&proc->fences[i].done, __ATOMIC_ACQUIRE);
    return !left;
}

/* The launch count is read first. A launch counted later makes the report disagree with the count,
 * and the arbiter then ignores the report. A launch that another thread has counted and not made
 * yet is included. If the arbiter samples it as running, it ignores the report too. If it is too
 * short for that, offline starts at most one sample early. A query that did not sleep writes only
 * one report per launch count. */
static void report(struct qg_card *card, struct qg_pages *pages, bool slept)
{
    struct qg_proc *proc = pages->proc;
    uint64_t count = launches(proc);
    bool known = count == __atomic_load_n(&proc->idle_launches, __ATOMIC_RELAXED);
    if ((!slept && known) || !idle(proc))
        return;
    __atomic_store_n(&proc->idle_ns, qg_now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&proc->idle_launches, count, __ATOMIC_RELEASE);
    if (!known && __atomic_load_n(&pages->gate->flags, __ATOMIC_RELAXED) & QG_GATE_IDLE)
        qg_gate_ring(card, pages);
}

void qg_report_idle(bool slept)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++) {
        struct qg_pages *pages = qg_pages_of(&qg_cards[i]);
        if (pages)
            report(&qg_cards[i], pages, slept);
    }
}
