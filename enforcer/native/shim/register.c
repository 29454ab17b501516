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

#include "answer.h"
#include "pages.h"
#include "qg_msg.h"
#include "rm.h"
#include "say.h"
#include "shares.h"
#include "shim.h"
#include "waiters.h"

#define FIRST_WAIT_NS  500000000u   /* cuInit waits so long for the first registration */
#define START_LEASE_NS 10000000000u /* no arbiter for so long after cuInit: memory is refused */
/* a restart of the arbiter takes less, and is not worth a word */
#define SAY_AFTER_NS 2000000000u
#define ANSWER_MS    2000 /* the arbiter answers within this, or we start over */
#define RETRY_MS     100
/* a clear no will hardly become a yes, but an administrator may repair it */
#define REFUSED_MS 1000
/* how often the helper looks whether its descriptors are still its own */
#define LOOK_MS 250

static struct {
    uint32_t changed;    /* atomic, futex: rises with attempted and with each registration */
    bool running;        /* atomic: a helper thread exists in this process */
    bool attempted;      /* atomic: its first round is over */
    bool connected;      /* atomic */
    uint64_t started_ns; /* written before running */
    int sock;            /* the next three are the helper's, and the child's after a fork */
    dev_t dev;
    ino_t ino;
    uint32_t ring;                 /* atomic: somebody could not ring */
    int refused[QG_MAX_CARDS];     /* atomic: errno of a clear no for this card, until a yes */
    bool registered[QG_MAX_CARDS]; /* the helper's: on this connection */
    int last;                      /* atomic: what the last round came to */
    int unreached; /* atomic: errno of the last attempt to connect, 0: somebody was there */
    char why[200]; /* the first no in the arbiter's words; written before refused, once */
} reg = {.sock = -1};

