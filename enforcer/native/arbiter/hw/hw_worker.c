/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption: the worker of one card. It compares the state of each record with its
 * tenant's word. It acts on the most urgent difference, then compares again. There is one worker,
 * which does one thing at a time. So a continue cannot overtake the stop before it, and the last
 * word counts. The main thread abandons a worker that hangs in the driver (hw_watch.c). If its call
 * ever returns, the worker undoes what it did and ends.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "hw/hw_parts.h"
#include "model/model.h"
#include "policy/policy.h"
#include "qg_time.h"

/* The most urgent action first. Stops come first, as an online tenant waits for them. */
enum urgency { SHIM_STOP, STOP_GRAPHICS, STOP_REST, LEAVE, CONTINUE, SLICE, DUE, TEST, NOTHING };

/* The caller holds a reference to the record. hw_end() drops it where it does not return. */
void hw_begin(struct hw *hw, struct hw_record *r)
{
    struct itimerspec limit = {.it_value = {.tv_sec = HW_LIMIT_NS / 1000000000ull, .tv_nsec = 1}};
    hw->current = r;
    hw->since_ns = qg_now_ns();
    timerfd_settime(hw->timer_fd, 0, &limit, NULL);
    pthread_mutex_unlock(&hw->lock);
}

void hw_end(struct hw *hw, uint32_t gen, struct hw_record *r)
{
    pthread_mutex_lock(&hw->lock);
    if (hw->gen == gen) {
        hw->current = NULL;
        hw->since_ns = 0;
        return;
    }
    pthread_mutex_unlock(&hw->lock);
    hw_continue(r); /* the tenant counts as failed, so its groups must run */
    pthread_mutex_lock(&hw->lock);
    hw_record_put(hw, r);
    hw->hung--;
    pthread_mutex_unlock(&hw->lock);
    pthread_exit(NULL);
}

static uint64_t word_of(const struct hw *hw, const struct hw_record *r)
{
    return HW_LOAD(hw->tenant[r->tenant].word);
}

/* When a message of this tenant may be checked: `now`, or the time of its next token. */
static uint64_t test_at(struct hw_tenant *ht, uint64_t now)
{
    uint64_t earned = (now - ht->tests_ns) / (1000000000ull / HW_TESTS_PER_SECOND);
    if (earned || !ht->tests_ns) {
        ht->tests = !ht->tests_ns || earned > HW_TESTS - ht->tests ? HW_TESTS
                                                                   : ht->tests + (uint32_t)earned;
        ht->tests_ns = now;
    }
    return ht->tests ? now : ht->tests_ns + 1000000000ull / HW_TESTS_PER_SECOND;
}

static enum urgency usable_urgency(const struct hw *hw, const struct hw_record *r)
{
    uint64_t word = word_of(hw, r);
    bool shim = r->actor == QG_HW_ACTOR_SHIM, free = !shim || !r->serial;
    if (r->applied != word && free) {
        if (!(word & 1))
            return CONTINUE;
        if (shim)
            return SHIM_STOP;
        return r->doing == word && r->done & 1u << HW_GRAPHICS ? STOP_REST : STOP_GRAPHICS;
    }
    if (free && !r->stopped && r->slice_us != hw_slice_of(hw, r->tenant))
        return SLICE;
    return NOTHING;
}

static enum urgency urgency(struct hw *hw, struct hw_record *r, uint64_t now, uint64_t *due)
{
    enum urgency u = NOTHING;
    uint64_t at = QP_NEVER;
    switch (r->stage) {
    case HW_LEAVING:
        return LEAVE;
    case HW_FRESH:
        at = r->step ? now : test_at(&hw->tenant[r->tenant], now);
        if (at <= now)
            return TEST;
        break;
    case HW_USABLE:
        if (HW_LOAD(hw->tenant[r->tenant].escapes) > HW_MAX_ESCAPES)
            return DUE;
        u = usable_urgency(hw, r); /* fall through */
    case HW_ASKED:
        if (r->serial)
            at = r->due_ns;
        break;
    case HW_SUSPECT:
        at = r->due_ns;
        break;
    case HW_GONE:
        break;
    }
    if (u != NOTHING)
        return u;
    if (at <= now)
        return DUE;
    if (at < *due)
        *due = at;
    return NOTHING;
}

