/* SPDX-License-Identifier: Apache-2.0
 *
 * The teller: a second helper thread, started if the arbiter asks for it. It reports this process's
 * channel groups, stops and continues them, and continues all when the arbiter is gone.
 */
#include "groups/rm_report.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "qg_msg.h"
#include "qg_rm.h"
#include "base/thread.h"

#define MAIL        32u /* orders that wait; more than an arbiter has under way at once */
#define TOLD        64u /* devices of clients that the arbiter knows */
#define BURST       40u /* messages at once, and per second: below what the arbiter hangs up at */
#define PER_SECOND  150u
#define RESERVED    8u /* of the burst: for contexts that are about to go */
#define HUNG_FACTOR 3u /* as gate.c */
#define NS          1000000000ull
#define ANSWERS     20   /* times that an answer is tried, when there is no budget left */
#define ATTEMPTS    100u /* at continuing everything, one second's worth */
#define GATHER_NS   2000000u
#define MAKING_NS   999000000u

struct qg_teller qg_teller;

/* of the next; never taken by a thread of the program */
static pthread_mutex_t post = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int sock; /* -1: no connection that wants to know */
    dev_t dev;
    ino_t ino;
    unsigned connection; /* rises with each connection and with each end of one */
    struct qg_act mail[MAIL];
    unsigned first, count;
    bool lease_over, stale; /* stale: continued although the arbiter believes them stopped */
} line = {.sock = -1};

static struct told {                                       /* the teller's own */
    uint32_t client, device, client_serial, device_serial; /* serial 0: not in use */
    int card;
    uint64_t hash;
    bool groups, here;                /* it has some; it was seen in this round */
    enum { STAYS, LEAVES, LEFT } way; /* the arbiter leaves it alone when it has said so */
} told[TOLD];
static unsigned connection;        /* that told[] is about */
static bool stopped[QG_MAX_CARDS]; /* by ourselves */
static unsigned attempts;          /* left at continuing everything */
static double budget;              /* messages that may be sent now */
static uint64_t budget_ns;
/* this round left something undone for want of budget, or of room in the socket */
static bool again;

void qg_rm_wake(uint32_t *word)
{
    __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void qg_rm_sleep(uint32_t *word, uint32_t seen, uint64_t ns)
{
    struct timespec limit = {(time_t)(ns / NS), (long)(ns % NS)};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, ns ? &limit : NULL, NULL, 0);
}

uint32_t qg_rm_ask(void)
{
    uint32_t asked = __atomic_add_fetch(&qg_teller.asked, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &qg_teller.asked, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    qg_rm_wake(&qg_teller.work);
    return asked;
}

void qg_rm_changed(void)
{
    uint32_t now = qg_rm_changes();
    if (__atomic_load_n(&qg_teller.running, __ATOMIC_ACQUIRE) &&
        __atomic_exchange_n(&qg_teller.noticed, now, __ATOMIC_SEQ_CST) != now)
        qg_rm_wake(&qg_teller.work);
}

static int card_of_uuid(const char *uuid)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++)
        if (!strncmp(qg_cards[i].grant->uuid, uuid, QG_UUID_LEN))
            return (int)i;
    return -1;
}

static bool leaving(int card)
{
    return __atomic_load_n(&qg_teller.exiting, __ATOMIC_SEQ_CST) ||
           __atomic_load_n(&qg_teller.leaving[card], __ATOMIC_SEQ_CST);
}

static void obey(struct qg_act *order)
{
    int card = card_of_uuid(order->uuid);
    order->count = 0;
    if (card < 0 || (order->action != QG_ACT_CONTINUE && leaving(card))) {
        order->status = RM_BAD_STATE;
        return;
    }
    if (order->action == QG_ACT_STOP)
        stopped[card] = true;
    order->status = qg_rm_act_on_card(card, order, &order->count);
    if (order->action == QG_ACT_STOP && order->status)
        qg_rm_continue(card); /* never half of it */
    if (order->action == QG_ACT_CONTINUE || (order->action == QG_ACT_STOP && order->status))
        stopped[card] = false;
}

/* ---- the connection ---- */

static bool still_ours(void)
{
    struct stat st;
    return line.sock >= 0 && fstat(line.sock, &st) == 0 && st.st_dev == line.dev &&
           st.st_ino == line.ino;
}

