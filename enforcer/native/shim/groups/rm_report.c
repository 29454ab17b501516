/* SPDX-License-Identifier: Apache-2.0
 *
 * The reporter: a second helper thread, started if the arbiter asks for it. It reports this
 * process's channel groups, stops and continues them. It continues all of them when the arbiter is
 * gone.
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
#include "groups/rm_limits.h"

struct qg_reporter qg_reporter;

/* guards `line`; never taken by a thread of the program */
static pthread_mutex_t line_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int sock; /* -1: no connection that wants reports */
    dev_t dev;
    ino_t ino;
    unsigned connection; /* rises with each connection and with each end of one */
    struct qg_act orders[MAX_ORDERS];
    unsigned first, count;
    bool lease_over, stale; /* stale: continued although the arbiter believes them stopped */
} line = {.sock = -1};

static struct reported {                                   /* used by the reporter alone */
    uint32_t client, device, client_serial, device_serial; /* serial 0: not in use */
    int card;
    uint64_t hash;
    bool groups, here;                /* it has some; it was seen in this round */
    enum { STAYS, LEAVES, LEFT } way; /* the arbiter leaves it alone when it has said so */
} reported[REPORTED_DEVICES];
static unsigned connection;        /* number of the connection that reported[] is about */
static bool stopped[QG_MAX_CARDS]; /* by ourselves */
static unsigned attempts;          /* attempts left to continue all groups */
static double budget;              /* messages that may be sent now */
static uint64_t budget_ns;
/* this round left work undone, for lack of budget or of room in the socket */
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
    uint32_t asked = __atomic_add_fetch(&qg_reporter.asked, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &qg_reporter.asked, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    qg_rm_wake(&qg_reporter.work);
    return asked;
}

void qg_rm_changed(void)
{
    uint32_t now = qg_rm_changes();
    if (__atomic_load_n(&qg_reporter.running, __ATOMIC_ACQUIRE) &&
        __atomic_exchange_n(&qg_reporter.noticed, now, __ATOMIC_SEQ_CST) != now)
        qg_rm_wake(&qg_reporter.work);
}

static int card_of_uuid(const char *uuid)
{
    for (unsigned i = 0; i < qg_info.grant.ncards; i++)
        if (!strncmp(qg_card_name(qg_cards[i].grant), uuid, QG_UUID_LEN))
            return (int)i;
    return -1;
}

static bool leaving(int card)
{
    return __atomic_load_n(&qg_reporter.exiting, __ATOMIC_SEQ_CST) ||
           __atomic_load_n(&qg_reporter.leaving[card], __ATOMIC_SEQ_CST);
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
    pthread_mutex_lock(&line_lock);
    if (line.connection == connection && still_ours())
        sent = qg_msg_send(line.sock, message, size, &fd, fd >= 0) == 0;
    pthread_mutex_unlock(&line_lock);
    budget -= sent;
    again |= !sent;
    return sent;
}

static bool next_order(struct qg_act *order)
{
    pthread_mutex_lock(&line_lock);
    bool some = line.count > 0;
    if (some) {
        *order = line.orders[line.first];
        line.first = (line.first + 1) % MAX_ORDERS;
        line.count--;
    }
    pthread_mutex_unlock(&line_lock);
    return some;
}

/* The arbiter says that it continued this client's groups and leaves it alone. If it failed, the
 * shim continues them. */
static void left_alone(const struct qg_act *confirmed)
{
    for (unsigned i = 0; i < REPORTED_DEVICES; i++)
        if (reported[i].device_serial && reported[i].client == (uint32_t)confirmed->value &&
            reported[i].way == LEAVES && reported[i].card == card_of_uuid(confirmed->uuid)) {
            if (confirmed->status)
                qg_rm_continue(reported[i].card);
            reported[i].way = LEFT;
            return;
        }
}

/* Forgets all reports of a card. */
static void forget_reported(int card)
{
    for (unsigned i = 0; i < REPORTED_DEVICES; i++)
        if (reported[i].device_serial && reported[i].card == card) {
            reported[i].hash = 0;
            reported[i].way = STAYS;
        }
}

static void take_orders(void)
{
    struct qg_act order;
    while (next_order(&order)) {
        if (order.action == QG_ACT_REPORT)
            forget_reported(card_of_uuid(order.uuid));
        else if (!order.serial && order.action == QG_ACT_CONTINUE)
            left_alone(&order);
        if (!order.serial || order.action == QG_ACT_REPORT)
            continue;
        obey(&order);
        qg_msg_head_init(&order.head, QG_MSG_ACTED, sizeof(order));
        for (int i = 0; i < ANSWERS && !send_message(&order, sizeof(order), -1, true); i++)
            nanosleep(&(struct timespec){.tv_nsec = (long)(NS / PER_SECOND)}, NULL);
    }
}

/* ---- reports ---- */

