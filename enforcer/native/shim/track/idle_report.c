/* SPDX-License-Identifier: Apache-2.0
 *
 * Since when this process has nothing on a card. The arbiter looks at intervals; who waited for the
 * end of its work knows exactly, and says so in its slot: offline's turn comes so much sooner.
 */
#include "track/streams.h"

static uint64_t launches(const struct qg_proc *proc)
{
    uint64_t sum = __atomic_load_n(&proc->launches, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < QG_LANES; i++)
        sum += __atomic_load_n(&proc->lanes[i].launches, __ATOMIC_ACQUIRE);
    return sum;
}

static bool rests(const struct qg_proc *proc)
{
    bool left = __atomic_load_n(&proc->unmarked, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; !left && i < QG_MARKERS; i++)
        left = __atomic_load_n(&proc->markers[i].submitted, __ATOMIC_ACQUIRE) !=
               __atomic_load_n(&proc->markers[i].done, __ATOMIC_ACQUIRE);
    return !left;
}

/* The launches are read first: who counts one later makes the two words disagree with its count,
 * and then they say nothing. One that another thread has counted and not made yet is covered by
 * them: where the arbiter finds it at work they are not believed, and where it was too brief for
 * that offline comes sooner by a look at most. Who only asked, again and again, has said it
 * already. */
static void tell(struct qg_proc *proc, bool slept)
{
    uint64_t count = launches(proc);
    if ((!slept && count == __atomic_load_n(&proc->rests_launches, __ATOMIC_RELAXED)) ||
        !rests(proc))
        return;
    __atomic_store_n(&proc->rests_ns, qg_now_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&proc->rests_launches, count, __ATOMIC_RELEASE);
}

void qg_tell_rest(bool slept)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++) {
        struct qg_pages *pages = qg_pages_of(&qg_cards[i]);
        if (pages)
            tell(pages->proc, slept);
    }
}