static bool may_send(bool urgent)
{
    uint64_t now = qg_now_ns();
    budget += (double)(now - budget_ns) * PER_SECOND / NS;
    budget = budget > BURST ? BURST : budget;
    budget_ns = now;
    return budget >= (urgent ? 1 : RESERVED + 1);
}

static bool send_message(const void *message, size_t size, int fd, bool urgent)
{
    bool sent = false;
    if (!may_send(urgent)) {
        again = true;
        return false;
    }
    pthread_mutex_lock(&post);
    if (line.connection == connection && still_ours())
        sent = qg_msg_send(line.sock, message, size, &fd, fd >= 0) == 0;
    pthread_mutex_unlock(&post);
    budget -= sent;
    again |= !sent;
    return sent;
}

static bool next_order(struct qg_act *order)
{
    pthread_mutex_lock(&post);
    bool some = line.count > 0;
    if (some) {
        *order = line.mail[line.first];
        line.first = (line.first + 1) % MAIL;
        line.count--;
    }
    pthread_mutex_unlock(&post);
    return some;
}

/* "I have continued what this client has, and leave it alone." If it could not, we do it. */
static void has_left(const struct qg_act *said)
{
    for (unsigned i = 0; i < TOLD; i++)
        if (told[i].device_serial && told[i].client == (uint32_t)said->value &&
            told[i].way == LEAVES && told[i].card == card_of_uuid(said->uuid)) {
            if (said->status)
                qg_rm_continue(told[i].card);
            told[i].way = LEFT;
            return;
        }
}

/* All of a card as if nothing had been told. */
static void forget_told(int card)
{
    for (unsigned i = 0; i < TOLD; i++)
        if (told[i].device_serial && told[i].card == card) {
            told[i].hash = 0;
            told[i].way = STAYS;
        }
}

static void take_orders(void)
{
    struct qg_act order;
    while (next_order(&order)) {
        if (order.action == QG_ACT_TELL)
            forget_told(card_of_uuid(order.uuid));
        else if (!order.serial && order.action == QG_ACT_CONTINUE)
            has_left(&order);
        if (!order.serial || order.action == QG_ACT_TELL)
            continue;
        obey(&order);
        qg_msg_head_init(&order.head, QG_MSG_ACTED, sizeof(order));
        for (int i = 0; i < ANSWERS && !send_message(&order, sizeof(order), -1, true); i++)
            nanosleep(&(struct timespec){.tv_nsec = (long)(NS / PER_SECOND)}, NULL);
    }
}

/* ---- telling ---- */