static uint64_t hash_of(const void *data, size_t size)
{
    const unsigned char *at = data;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

/* Asks the driver once which card it is, and which slice each group has before any change. */
static void ask_driver(struct qg_rm_snapshot *snapshot)
{
    uint8_t uuid[16];
    bool ask_card = snapshot->card == QG_RM_CARD_UNKNOWN && snapshot->reported.subdevice &&
                    snapshot->reported.ngroups;
    bool ask_slice = false;
    for (uint32_t i = 0; i < snapshot->reported.ngroups; i++)
        ask_slice |= !snapshot->slice_us[i];
    int fd = ask_card || (ask_slice && snapshot->card >= 0) ? qg_rm_borrow(snapshot) : -1;
    if (fd < 0)
        return;
    uint32_t status =
        ask_card ? qg_rm_uuid(fd, snapshot->reported.client, snapshot->reported.subdevice, uuid)
                 : RM_OK;
    if (ask_card && status < QG_RM_NO_CALL) {
        snapshot->card = QG_RM_CARD_FOREIGN;
        for (unsigned i = 0; status == RM_OK && i < qg_info.grant.ncards; i++)
            /* at home again a process that began elsewhere has its groups on the home card */
            if (qg_rm_same_uuid(qg_cards[i].grant->uuid, uuid) ||
                qg_rm_same_uuid(qg_card_name(qg_cards[i].grant), uuid))
                snapshot->card = (int)i;
        qg_rm_set_card(snapshot, snapshot->card);
    }
    for (uint32_t i = 0; snapshot->card >= 0 && i < snapshot->reported.ngroups; i++) {
        struct rm_timeslice now = {0};
        uint32_t group = snapshot->reported.groups[i].handle;
        if (!snapshot->slice_us[i] &&
            qg_rm_control(fd, snapshot->reported.client, group, RM_GROUP_GET_TIMESLICE, &now,
                          sizeof(now)) == RM_OK &&
            now.us)
            qg_rm_set_slice(snapshot, i, now.us);
    }
    close(fd);
}

static struct reported *entry_of(const struct qg_rm_snapshot *snapshot)
{
    struct reported *unused = NULL;
    for (unsigned i = 0; i < REPORTED_DEVICES; i++) {
        if (reported[i].device_serial == snapshot->device_serial &&
            reported[i].client_serial == snapshot->client_serial)
            return &reported[i];
        if (!reported[i].device_serial && !unused)
            unused = &reported[i];
    }
    if (unused)
        *unused = (struct reported){.client = snapshot->reported.client,
                                    .device = snapshot->reported.device,
                                    .card = snapshot->card,
                                    .client_serial = snapshot->client_serial,
                                    .device_serial = snapshot->device_serial};
    return unused;
}

static void head_of(struct qg_groups *message, int card)
{
    qg_msg_head_init(&message->head, QG_MSG_GROUPS, sizeof(*message));
    message->job_id = qg_info.grant.job_id;
    memcpy(message->uuid, qg_card_name(qg_cards[card].grant), sizeof(message->uuid));
}

static void report_device(struct qg_rm_snapshot *snapshot)
{
    struct reported *entry;
    ask_driver(snapshot);
    if (snapshot->card < 0 || !(entry = entry_of(snapshot)))
        return; /* a card that was not granted, or no room for one more device */
    struct qg_groups *message = &snapshot->reported;
    entry->here = true;
    head_of(message, snapshot->card);
    bool goes = leaving(snapshot->card);
    int fd = qg_rm_borrow(snapshot);
    if (fd < 0) {
        qg_rm_unreachable(snapshot);
        message->ngroups = message->nchannels = 0;
    }
    if (goes)
        message->flags |= QG_GROUPS_LEAVE;
    uint64_t hash = hash_of(message, sizeof(*message));
    /* A device that the arbiter left alone stays so until it is reported anew. */
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
static void report_gone(struct reported *entry)
{
    struct qg_groups message = {.client = entry->client, .device = entry->device};
    head_of(&message, entry->card);
    if (!entry->groups || send_message(&message, sizeof(message), -1, true))
        memset(entry, 0, sizeof(*entry));
}

static void report_all(void)
{
    struct qg_rm_snapshot snapshot;
    for (unsigned i = 0; i < REPORTED_DEVICES; i++)
        reported[i].here = false;
    for (unsigned at = 0; qg_rm_next(&at, &snapshot);)
        report_device(&snapshot);
    for (unsigned i = 0; i < REPORTED_DEVICES; i++)
        if (reported[i].device_serial && !reported[i].here)
            report_gone(&reported[i]);
}

/* ---- rounds ---- */

static void publish(void)
{
    unsigned waits[QG_MAX_CARDS] = {0}, known[QG_MAX_CARDS] = {0};
    for (unsigned i = 0; i < REPORTED_DEVICES; i++)
        if (reported[i].device_serial && reported[i].groups) {
            known[reported[i].card]++;
            waits[reported[i].card] += reported[i].way != LEFT;
        }
    for (unsigned i = 0; i < QG_MAX_CARDS; i++) {
        __atomic_store_n(&qg_reporter.reported[i], known[i], __ATOMIC_SEQ_CST);
        __atomic_store_n(&qg_reporter.not_left[i], waits[i], __ATOMIC_SEQ_CST);
    }
}

/* Undoes all that an arbiter may have done, when that arbiter cannot undo it any more. */
static bool check_line(void)
{
    pthread_mutex_lock(&line_lock);
    bool other = line.connection != connection, over = line.lease_over, up = line.sock >= 0;
    connection = line.connection;
    line.lease_over = false;
    pthread_mutex_unlock(&line_lock);
    if (other || over)
        attempts = ATTEMPTS;
    if (attempts)
        /* without an arbiter no other process does it later */
        attempts = qg_rm_continue(-1) || up ? 0 : attempts - 1;
    again |= attempts > 0;
    if (other) {
        memset(reported, 0, sizeof(reported));
        memset(stopped, 0, sizeof(stopped));
    }
    for (unsigned i = 0; over && i < REPORTED_DEVICES; i++)
        reported[i].hash = 0;
    return up;
}

static void one_round(void)
{
    uint32_t asked = __atomic_load_n(&qg_reporter.asked, __ATOMIC_SEQ_CST),
             changes = qg_rm_changes();
    again = false;
    bool up = check_line();
    take_orders();
    for (int i = 0; i < (int)QG_MAX_CARDS; i++)
        if (stopped[i] && leaving(i)) {
            qg_rm_continue(i);
            stopped[i] = false;
        }
    if (up)
        report_all();
    publish();
    if (!again || !up)
        __atomic_store_n(&qg_reporter.seen, changes, __ATOMIC_SEQ_CST);
    __atomic_store_n(&qg_reporter.answered, asked, __ATOMIC_SEQ_CST);
    qg_rm_wake(&qg_reporter.done);
}

/* A context is made by many calls, and its thread asks for a round at the end. Until then a round
 * can wait. */
static void gather(uint32_t asked)
{
    if (asked != __atomic_load_n(&qg_reporter.answered, __ATOMIC_SEQ_CST) ||
        qg_rm_changes() == __atomic_load_n(&qg_reporter.seen, __ATOMIC_SEQ_CST))
        return;
    bool making = __atomic_load_n(&qg_reporter.making, __ATOMIC_SEQ_CST);
    qg_rm_sleep(&qg_reporter.asked, asked, making ? MAKING_NS : GATHER_NS);
}

static void *reporter(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "qgpu-groups");
    qg_depth = 1;
    for (;;) {
        uint32_t work = __atomic_load_n(&qg_reporter.work, __ATOMIC_SEQ_CST);
        uint32_t asked = __atomic_load_n(&qg_reporter.asked, __ATOMIC_SEQ_CST);
        gather(asked);
        one_round();
        qg_rm_sleep(&qg_reporter.work, work, again ? NS / PER_SECOND : 0);
    }
    return NULL;
}

/* ---- called by register.c ---- */

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
    pthread_mutex_lock(&line_lock);
    line.sock = sock;
    line.dev = dev;
    line.ino = ino;
    line.connection++;
    line.count = 0;
    line.lease_over = line.stale = false;
    pthread_mutex_unlock(&line_lock);
    if (!__atomic_load_n(&qg_reporter.running, __ATOMIC_ACQUIRE))
        __atomic_store_n(&qg_reporter.running, qg_thread_start(reporter), __ATOMIC_RELEASE);
    qg_rm_ask();
}

