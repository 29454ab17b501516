/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption, the main thread's part. It starts workers and abandons those that the driver
 * does not answer. At the arbiter's end it lets them continue all groups. It closes descriptors and
 * logs failures.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "fds/fds.h"
#include "hw/hw.h"
#include "hw/hw_parts.h"
#include "model/model.h"
#include "policy/policy.h"
#include "qg_time.h"

#define LINES_PER_SECOND 20u /* of failures, in the log; chosen, not measured */
/* The arbiter's end waits 2 s at most for groups to be continued: one hanging call, and as much
 * again for all others. Chosen, not measured. */
#define FINISH_NS (2000 * QP_MS)

/* Priority 1: above ordinary programs, so that a loaded node does not delay stops. Below all other
 * real-time threads: a call of the driver may keep a processor busy while it waits. */
static void set_priority(const struct arbiter *a, pthread_t thread)
{
    struct sched_param param = {.sched_priority = 1};
    if (a->rt_priority > 0)
        pthread_setschedparam(thread, SCHED_FIFO, &param);
}

bool hw_worker_start(struct arbiter *a, struct hw *hw)
{
    struct hw_thread *self = malloc(sizeof(*self));
    pthread_attr_t attr;
    sigset_t all, old;
    if (!self)
        return false;
    *self = (struct hw_thread){.hw = hw, .gen = ++hw->gen};
    pthread_attr_init(&attr);
    /* 256 KiB: several struct qg_groups lie on its stack; chosen, not measured */
    pthread_attr_setstacksize(&attr, 256 * 1024);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    hw->running = pthread_create(&hw->thread, &attr, hw_worker, self) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (hw->running)
        set_priority(a, hw->thread);
    else
        free(self);
    return hw->running;
}

static void destroy(const struct arbiter *a, struct hw_record *r)
{
    if (r->fd >= 0)
        close_helper_close(r->fd);
    if (r->sock >= 0)
        broker_close(a, r->uid, r->sock);
    free(r);
}

void hw_reap(struct hw *hw)
{
    pthread_mutex_lock(&hw->lock);
    struct hw_record *r = hw->garbage;
    hw->garbage = NULL;
    pthread_mutex_unlock(&hw->lock);
    while (r) {
        struct hw_record *next = r->next;
        destroy(hw->card->arbiter, r);
        r = next;
    }
}

/* Limits the lines, so that users cannot fill the disk with failures. */
static bool may_log(void)
{
    static uint64_t second;
    static uint32_t lines;
    uint64_t now = qg_now_ns() / 1000000000ull;
    if (now != second)
        lines = 0;
    second = now;
    return lines++ < LINES_PER_SECOND;
}

static void log_failures(const struct arbiter *a, struct hw *hw)
{
    for (uint32_t i = 0; i < QP_MAX_TENANTS; i++) {
        struct hw_tenant *ht = &hw->tenant[i];
        if (!ht->unlogged)
            continue;
        ht->unlogged = false;
        if (!may_log())
            continue;
        ar_log(a, 1,
               "card %u: job %llu is not stopped by hardware any more, its gate alone holds it: %s "
               "(status 0x%x)",
               hw->card->number, (unsigned long long)ht->job_id, ht->why, ht->last_status);
    }
}

/* The worker's call of the driver hangs. Another worker is started for the other tenants; this
 * tenant is stopped by its gate alone. */
static void abandon_worker(struct arbiter *a, struct hw *hw)
{
    struct hw_record *r = hw->current;
    hw->current = NULL;
    hw->since_ns = 0;
    hw->hung++;
    if (r->stage != HW_GONE)
        hw_ask_undo(hw, r); /* the driver may still answer the process itself */
    for (struct hw_record *o = hw->records; o; o = o->next) {
        if (o->former != r)
            continue;
        if ((o->former = r->former))
            o->former->refs++;
        hw_record_put(hw, r);
    }
    if (r->stage != HW_GONE) {
        hw_record_unlink(hw, r);
        hw_record_put(hw, r);
    }
    pthread_detach(hw->thread);
    if (a->rt_priority > 0)
        pthread_setschedparam(hw->thread, SCHED_OTHER, &(struct sched_param){0});
    hw->running = false;
    hw->gen++; /* makes the hung worker end when its call returns */
    /* Otherwise its job has ended, and this entry is another tenant's. */
    if (hw->tenant[r->tenant].job_id == r->reported.job_id) {
        hw->tenant[r->tenant].hangs++;
        hw_fail(hw, r->tenant, RM_TIMEOUT,
                "the driver did not answer a control call within a second");
    }
    if (hw->hung < HW_MAX_HUNG && hw_worker_start(a, hw))
        return;
    HW_STORE(hw->on, 0);
    ar_log(a, 0, "card %u: hardware preemption is off: %u control calls of the driver hang",
           hw->card->number, hw->hung);
}

/* Without a worker, the processes are asked to continue their groups. The records are removed, so
 * that their descriptors do not keep memory on the card. */
static void drop_records(struct hw *hw)
{
    while (hw->records) {
        struct hw_record *r = hw->records;
        hw_ask_undo(hw, r);
        if (r->acknowledge)
            hw_acknowledge(r->sock, hw->card->uuid, r->reported.client);
        hw_record_unlink(hw, r);
        hw_record_put(hw, r);
        hw_review_tenant(hw, r->tenant);
    }
}

void hw_attend(struct arbiter *a, struct key *key)
{
    struct hw *hw = (struct hw *)key;
    uint64_t count;
    while (read(hw->notify_fd, &count, sizeof(count)) > 0 ||
           read(hw->timer_fd, &count, sizeof(count)) > 0)
        continue;
    pthread_mutex_lock(&hw->lock);
    if (hw->current && hw->since_ns && qg_now_ns() - hw->since_ns >= HW_LIMIT_NS)
        abandon_worker(a, hw);
    if (!hw->running)
        drop_records(hw);
    log_failures(a, hw);
    pthread_mutex_unlock(&hw->lock);
    hw_reap(hw);
}

/* Continues all groups, for FINISH_NS at most: what is left the shims continue when their
 * connections end. */
void hw_finish(struct arbiter *a)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t at = (uint64_t)until.tv_sec * 1000000000ull + (uint64_t)until.tv_nsec + FINISH_NS;
    until = (struct timespec){.tv_sec = (time_t)(at / 1000000000ull),
                              .tv_nsec = (long)(at % 1000000000ull)};
    for (uint32_t i = 0; i < a->ncards; i++) {
        struct hw *hw = a->cards[i]->hw;
        if (!hw)
            continue;
        pthread_mutex_lock(&hw->lock);
        hw_forget_all(hw);
        hw->quit = true;
        pthread_mutex_unlock(&hw->lock);
        hw_ring(hw);
    }
    for (uint32_t i = 0; i < a->ncards; i++) {
        struct hw *hw = a->cards[i]->hw;
        if (!hw || !hw->running)
            continue;
        if (pthread_timedjoin_np(hw->thread, NULL, &until) != 0)
            ar_log(a, 1,
                   "card %u: the driver does not answer; groups that are stopped are left to their "
                   "processes",
                   i);
        hw_reap(hw);
    }
}