/* Lower is more urgent. Among checks, tenants alternate, so that one with many messages delays no
 * other. */
static uint32_t rank(const struct hw *hw, const struct hw_record *r, enum urgency u)
{
    uint32_t distance = u == TEST ? (r->tenant - hw->next_test) % QP_MAX_TENANTS : 0;
    return (uint32_t)u * QP_MAX_TENANTS + distance;
}

static struct hw_record *most_urgent(struct hw *hw, uint64_t now, uint64_t *due, enum urgency *what)
{
    struct hw_record *best = NULL;
    uint32_t lowest = UINT32_MAX;
    for (struct hw_record *r = hw->records; r; r = r->next) {
        enum urgency u = urgency(hw, r, now, due);
        if (u == NOTHING || rank(hw, r, u) >= lowest)
            continue;
        lowest = rank(hw, r, u);
        best = r;
        *what = u;
    }
    return best;
}

/* The driver refused a command. If a handle does not exist, the process gets time to report that it
 * destroyed it. */
static void refused(struct hw *hw, struct hw_record *r, uint32_t status, const char *why)
{
    if (r->stage == HW_LEAVING || r->stage == HW_GONE)
        return;
    if (!hw_vanished(status)) {
        hw_fail(hw, r->tenant, status, why);
        return;
    }
    r->status = status;
    r->stage = HW_SUSPECT;
    r->due_ns = qg_now_ns() + HW_EXPLAIN_NS;
}

static void do_stop(struct hw *hw, uint32_t gen, struct hw_record *r, enum hw_part part)
{
    uint64_t word = word_of(hw, r);
    uint32_t tenant = r->tenant;
    if (r->doing != word)
        r->done = 0;
    r->doing = word;
    r->stopped = true;
    r->refs++;
    hw_begin(hw, r);
    uint32_t status = hw_stop(r, part);
    hw_end(hw, gen, r);
    r->done |= 1u << part;
    if (status)
        refused(hw, r, status, "the driver refused to stop a group");
    else if (r->done == (1u << HW_PARTS) - 1)
        r->applied = word;
    hw_record_put(hw, r);
    hw_review_tenant(hw, tenant);
}

static void do_continue(struct hw *hw, uint32_t gen, struct hw_record *r)
{
    uint64_t word = word_of(hw, r);
    uint32_t tenant = r->tenant, status = RM_OK;
    r->refs++;
    HW_STORE(hw->tenant[tenant].held[r->slot], 0); /* before the first kernel continues */
    if (r->stopped && r->actor == QG_HW_ACTOR_SHIM) {
        if (!hw_ask(hw, r, QG_ACT_CONTINUE, r->method, 0))
            hw_fail(hw, tenant, 0, "the process does not read its orders");
    } else {
        r->doing = word;
        if (r->stopped) {
            hw_begin(hw, r);
            status = hw_resume(r);
            hw_end(hw, gen, r);
        }
        r->applied = word;
        r->done = 0;
        r->stopped = status != RM_OK; /* if refused, it is tried again before the record ends */
        if (status)
            refused(hw, r, status, "the driver refused to continue a group");
    }
    hw_record_put(hw, r);
    hw_review_tenant(hw, tenant);
}

static void do_leave(struct hw *hw, uint32_t gen, struct hw_record *r)
{
    uint32_t tenant = r->tenant, client = r->reported.client, status = RM_TIMEOUT;
    HW_STORE(hw->tenant[tenant].held[r->slot], 0);
    r->refs++;
    if (hw->tenant[tenant].hangs < HW_TENANT_HANGS) {
        hw_begin(hw, r);
        status = hw_continue(r);
        uint32_t s = hw_former(r) ? hw_continue(hw_former(r)) : RM_OK;
        if (!status)
            status = s;
        hw_end(hw, gen, r);
    }
    if ((r->actor == QG_HW_ACTOR_SHIM || (status && !hw_vanished(status))) && r->stage != HW_GONE)
        hw_ask_undo(hw, r);
    if (r->acknowledge)
        hw_acknowledge(r->sock, hw->card->uuid, client);
    if (r->stage != HW_GONE) {
        hw_record_unlink(hw, r);
        hw_record_put(hw, r);
    }
    hw_record_put(hw, r);
    hw_review_tenant(hw, tenant);
}

