/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection to the arbiter. One helper thread per process connects, registers every visible
 * card of the grant, publishes the pages and then sleeps in poll(2) on the socket; when the arbiter
 * goes away, or the program closes the descriptor under us, it starts over.
 *
 * The program owns the descriptor table. Ours have high numbers, and before one is used again its
 * identity (device and inode) is compared, so that nothing is ever read from or written to a
 * descriptor of the program.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "register/connection.h"
#include "gate/gate.h"
#include "gate/room.h"
#include "link/link.h"
#include "memory/memory.h"
#include "process/pages.h"
#include "register/register.h"
#include "track/streams.h"
#include "qg_msg.h"
#include "groups/rm.h"
#include "base/message.h"
#include "memory/contexts.h"
#include "memory/ipc.h"
#include "process/process.h"
#include "track/waiters.h"

/* ms within which the arbiter answers, or the helper connects anew. Chosen, not measured: it
 * answers within ms. */
#define ANSWER_MS 2000
/* ms between two attempts while the arbiter says EAGAIN or is not there. Chosen, not measured. */
#define RETRY_MS 100
/* ms between two checks that our descriptors are still ours. Chosen, not measured. */
#define POLL_MS 250

/* ---- one registration ---- */

/* Another thread may be ringing the old doorbell. If it were closed, the program could get its
 * number at that moment. So the new doorbell takes the old number. */
static void keep_number(struct qg_pages *pages, const struct qg_pages *old)
{
    if (!old || old->doorbell == pages->doorbell ||
        !qg_same_file(old->doorbell, old->doorbell_dev, old->doorbell_ino) ||
        dup3(pages->doorbell, old->doorbell, O_CLOEXEC) < 0)
        return;
    close(pages->doorbell);
    pages->doorbell = old->doorbell;
}

/* This process may have executed another program since it got this slot. Then the threads that
 * waited at the gate and the work are gone. The arbiter clears the fences. Only the shim knows that
 * these words are stale: a program that merely lost its connection registers in the same way. */
static void begin_slot(struct qg_proc *proc)
{
    __atomic_store_n(&proc->waiting, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->queued, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->inflight_us, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->quantum_start_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->idle_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->idle_launches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->mem_wanted, 0, __ATOMIC_RELAXED);
}

/* The new pages take over; the old ones stay mapped, because another thread may be reading them. */
static void adopt(struct qg_card *card, struct qg_pages *pages)
{
    struct qg_pages *old = qg_pages_of(card);
    if (!old)
        begin_slot(pages->proc);
    keep_number(pages, old);
    qg_memory_adopt(card, pages);
    qg_streams_adopt(card, old);
    __atomic_store_n(&card->gate_ignored, false, __ATOMIC_SEQ_CST);
    qg_gate_adopted(card);
    qg_link_changed();
}

/* Pages of a former arbiter may have an open gate. They serve only for what the process holds under
 * them. */
static void note_refusal(struct qg_card *card, int status, const char *why)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (!qg_link.why[0])
        snprintf(qg_link.why, sizeof(qg_link.why), "%.*s", (int)sizeof(qg_link.why) - 1, why);
    if (qg_link.refused[card - qg_cards] == status || (pages && !qg_pages_shut(pages)))
        return; /* no memory for that now: again with the next answer */
    __atomic_store_n(&qg_link.refused[card - qg_cards], status, __ATOMIC_RELEASE);
    __atomic_store_n(&card->gate_ignored, false, __ATOMIC_SEQ_CST);
    qg_link_changed(); /* threads that wait for memory have their answer */
}

static bool has_ended(int sock)
{
    struct pollfd state = {.fd = sock, .events = POLLIN};
    return poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLERR | POLLNVAL));
}

/* 0, or an errno: EAGAIN asks for another try on the same connection. EPROTO: the arbiter is of
 * another version. */
static int register_card(int sock, struct qg_card *card)
{
    struct qg_register ask = {.job_id = qg_info.grant.job_id, .mem_used = qg_memory_used(card)};
    struct qg_registered answer = {.status = EPROTO};
    int fds[QG_PAGE_FDS] = {-1, -1, -1}, grant = qg_grant_descriptor();
    qg_msg_head_init(&ask.head, QG_MSG_REGISTER, sizeof(ask));
    memcpy(ask.uuid, qg_card_name(card->grant), sizeof(ask.uuid));
    int count = qg_msg_send(sock, &ask, sizeof(ask), &grant, grant >= 0) == 0 ? QG_UNREQUESTED : -1;
    bool late = false;
    while (count == QG_UNREQUESTED && !(late = !qg_wait_readable(sock, ANSWER_MS)))
        count = qg_arbiter_receive(sock, &answer, fds);
    if (late && !has_ended(sock))
        return ETIMEDOUT;
    if (count < 0)
        return EPIPE;
    if (answer.status == 0) {
        struct qg_pages *pages = count == QG_PAGE_FDS ? qg_pages_from(&answer, fds) : NULL;
        if (pages)
            adopt(card, pages);
        else
            answer.status = EBADMSG;
    }
    qg_close_all(fds, QG_PAGE_FDS);
    int status = answer.status < 0 ? -answer.status : answer.status;
    if (status == ENOSPC || status == EPERM)
        note_refusal(card, status, answer.message);
    else if (status == 0)
        __atomic_store_n(&qg_link.refused[card - qg_cards], 0, __ATOMIC_RELEASE);
    return status;
}