void qg_rm_disconnected(void)
{
    pthread_mutex_lock(&line_lock);
    bool was = line.sock >= 0;
    line.sock = -1;
    line.connection += was;
    line.count = 0;
    pthread_mutex_unlock(&line_lock);
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
    pthread_mutex_lock(&line_lock);
    if (line.sock >= 0 && line.count < MAX_ORDERS)
        /* otherwise it gets no answer, and the arbiter gives up */
        line.orders[(line.first + line.count++) % MAX_ORDERS] = order;
    pthread_mutex_unlock(&line_lock);
    qg_rm_ask();
}

void qg_rm_poll(void)
{
    const struct qg_gate_page *gate = some_gate();
    if (!gate || !__atomic_load_n(&qg_reporter.running, __ATOMIC_ACQUIRE))
        return;
    uint64_t beat = __atomic_load_n(&gate->heartbeat_ns, __ATOMIC_ACQUIRE), now = qg_now_ns();
    uint64_t lease = (uint64_t)__atomic_load_n(&gate->lease_ms, __ATOMIC_RELAXED) * 1000000u;
    bool over = now > beat + HUNG_FACTOR * lease, back = now < beat + lease;
    pthread_mutex_lock(&line_lock);
    bool news = line.sock >= 0 && ((over && !line.stale) || (back && line.stale));
    /* when it is back all is reported again, and it stops again what it wants stopped */
    line.lease_over |= news;
    line.stale = news ? over : line.stale;
    pthread_mutex_unlock(&line_lock);
    if (news)
        qg_rm_ask();
}

void qg_rm_after_fork(void)
{
    pthread_mutex_init(&line_lock, NULL);
    memset(&line, 0, sizeof(line));
    line.sock = -1;
    memset(&qg_reporter, 0, sizeof(qg_reporter));
    memset(reported, 0, sizeof(reported));
    memset(stopped, 0, sizeof(stopped));
    connection = 0;
    attempts = 0;
    budget = 0;
    budget_ns = 0;
}