static void do_slice(struct hw *hw, uint32_t gen, struct hw_record *r)
{
    uint64_t us = hw_slice_of(hw, r->tenant);
    uint32_t tenant = r->tenant, status = RM_OK;
    r->refs++;
    if (r->actor == QG_HW_ACTOR_SHIM) {
        if (!us) {
            hw_ask_undo(hw, r); /* the shim knows the groups' own time slices */
            r->slice_us = 0;
        } else if (!hw_ask(hw, r, QG_ACT_SLICE, r->method, us))
            hw_fail(hw, tenant, 0, "the process does not read its orders");
    } else {
        r->slice_us = us;
        hw_begin(hw, r);
        status = hw_slice(r, us);
        hw_end(hw, gen, r);
    }
    if (status)
        refused(hw, r, status, "the driver refused a time slice");
    hw_record_put(hw, r);
    hw_review_tenant(hw, tenant);
}

static void do_due(struct hw *hw, struct hw_record *r)
{
    if (r->stage == HW_SUSPECT && r->actor == QG_HW_ACTOR_SHIM)
        hw_fail(hw, r->tenant, r->status, "the process could not carry out an order on its groups");
    else if (r->stage == HW_SUSPECT)
        hw_fail(hw, r->tenant, r->status, "a handle that it named does not exist");
    else if (HW_LOAD(hw->tenant[r->tenant].escapes) > HW_MAX_ESCAPES)
        hw_fail(hw, r->tenant, RM_OK, "it continues its own groups over and over");
    else
        hw_fail(hw, r->tenant, RM_TIMEOUT, "the process did not answer an order within a second");
}

static bool names(const struct qg_groups *reported, uint32_t group)
{
    for (uint32_t i = 0; i < reported->ngroups; i++) {
        if (reported->groups[i].handle == group)
            return true;
    }
    return false;
}

/* Continues the groups of the former record that the new one does not name. The others stay as they
 * are. */
static void finish_former(struct hw *hw, uint32_t gen, struct hw_record *r)
{
    const struct hw_record *f = hw_former(r);
    uint32_t count;
    r->past = r->former;
    r->former = NULL;
    if (f && f->stopped) {
        struct qg_groups left = f->reported;
        left.ngroups = left.nchannels = 0;
        for (uint32_t i = 0; i < f->reported.ngroups; i++) {
            if (!names(&r->reported, f->reported.groups[i].handle))
                left.groups[left.ngroups++] = f->reported.groups[i];
        }
        r->stopped = true;
        hw_begin(hw, r);
        if (left.ngroups)
            qg_rm_act(f->fd, &left, QG_ACT_CONTINUE, QG_HW_SCHEDULE, 0, &count);
        hw_end(hw, gen, r);
    }
    hw_record_put(hw, r->past);
    r->past = NULL;
}

static void became_usable(struct hw *hw, uint32_t gen, struct hw_record *r)
{
    r->actor = QG_HW_ACTOR_ARBITER;
    finish_former(hw, gen, r);
    if (r->stage != HW_FRESH)
        return;
    r->stage = HW_USABLE;
    r->tested = true;
    /* 0 is the word before any stop. 1 never is a tenant's word, so that the worker compares. */
    r->applied = r->stopped ? 1 : 0;
    r->done = 0;
}