static void changed(void)
{
    __atomic_add_fetch(&reg.changed, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &reg.changed, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Sleeps until something changed since `seen`. By number, since a cancelled thread must not die in
 * here. False: the time is over. */
static bool wait_change(uint32_t seen, uint64_t until_ns)
{
    uint64_t now = qg_now_ns();
    if (now >= until_ns)
        return false;
    struct timespec limit = {(time_t)((until_ns - now) / 1000000000u),
                             (long)((until_ns - now) % 1000000000u)};
    syscall(SYS_futex, &reg.changed, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
    return true;
}

bool qg_register_connected(void)
{
    return __atomic_load_n(&reg.connected, __ATOMIC_ACQUIRE);
}

/* ---- one registration ---- */

/* Another thread may just be ringing the old doorbell. If we closed it, the program could get its
 * number in that moment, so the number stays a doorbell for ever: the new one takes it. */
static void keep_number(struct qg_pages *pages, const struct qg_pages *old)
{
    if (!old || old->doorbell == pages->doorbell ||
        !qg_same_file(old->doorbell, old->doorbell_dev, old->doorbell_ino) ||
        dup3(pages->doorbell, old->doorbell, O_CLOEXEC) < 0)
        return;
    close(pages->doorbell);
    pages->doorbell = old->doorbell;
}

/* The slot may have been that of the program which this process ran before it executed us: its
 * threads stand at no gate any more, and its work is gone. The arbiter clears markers; that these
 * words are stale only we know, since a program that merely lost its connection comes back in the
 * same way. */
static void begin_slot(struct qg_proc *proc)
{
    __atomic_store_n(&proc->waiting, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->queued, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->inflight_us, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->ends_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->turn_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->rests_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->rests_launches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&proc->contexts, 0, __ATOMIC_RELAXED);
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
    __atomic_store_n(&card->compute_open, false, __ATOMIC_SEQ_CST);
    qg_gate_adopted(card);
    changed();
}

/* Pages of a former arbiter, whose gate may be open for ever, are no more than what is held by
 * them. */
static void note_refusal(struct qg_card *card, int status, const char *why)
{
    struct qg_pages *pages = qg_pages_of(card);
    if (!reg.why[0])
        snprintf(reg.why, sizeof(reg.why), "%.*s", (int)sizeof(reg.why) - 1, why);
    if (reg.refused[card - qg_cards] == status || (pages && !qg_pages_shut(pages)))
        return; /* there is no memory for that just now: with the next answer */
    __atomic_store_n(&reg.refused[card - qg_cards], status, __ATOMIC_RELEASE);
    __atomic_store_n(&card->compute_open, false, __ATOMIC_SEQ_CST);
    changed(); /* who waits for memory has its answer */
}

static bool has_ended(int sock)
{
    struct pollfd look = {.fd = sock, .events = POLLIN};
    return poll(&look, 1, 0) > 0 && (look.revents & (POLLHUP | POLLERR | POLLNVAL));
}

/* 0, or an errno: EAGAIN asks for another try on the same connection. EPROTO: the arbiter is of
 * another version. */
static int register_card(int sock, struct qg_card *card)
{
    struct qg_register ask = {.job_id = qg_info.grant.job_id, .mem_used = qg_memory_used(card)};
    struct qg_registered answer = {.status = EPROTO};
    int fds[QG_PAGE_FDS] = {-1, -1, -1}, grant = qg_grant_descriptor();
    qg_msg_head_init(&ask.head, QG_MSG_REGISTER, sizeof(ask));
    memcpy(ask.uuid, card->grant->uuid, sizeof(ask.uuid));
    int count = qg_msg_send(sock, &ask, sizeof(ask), &grant, grant >= 0) == 0 ? QG_UNASKED : -1;
    bool late = false;
    while (count == QG_UNASKED && !(late = !qg_wait_readable(sock, ANSWER_MS)))
        count = qg_arbiter_answer(sock, &answer, fds);
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
        __atomic_store_n(&reg.refused[card - qg_cards], 0, __ATOMIC_RELEASE);
    return status;
}

static void nap_ms(long ms)
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
        count += reg.registered[i];
    return count;
}

/* Those that are not yet. 0 when every visible card is registered on this connection; else EAGAIN
 * if one is to ask again soon, or why the first is not. Such a card leaves the others in peace:
 * their work and their memory are as governed as ever. */
static int register_all(int sock)
{
    int why = 0;
    for (unsigned i = 0; i < qg_info.grant.ncards; i++) {
        if (!qg_cards[i].visible || reg.registered[i])
            continue;
        int status = register_card(sock, &qg_cards[i]);
        if (is_over(status))
            return status;
        reg.registered[i] = status == 0;
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
        __atomic_store_n(&reg.last, EAGAIN, __ATOMIC_RELEASE);
        nap_ms(RETRY_MS);
        if (!qg_same_file(sock, reg.dev, reg.ino))
            return ENOTCONN;
    }
    return status;
}

static int retry_ms(void)
{
    return __atomic_load_n(&reg.last, __ATOMIC_RELAXED) == EAGAIN ? RETRY_MS : REFUSED_MS;
}

/* Cards that were refused, asked for again. False: the connection is over. */
static bool again(int sock)
{
    static uint64_t asked_ns;
    uint64_t now = qg_now_ns();
    if (!__atomic_load_n(&reg.last, __ATOMIC_RELAXED) ||
        now - asked_ns < (uint64_t)retry_ms() * 1000000u)
        return true;
    asked_ns = now;
    unsigned before = registered();
    int status = register_all(sock);
    __atomic_store_n(&reg.last, status, __ATOMIC_RELEASE);
    if (registered() > before)
        qg_rm_connected(sock, reg.dev, reg.ino); /* its channel groups are told */
    return !is_over(status);
}

/* ---- the helper thread ---- */

static void first_round_over(void)
{
    __atomic_store_n(&reg.attempted, true, __ATOMIC_SEQ_CST);
    changed();
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

/* A card that this arbiter refuses is not registered anew all the time, though old pages of it may
 * beat: again() asks. */
static bool given_up_is_back(void)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++)
        if (reg.registered[i] && qg_gate_arbiter_back(&qg_cards[i]))
            return true;
    return false;
}

/* Until the arbiter hangs up, a descriptor is lost, or an arbiter that we had given up is back:
 * then all begins anew. What the arbiter sends unasked is about channel groups. */
static void stand_by(int sock)
{
    union {
        struct qg_act act;
        char bytes[256];
    } message;
    for (;;) {
        bool readable = qg_wait_readable(sock, retry_ms() < LOOK_MS ? retry_ms() : LOOK_MS);
        qg_waiters_reap();
        qg_shares_look();
        qg_rm_look();
        if (!qg_same_file(sock, reg.dev, reg.ino) || !doorbells_are_ours() || given_up_is_back() ||
            __atomic_exchange_n(&reg.ring, 0, __ATOMIC_SEQ_CST) || !again(sock))
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
        __atomic_store_n(&reg.unreached, sock < 0 ? -sock : 0, __ATOMIC_RELEASE);
        memset(reg.registered, 0, sizeof(reg.registered));
        if (sock >= 0 && fstat(sock, &st) == 0) {
            reg.dev = st.st_dev;
            reg.ino = st.st_ino;
            reg.sock = sock;
            status = first_round(sock);
        }
        bool done = status == 0 || (!is_over(status) && registered());
        __atomic_store_n(&reg.last, status, __ATOMIC_RELEASE);
        __atomic_store_n(&reg.connected, done, __ATOMIC_RELEASE);
        first_round_over();
        if (done) {
            qg_rm_connected(sock, reg.dev, reg.ino);
            stand_by(sock);
            qg_rm_disconnected();
        }
        __atomic_store_n(&reg.connected, false, __ATOMIC_RELEASE);
        if (sock >= 0 && qg_same_file(sock, reg.dev, reg.ino))
            close(sock);
        reg.sock = -1;
        nap_ms(done                                                          ? 1
               : status == ENOTCONN || (is_over(status) && status != EPROTO) ? RETRY_MS
                                                                             : REFUSED_MS);
    }
    return NULL;
}

void qg_register_start(void)
{
    if (__atomic_load_n(&reg.running, __ATOMIC_ACQUIRE))
        return;
    reg.started_ns = qg_now_ns();
    if (!__atomic_exchange_n(&reg.running, true, __ATOMIC_ACQ_REL) && !qg_thread_start(helper))
        __atomic_store_n(&reg.running, false, __ATOMIC_RELEASE);
}

void qg_register_first(void)
{
    while (__atomic_load_n(&reg.running, __ATOMIC_ACQUIRE)) {
        uint32_t seen = __atomic_load_n(&reg.changed, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&reg.attempted, __ATOMIC_SEQ_CST) ||
            !wait_change(seen, reg.started_ns + FIRST_WAIT_NS))
            break;
    }
}