static uint64_t hash_of(const void *data, size_t size)
{
    const unsigned char *at = data;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

/* Which of our cards it is, asked once; and the slice that each group has before anybody changes
 * it. */
static void ask_driver(struct qg_rm_view *view)
{
    uint8_t uuid[16];
    bool ask_card = view->card == QG_RM_CARD_UNKNOWN && view->told.subdevice && view->told.ngroups;
    bool ask_slice = false;
    for (uint32_t i = 0; i < view->told.ngroups; i++)
        ask_slice |= !view->slice_us[i];
    int fd = ask_card || (ask_slice && view->card >= 0) ? qg_rm_borrow(view) : -1;
    if (fd < 0)
        return;
    uint32_t status =
        ask_card ? qg_rm_uuid(fd, view->told.client, view->told.subdevice, uuid) : RM_OK;
    if (ask_card && status < QG_RM_NO_CALL) {
        view->card = QG_RM_CARD_FOREIGN;
        for (unsigned i = 0; status == RM_OK && i < qg_info.grant.ncards; i++)
            if (qg_rm_same_uuid(qg_cards[i].grant->uuid, uuid))
                view->card = (int)i;
        qg_rm_set_card(view, view->card);
    }
    for (uint32_t i = 0; view->card >= 0 && i < view->told.ngroups; i++) {
        struct rm_timeslice now = {0};
        uint32_t group = view->told.groups[i].handle;
        if (!view->slice_us[i] &&
            qg_rm_control(fd, view->told.client, group, RM_GROUP_GET_TIMESLICE, &now,
                          sizeof(now)) == RM_OK &&
            now.us)
            qg_rm_set_slice(view, i, now.us);
    }
    close(fd);
}

static struct told *entry_of(const struct qg_rm_view *view)
{
    struct told *unused = NULL;
    for (unsigned i = 0; i < TOLD; i++) {
        if (told[i].device_serial == view->device_serial &&
            told[i].client_serial == view->client_serial)
            return &told[i];
        if (!told[i].device_serial && !unused)
            unused = &told[i];
    }
    if (unused)
        *unused = (struct told){.client = view->told.client,
                                .device = view->told.device,
                                .card = view->card,
                                .client_serial = view->client_serial,
                                .device_serial = view->device_serial};
    return unused;
}

static void head_of(struct qg_groups *message, int card)
{
    qg_msg_head_init(&message->head, QG_MSG_GROUPS, sizeof(*message));
    message->job_id = qg_info.grant.job_id;
    memcpy(message->uuid, qg_cards[card].grant->uuid, sizeof(message->uuid));
}

static void tell_one(struct qg_rm_view *view)
{
    struct told *entry;
    ask_driver(view);
    if (view->card < 0 || !(entry = entry_of(view)))
        return; /* a card that was not granted; or more devices than anybody has */
    struct qg_groups *message = &view->told;
    entry->here = true;
    head_of(message, view->card);
    bool goes = leaving(view->card);
    int fd = qg_rm_borrow(view);
    if (fd < 0) {
        qg_rm_unreachable(view);
        message->ngroups = message->nchannels = 0;
    }
    if (goes)
        message->flags |= QG_GROUPS_LEAVE;
    uint64_t hash = hash_of(message, sizeof(*message));
    /* What was left alone stays so until it is told anew, whatever becomes of it meanwhile. */
    bool nothing = goes && entry->way != STAYS ? true : !message->ngroups && !entry->groups;
    if (!nothing && entry->hash != hash && send_message(message, sizeof(*message), fd, goes)) {
        entry->hash = hash;
        entry->groups = message->ngroups > 0;
        entry->way = goes && entry->groups ? LEAVES : STAYS;
    }
    if (fd >= 0)
        close(fd);
}

/* A device that is gone, with all its groups. */
static void tell_end(struct told *entry)
{
    struct qg_groups message = {.client = entry->client, .device = entry->device};
    head_of(&message, entry->card);
    if (!entry->groups || send_message(&message, sizeof(message), -1, true))
        memset(entry, 0, sizeof(*entry));
}

static void tell_all(void)
{
    struct qg_rm_view view;
    for (unsigned i = 0; i < TOLD; i++)
        told[i].here = false;
    for (unsigned at = 0; qg_rm_next(&at, &view);)
        tell_one(&view);
    for (unsigned i = 0; i < TOLD; i++)
        if (told[i].device_serial && !told[i].here)
            tell_end(&told[i]);
}

/* ---- rounds ---- */

static void publish(void)
{
    unsigned waits[QG_MAX_CARDS] = {0}, known[QG_MAX_CARDS] = {0};
    for (unsigned i = 0; i < TOLD; i++)
        if (told[i].device_serial && told[i].groups) {
            known[told[i].card]++;
            waits[told[i].card] += told[i].way != LEFT;
        }
    for (unsigned i = 0; i < QG_MAX_CARDS; i++) {
        __atomic_store_n(&qg_teller.told[i], known[i], __ATOMIC_SEQ_CST);
        __atomic_store_n(&qg_teller.unleft[i], waits[i], __ATOMIC_SEQ_CST);
    }
}

/* All that an arbiter may have done is undone when it cannot undo it any more. */
static bool look_at_line(void)
{
    pthread_mutex_lock(&post);
    bool other = line.connection != connection, over = line.lease_over, up = line.sock >= 0;
    connection = line.connection;
    line.lease_over = false;
    pthread_mutex_unlock(&post);
    if (other || over)
        attempts = ATTEMPTS;
    if (attempts)
        /* without an arbiter nobody else does it later */
        attempts = qg_rm_continue(-1) || up ? 0 : attempts - 1;
    again |= attempts > 0;
    if (other) {
        memset(told, 0, sizeof(told));
        memset(stopped, 0, sizeof(stopped));
    }
    for (unsigned i = 0; over && i < TOLD; i++)
        told[i].hash = 0;
    return up;
}

static void one_round(void)
{
    uint32_t asked = __atomic_load_n(&qg_teller.asked, __ATOMIC_SEQ_CST), changes = qg_rm_changes();
    again = false;
    bool up = look_at_line();
    take_orders();
    for (int i = 0; i < (int)QG_MAX_CARDS; i++)
        if (stopped[i] && leaving(i)) {
            qg_rm_continue(i);
            stopped[i] = false;
        }
    if (up)
        tell_all();
    publish();
    if (!again || !up)
        __atomic_store_n(&qg_teller.seen, changes, __ATOMIC_SEQ_CST);
    __atomic_store_n(&qg_teller.answered, asked, __ATOMIC_SEQ_CST);
    qg_rm_wake(&qg_teller.done);
}

/* A context is made by many calls, and who made it asks: until then there is no hurry. */
static void gather(uint32_t asked)
{
    if (asked != __atomic_load_n(&qg_teller.answered, __ATOMIC_SEQ_CST) ||
        qg_rm_changes() == __atomic_load_n(&qg_teller.seen, __ATOMIC_SEQ_CST))
        return;
    bool making = __atomic_load_n(&qg_teller.making, __ATOMIC_SEQ_CST);
    qg_rm_sleep(&qg_teller.asked, asked, making ? MAKING_NS : GATHER_NS);
}

static void *teller(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "qgpu-groups");
    qg_depth = 1;
    for (;;) {
        uint32_t work = __atomic_load_n(&qg_teller.work, __ATOMIC_SEQ_CST);
        uint32_t asked = __atomic_load_n(&qg_teller.asked, __ATOMIC_SEQ_CST);
        gather(asked);
        one_round();
        qg_rm_sleep(&qg_teller.work, work, again ? NS / PER_SECOND : 0);
    }
    return NULL;
}

