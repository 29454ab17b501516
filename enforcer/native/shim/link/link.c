/* SPDX-License-Identifier: Apache-2.0
 *
 * The link to the arbiter: waits for it, and keeps its answers.
 */
#include "link/link.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/message.h"
#include "base/thread.h"
#include "process/pages.h"

/* ns that cuInit waits for the first registration. Chosen, not measured: a live arbiter answers
 * within ms. */
#define FIRST_WAIT_NS 500000000u
/* ns after cuInit without an arbiter from which memory is refused. Chosen, not measured: a restart
 * takes less. */
#define START_LEASE_NS 10000000000u
/* ns of waiting from which the user gets a message. A restart of the arbiter takes less. */
#define MESSAGE_AFTER_NS 2000000000u

struct qg_link qg_link = {.sock = -1};
static void *(*body)(void *); /* main function of the helper thread, once it was requested */

void qg_link_changed(void)
{
    __atomic_add_fetch(&qg_link.changed, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &qg_link.changed, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Sleeps until `changed` differs from `seen`. It uses system calls by number, since a cancelled
 * thread must not end in here. False: the time is over. */
static bool wait_change(uint32_t seen, uint64_t until_ns)
{
    uint64_t now = qg_now_ns();
    if (now >= until_ns)
        return false;
    struct timespec limit = {(time_t)((until_ns - now) / 1000000000u),
                             (long)((until_ns - now) % 1000000000u)};
    syscall(SYS_futex, &qg_link.changed, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
    return true;
}

bool qg_link_connected(void)
{
    return __atomic_load_n(&qg_link.connected, __ATOMIC_ACQUIRE);
}

void qg_link_start(void *(*helper)(void *))
{
    if (!helper || __atomic_load_n(&qg_link.running, __ATOMIC_ACQUIRE))
        return;
    __atomic_store_n(&body, helper, __ATOMIC_RELAXED);
    qg_link.started_ns = qg_now_ns();
    if (!__atomic_exchange_n(&qg_link.running, true, __ATOMIC_ACQ_REL) && !qg_thread_start(helper))
        __atomic_store_n(&qg_link.running, false, __ATOMIC_RELEASE);
}

void qg_link_first(void)
{
    while (__atomic_load_n(&qg_link.running, __ATOMIC_ACQUIRE)) {
        uint32_t seen = __atomic_load_n(&qg_link.changed, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&qg_link.attempted, __ATOMIC_SEQ_CST) ||
            !wait_change(seen, qg_link.started_ns + FIRST_WAIT_NS))
            break;
    }
}

const char *qg_link_refusal(struct qg_card *card)
{
    return __atomic_load_n(&qg_link.refused[card - qg_cards], __ATOMIC_ACQUIRE) ? qg_link.why
                                                                                : NULL;
}

/* Why the arbiter has given no answer. */
static const char *unanswered(void)
{
    if (!__atomic_load_n(&qg_link.running, __ATOMIC_ACQUIRE))
        return "this process could not start the thread that asks for it";
    switch (__atomic_load_n(&qg_link.unreached, __ATOMIC_ACQUIRE)) {
    case 0:
        break;
    case ENOENT:
        return "it does not answer, since its socket is not there";
    case EPERM:
        return "the process at its socket is not root";
    case ECONNREFUSED:
        return "it does not answer, since it is not running";
    default:
        return "it does not answer, since its socket cannot be used";
    }
    switch (__atomic_load_n(&qg_link.last, __ATOMIC_ACQUIRE)) {
    case EAGAIN:
        return "it does not know yet which jobs there are; is qgpud running";
    case EBADMSG:
        return "its answer cannot be believed";
    case EPROTO:
        return "it speaks another version of the protocol";
    default:
        return "it does not answer";
    }
}

/* What the user can do. For a grant without Slurm that is over: its processes go on, but they are
 * not registered any more. */
static const char *advice(int status)
{
    if (status == ENOSPC)
        return "Start fewer, or end some.";
    if (status == EPERM && qg_info.grant.job_id >= QG_JOB_WITHOUT_SLURM)
        return "The grant of a command ends with it; let it wait for what it started, or start "
               "that with qgpu run.";
    return status ? "Start it with srun or sbatch inside its job, or tell your administrator."
                  : "It goes on as soon as it is registered. If that takes long, tell your "
                    "administrator.";
}

void qg_link_report_refusal(struct qg_card *card)
{
    static bool reported;
    const char *why = qg_link_refusal(card);
    if (__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
        return;
    qg_message(
        "this process waits for the card, because the arbiter of this node did not register it at "
        "%s/%s: %s. %s",
        qg_info.grant.run_dir, QG_SOCK_REGISTER, why ? why : unanswered(),
        advice(why ? qg_link.refused[card - qg_cards] : 0));
}

/* Waits as at a closed gate: an unregistered process has no limits, so it may not work. */
void qg_link_wait(struct qg_card *card)
{
    uint64_t since = qg_now_ns();
    while (!qg_pages_of(card)) {
        uint32_t seen = __atomic_load_n(&qg_link.changed, __ATOMIC_SEQ_CST);
        if (qg_pages_of(card))
            break;
        qg_link_start(body); /* there may be room for one more thread now */
        uint64_t now = qg_now_ns();
        if (qg_link_refusal(card) || now - since > MESSAGE_AFTER_NS)
            qg_link_report_refusal(card);
        wait_change(seen, now + QG_REFUSED_MS * 1000000ull);
    }
}

const char *qg_link_for_memory(struct qg_card *card)
{
    while (__atomic_load_n(&qg_link.running, __ATOMIC_ACQUIRE)) {
        uint32_t seen = __atomic_load_n(&qg_link.changed, __ATOMIC_SEQ_CST);
        if (qg_pages_of(card))
            break;
        const char *why = qg_link_refusal(card);
        if (why)
            return why;
        if (!wait_change(seen, qg_link.started_ns + START_LEASE_NS))
            break;
    }
    return qg_pages_of(card) ? NULL : unanswered();
}

/* The program closed our doorbell. The helper registers again at its next poll, and a registration
 * also wakes the arbiter. */
void qg_ring_by_helper(struct qg_card *card)
{
    (void)card;
    __atomic_store_n(&qg_link.ring, 1, __ATOMIC_SEQ_CST);
}

/* The parent's connection and doorbells are not the child's. */
void qg_link_after_fork(void)
{
    if (qg_link.running && qg_same_file(qg_link.sock, qg_link.dev, qg_link.ino))
        close(qg_link.sock);
    for (unsigned i = 0; i < QG_MAX_CARDS; i++) {
        struct qg_pages *pages = qg_pages_of(&qg_cards[i]);
        if (pages && qg_same_file(pages->doorbell, pages->doorbell_dev, pages->doorbell_ino))
            close(pages->doorbell);
    }
    memset(&qg_link, 0, sizeof(qg_link));
    qg_link.sock = -1;
}