static void act_on_verdict(struct hw *hw, uint32_t gen, struct hw_record *r,
                           enum hw_verdict verdict, const char *why)
{
    bool may_ask = hw->settings.actor == QG_HW_ACTOR_AUTO && r->sock >= 0;
    switch (verdict) {
    case HW_MORE:
        return;
    case HW_PASSED:
        became_usable(hw, gen, r);
        return;
    case HW_LIED:
        hw_fail(hw, r->tenant, r->status, why);
        return;
    case HW_VANISHED:
        if (r->status != RM_BAD_CLIENT || !may_ask) {
            refused(hw, r, r->status, why);
            return;
        }
        /* The driver may not accept calls through a passed descriptor, so the shim is asked. */
        /* fall through */
    case HW_UNABLE:
        if (r->status)
            why = "the driver refused a call of the self-test";
        break;
    }
    if (!may_ask) {
        hw_fail(hw, r->tenant, r->status, why);
        return;
    }
    r->methods = hw->settings.method ? 1u << hw->settings.method : 0xeu;
    hw_ask_test(hw, r);
}

static void do_test(struct hw *hw, uint32_t gen, struct hw_record *r)
{
    const char *why = "";
    uint32_t tenant = r->tenant;
    if (!r->step)
        hw->tenant[tenant].tests--;
    hw->next_test = tenant + 1;
    r->refs++;
    if (hw->settings.actor == QG_HW_ACTOR_SHIM || r->fd < 0) {
        r->methods = hw->settings.method ? 1u << hw->settings.method : 0xeu;
        hw_ask_test(hw, r);
    } else {
        hw_begin(hw, r);
        enum hw_verdict verdict = hw_test(hw->card, r, &why);
        hw_end(hw, gen, r);
        if (r->stage == HW_FRESH)
            act_on_verdict(hw, gen, r, verdict, why);
    }
    hw_record_put(hw, r);
    hw_review_tenant(hw, tenant);
}

/* One action, with hw->lock. False: there is nothing to do before *due. */
static bool do_next(struct hw *hw, uint32_t gen, uint64_t *due)
{
    enum urgency what = NOTHING;
    struct hw_record *r = most_urgent(hw, qg_now_ns(), due, &what);
    if (!r)
        return false;
    switch (what) {
    case SHIM_STOP:
        if (!hw_ask(hw, r, QG_ACT_STOP, r->method, HW_SHORTEST_US))
            hw_fail(hw, r->tenant, 0, "the process does not read its orders");
        break;
    case STOP_GRAPHICS:
        do_stop(hw, gen, r, HW_GRAPHICS);
        break;
    case STOP_REST:
        do_stop(hw, gen, r, HW_REST);
        break;
    case LEAVE:
        do_leave(hw, gen, r);
        break;
    case CONTINUE:
        do_continue(hw, gen, r);
        break;
    case SLICE:
        do_slice(hw, gen, r);
        break;
    case DUE:
        do_due(hw, r);
        break;
    case TEST:
        do_test(hw, gen, r);
        break;
    case NOTHING:
        break;
    }
    return true;
}

static void sleep_until(struct hw *hw, uint32_t bell, uint64_t due)
{
    struct timespec at = {.tv_sec = (time_t)(due / 1000000000ull),
                          .tv_nsec = (long)(due % 1000000000ull)};
    syscall(SYS_futex, &hw->bell, FUTEX_WAIT_BITSET_PRIVATE, bell, due == QP_NEVER ? NULL : &at,
            NULL, FUTEX_BITSET_MATCH_ANY);
}

void *hw_worker(void *arg)
{
    struct hw_thread self = *(struct hw_thread *)arg;
    struct hw *hw = self.hw;
    free(arg);
    pthread_mutex_lock(&hw->lock);
    while (hw->gen == self.gen) {
        uint32_t bell = HW_LOAD(hw->bell);
        uint64_t due = QP_NEVER;
        if (do_next(hw, self.gen, &due))
            continue;
        if (hw->quit)
            break;
        pthread_mutex_unlock(&hw->lock);
        sleep_until(hw, bell, due);
        pthread_mutex_lock(&hw->lock);
    }
    pthread_mutex_unlock(&hw->lock);
    return NULL;
}