/* ---- what register.c tells ---- */

static const struct qg_gate_page *some_gate(void)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++) {
        struct qg_pages *pages = qg_pages_of(&qg_cards[i]);
        if (pages)
            return pages->gate;
    }
    return NULL;
}

void qg_rm_connected(int sock, dev_t dev, ino_t ino)
{
    if (!some_gate())
        return; /* nothing of this process is registered there */
    pthread_mutex_lock(&post);
    line.sock = sock;
    line.dev = dev;
    line.ino = ino;
    line.connection++;
    line.count = 0;
    line.lease_over = line.stale = false;
    pthread_mutex_unlock(&post);
    if (!__atomic_load_n(&qg_teller.running, __ATOMIC_ACQUIRE))
        __atomic_store_n(&qg_teller.running, qg_thread_start(teller), __ATOMIC_RELEASE);
    qg_rm_ask();
}

void qg_rm_disconnected(void)
{
    pthread_mutex_lock(&post);
    bool was = line.sock >= 0;
    line.sock = -1;
    line.connection += was;
    line.count = 0;
    pthread_mutex_unlock(&post);
    if (was)
        qg_rm_ask();
}

void qg_rm_received(const void *message, size_t size)
{
    struct qg_act order;
    if (!qg_msg_is(message, size, QG_MSG_ACT, sizeof(order)))
        return;
    memcpy(&order, message, sizeof(order));
    if (!qg_terminated(order.uuid, sizeof(order.uuid)))
        return;
    pthread_mutex_lock(&post);
    if (line.sock >= 0 && line.count < MAIL)
        /* else it goes unanswered, and the arbiter gives up */
        line.mail[(line.first + line.count++) % MAIL] = order;
    pthread_mutex_unlock(&post);
    qg_rm_ask();
}

void qg_rm_look(void)
{
    const struct qg_gate_page *gate = some_gate();
    if (!gate || !__atomic_load_n(&qg_teller.running, __ATOMIC_ACQUIRE))
        return;
    uint64_t beat = __atomic_load_n(&gate->heartbeat_ns, __ATOMIC_ACQUIRE), now = qg_now_ns();
    uint64_t lease = (uint64_t)__atomic_load_n(&gate->lease_ms, __ATOMIC_RELAXED) * 1000000u;
    bool over = now > beat + HUNG_FACTOR * lease, back = now < beat + lease;
    pthread_mutex_lock(&post);
    bool news = line.sock >= 0 && ((over && !line.stale) || (back && line.stale));
    /* when it is back all is told again, and what it wants stopped is stopped again */
    line.lease_over |= news;
    line.stale = news ? over : line.stale;
    pthread_mutex_unlock(&post);
    if (news)
        qg_rm_ask();
}

void qg_rm_after_fork(void)
{
    pthread_mutex_init(&post, NULL);
    memset(&line, 0, sizeof(line));
    line.sock = -1;
    memset(&qg_teller, 0, sizeof(qg_teller));
    memset(told, 0, sizeof(told));
    memset(stopped, 0, sizeof(stopped));
    connection = 0;
    attempts = 0;
    budget = 0;
    budget_ns = 0;
}