static void sleep_ms(long ms)
{
    struct timespec wait = {ms / 1000, (ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
}

/* All of these end the connection. */
static bool is_over(int status)
{
    return status == EPROTO || status == EPIPE || status == ETIMEDOUT;
}

static unsigned registered(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < QG_MAX_CARDS; i++)
        count += qg_link.registered[i];
    return count;
}

/* Registers the cards that are not registered yet. Returns 0 if every visible card is registered on
 * this connection. Otherwise EAGAIN if one shall ask again soon, or why the first was refused. A
 * refused card does not affect the other cards. */
static int register_all(int sock)
{
    int why = 0;
    for (unsigned i = 0; i < qg_info.grant.ncards; i++) {
        if (!qg_cards[i].visible || qg_link.registered[i])
            continue;
        int status = register_card(sock, &qg_cards[i]);
        if (is_over(status))
            return status;
        qg_link.registered[i] = status == 0;
        if (!why || status == EAGAIN)
            why = status;
    }
    return why;
}

/* While it has no card there is nothing else to do on the connection. */
static int first_round(int sock)
{
    int status;
    while ((status = register_all(sock)) == EAGAIN && !registered()) {
        __atomic_store_n(&qg_link.last, EAGAIN, __ATOMIC_RELEASE);
        sleep_ms(RETRY_MS);
        if (!qg_same_file(sock, qg_link.dev, qg_link.ino))
            return ENOTCONN;
    }
    return status;
}

static int retry_ms(void)
{
    return __atomic_load_n(&qg_link.last, __ATOMIC_RELAXED) == EAGAIN ? RETRY_MS : QG_REFUSED_MS;
}

/* Cards that were refused, asked for again. False: the connection is over. */
static bool again(int sock)
{
    static uint64_t asked_ns;
    uint64_t now = qg_now_ns();
    if (!__atomic_load_n(&qg_link.last, __ATOMIC_RELAXED) ||
        now - asked_ns < (uint64_t)retry_ms() * 1000000u)
        return true;
    asked_ns = now;
    unsigned before = registered();
    int status = register_all(sock);
    __atomic_store_n(&qg_link.last, status, __ATOMIC_RELEASE);
    if (registered() > before)
        qg_rm_connected(sock, qg_link.dev, qg_link.ino); /* its channel groups are reported */
    return !is_over(status);
}

/* ---- the helper thread ---- */

static void first_round_over(void)
{
    __atomic_store_n(&qg_link.attempted, true, __ATOMIC_SEQ_CST);
    qg_link_changed();
}

static bool doorbells_are_ours(void)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++) {
        struct qg_pages *pages = qg_pages_of(&qg_cards[i]);
        if (pages && !qg_same_file(pages->doorbell, pages->doorbell_dev, pages->doorbell_ino))
            return false;
    }
    return true;
}

/* True: an arbiter that was given up has a heartbeat again. A card that this arbiter refuses does
 * not count, though its old pages may have a heartbeat: again() asks for it. */
static bool given_up_is_back(void)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++)
        if (qg_link.registered[i] && qg_gate_arbiter_back(&qg_cards[i]))
            return true;
    return false;
}

/* Serves the connection until the arbiter closes it, a descriptor is lost, or an arbiter that was
 * given up is back. Then the helper connects anew. Unrequested messages of the arbiter are about
 * channel groups. */
static void stand_by(int sock)
{
    union {
        struct qg_act act;
        char bytes[256];
    } message;
    for (;;) {
        bool readable = qg_wait_readable(sock, retry_ms() < POLL_MS ? retry_ms() : POLL_MS);
        qg_waiters_reap();
        qg_room_poll();
        qg_shares_poll();
        qg_contexts_poll();
        qg_rm_poll();
        if (!qg_same_file(sock, qg_link.dev, qg_link.ino) || !doorbells_are_ours() ||
            given_up_is_back() || __atomic_exchange_n(&qg_link.ring, 0, __ATOMIC_SEQ_CST) ||
            !again(sock))
            return;
        if (!readable) {
            if (has_ended(sock))
                return;
        } else {
            ssize_t got = recv(sock, message.bytes, sizeof(message), MSG_DONTWAIT);
            if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
                return;
            if (got > 0)
                qg_rm_received(&message, (size_t)got);
        }
    }
}

static void *helper(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "qgpu");
    qg_depth = 1;
    for (;;) {
        struct stat st;
        int sock = qg_arbiter_connect();
        int status = ENOTCONN;
        __atomic_store_n(&qg_link.unreached, sock < 0 ? -sock : 0, __ATOMIC_RELEASE);
        memset(qg_link.registered, 0, sizeof(qg_link.registered));
        if (sock >= 0 && fstat(sock, &st) == 0) {
            qg_link.dev = st.st_dev;
            qg_link.ino = st.st_ino;
            qg_link.sock = sock;
            status = first_round(sock);
        }
        bool done = status == 0 || (!is_over(status) && registered());
        __atomic_store_n(&qg_link.last, status, __ATOMIC_RELEASE);
        __atomic_store_n(&qg_link.connected, done, __ATOMIC_RELEASE);
        first_round_over();
        if (done) {
            qg_rm_connected(sock, qg_link.dev, qg_link.ino);
            stand_by(sock);
            qg_rm_disconnected();
        }
        __atomic_store_n(&qg_link.connected, false, __ATOMIC_RELEASE);
        if (sock >= 0 && qg_same_file(sock, qg_link.dev, qg_link.ino))
            close(sock);
        qg_link.sock = -1;
        sleep_ms(done                                                          ? 1
                 : status == ENOTCONN || (is_over(status) && status != EPROTO) ? RETRY_MS
                                                                               : QG_REFUSED_MS);
    }
    return NULL;
}

void qg_register_start(void)
{
    qg_link_start(helper);
}