const char *qg_register_refusal(struct qg_card *card)
{
    return __atomic_load_n(&reg.refused[card - qg_cards], __ATOMIC_ACQUIRE) ? reg.why : NULL;
}

/* Nobody said yes, and nobody said no. */
static const char *unanswered(void)
{
    if (!__atomic_load_n(&reg.running, __ATOMIC_ACQUIRE))
        return "this process could not start the thread that asks for it";
    switch (__atomic_load_n(&reg.unreached, __ATOMIC_ACQUIRE)) {
    case 0:
        break;
    case ENOENT:
        return "it does not answer, since its socket is not there";
    case EPERM:
        return "who answers at its socket is not root";
    case ECONNREFUSED:
        return "it does not answer, since it is not running";
    default:
        return "it does not answer, since its socket cannot be used";
    }
    switch (__atomic_load_n(&reg.last, __ATOMIC_ACQUIRE)) {
    case EAGAIN:
        return "it was not told yet which jobs there are; is qgpud running";
    case EBADMSG:
        return "its answer cannot be believed";
    case EPROTO:
        return "it speaks another version of the protocol";
    default:
        return "it does not answer";
    }
}

/* Where the grant is one without Slurm and is over: nobody ends the processes that it left. */
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

void qg_register_say_shut(struct qg_card *card)
{
    static bool said;
    const char *why = qg_register_refusal(card);
    if (__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        return;
    qg_say("this process waits for its turn on the card, because the arbiter of this node did not "
           "register it at %s/%s: %s. %s",
           qg_info.grant.run_dir, QG_SOCK_REGISTER, why ? why : unanswered(),
           advice(why ? reg.refused[card - qg_cards] : 0));
}

/* As at a closed gate: what nobody registers has no limits, and does not work. */
void qg_register_wait(struct qg_card *card)
{
    uint64_t since = qg_now_ns();
    while (!qg_pages_of(card)) {
        uint32_t seen = __atomic_load_n(&reg.changed, __ATOMIC_SEQ_CST);
        if (qg_pages_of(card))
            break;
        qg_register_start(); /* there may be room for one more thread now */
        uint64_t now = qg_now_ns();
        if (qg_register_refusal(card) || now - since > SAY_AFTER_NS)
            qg_register_say_shut(card);
        wait_change(seen, now + REFUSED_MS * 1000000ull);
    }
}

const char *qg_register_for_memory(struct qg_card *card)
{
    while (__atomic_load_n(&reg.running, __ATOMIC_ACQUIRE)) {
        uint32_t seen = __atomic_load_n(&reg.changed, __ATOMIC_SEQ_CST);
        if (qg_pages_of(card))
            break;
        const char *why = qg_register_refusal(card);
        if (why)
            return why;
        if (!wait_change(seen, reg.started_ns + START_LEASE_NS))
            break;
    }
    return qg_pages_of(card) ? NULL : unanswered();
}

/* Our doorbell was closed by the program: the helper registers again at its next look, which rings
 * by itself. */
void qg_ring_by_helper(struct qg_card *card)
{
    (void)card;
    __atomic_store_n(&reg.ring, 1, __ATOMIC_SEQ_CST);
}

void qg_register_after_fork(void)
{
    if (reg.running && qg_same_file(reg.sock, reg.dev, reg.ino))
        close(reg.sock);
    for (unsigned i = 0; i < QG_MAX_CARDS; i++) {
        struct qg_pages *pages = qg_pages_of(&qg_cards[i]);
        if (pages && qg_same_file(pages->doorbell, pages->doorbell_dev, pages->doorbell_ino))
            close(pages->doorbell);
    }
    memset(&reg, 0, sizeof(reg));
    reg.sock = -1;
}
