/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption: the records of what processes reported, and the state of their tenants. All
 * with hw->lock, except for the total, which is atomic.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "hw/hw_parts.h"
#include "model/model.h"
#include "qg_time.h"

static uint32_t total; /* atomic: records of all cards */

uint32_t hw_record_total(void)
{
    return __atomic_load_n(&total, __ATOMIC_RELAXED);
}

struct hw_record *hw_record_create(struct hw *hw, struct tenant *t, uint32_t slot,
                                   const struct qg_groups *reported)
{
    struct hw_record *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->refs = 1;
    r->tenant = t->index;
    r->slot = slot;
    r->pid = t->slots[slot].proc->pid;
    r->fd = r->sock = -1;
    r->reported = *reported;
    r->wanted_method = hw->settings.method;
    r->next = hw->records;
    hw->records = r;
    hw->tenant[r->tenant].nrecords++;
    __atomic_fetch_add(&total, 1, __ATOMIC_RELAXED);
    return r;
}

struct hw_record *hw_record_find(const struct hw *hw, const struct tenant *t, uint32_t slot,
                                 const struct qg_groups *reported)
{
    for (struct hw_record *r = hw->records; r; r = r->next) {
        if (r->tenant == t->index && r->slot == slot && r->stage != HW_LEAVING &&
            r->reported.client == reported->client && r->reported.device == reported->device)
            return r;
    }
    return NULL;
}

uint32_t hw_record_count(const struct hw *hw, uint32_t tenant, uint32_t slot)
{
    uint32_t n = 0;
    for (const struct hw_record *r = hw->records; r; r = r->next)
        n += r->tenant == tenant && r->slot == slot && r->stage != HW_LEAVING;
    return n;
}

void hw_record_put(struct hw *hw, struct hw_record *r)
{
    if (!r || --r->refs)
        return;
    hw_record_put(hw, r->former);
    hw_record_put(hw, r->past);
    r->former = r->past = NULL;
    r->next = hw->garbage;
    hw->garbage = r;
    __atomic_fetch_sub(&total, 1, __ATOMIC_RELAXED);
    hw_notify(hw);
}

void hw_record_unlink(struct hw *hw, struct hw_record *r)
{
    struct hw_record **at = &hw->records;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    r->next = NULL;
    r->stage = HW_GONE;
    hw->tenant[r->tenant].nrecords--;
}

struct hw_record *hw_former(const struct hw_record *r)
{
    struct hw_record *f = r->former;
    while (f && !f->tested)
        f = f->former;
    return f;
}

static bool unchanged(const struct hw_record *r)
{
    const struct hw_record *f = hw_former(r);
    return !r->stopped && !r->slice_us && !(f && (f->stopped || f->slice_us));
}

void hw_record_leave(struct hw *hw, struct hw_record *r)
{
    if (hw->current != r && unchanged(r) && !r->acknowledge) {
        hw_record_unlink(hw, r);
        hw_record_put(hw, r);
        return;
    }
    r->stage = HW_LEAVING;
    hw_ring(hw);
}

void hw_fail(struct hw *hw, uint32_t tenant, uint32_t status, const char *why)
{
    struct hw_tenant *ht = &hw->tenant[tenant];
    ht->failures++;
    ht->last_status = status;
    if (!ht->failed) {
        ht->failed = ht->unlogged = true;
        snprintf(ht->why, sizeof(ht->why), "%s", why);
        hw_notify(hw);
    }
    for (struct hw_record *r = hw->records, *next; r; r = next) {
        next = r->next;
        if (r->tenant == tenant && r->stage != HW_LEAVING) {
            hw_record_leave(hw, r);
        }
    }
    hw_review_tenant(hw, tenant);
}

static void record_stop(struct hw_tenant *ht, uint64_t now)
{
    uint64_t since = HW_LOAD(ht->since_ns), took = now > since ? now - since : 0;
    uint32_t bucket = 0;
    if (ht->stopped_from_ns)
        return; /* a second stop, as the process continued its groups by itself */
    ht->stopped_from_ns = now;
    ht->stops++;
    if (took > ht->stop_max_ns)
        ht->stop_max_ns = took;
    while (bucket < QG_CLOSE_BUCKETS - 1 && took >= 1000ull << bucket)
        bucket++;
    ht->stop_hist[bucket]++;
}

static void record_continue(struct hw_tenant *ht, uint64_t now)
{
    if (!ht->stopped_from_ns)
        return;
    ht->stopped_ns += now - ht->stopped_from_ns;
    ht->stopped_from_ns = 0;
    ht->continues++;
}

/* Counts a stop or its end, once all records of the tenant are in that state. */
static void record_stops(struct hw *hw, uint32_t tenant, uint64_t word, uint32_t known,
                         bool all_applied)
{
    struct hw_tenant *ht = &hw->tenant[tenant];
    uint64_t now = qg_now_ns();
    if (!known || !(word & 1)) {
        if (all_applied || !known)
            record_continue(ht, now);
        ht->booked = word;
    } else if (all_applied && ht->booked != word) {
        ht->booked = word;
        record_stop(ht, now);
        ar_log(hw->card->arbiter, 3,
               "card %u: groups of job %llu are stopped, %llu us after its gate", hw->card->number,
               (unsigned long long)ht->job_id,
               (unsigned long long)((now - HW_LOAD(ht->since_ns)) / 1000));
    }
}

void hw_review_tenant(struct hw *hw, uint32_t tenant)
{
    struct hw_tenant *ht = &hw->tenant[tenant];
    uint64_t word = HW_LOAD(ht->word), slice = hw_slice_of(hw, tenant);
    uint32_t known = 0, usable = 0, sliced = 1;
    uint8_t held[QG_MAX_PROCS] = {0}, loose[QG_MAX_PROCS] = {0};
    bool all_applied = true;
    for (const struct hw_record *r = hw->records; r; r = r->next) {
        if (r->tenant != tenant || r->stage == HW_LEAVING)
            continue;
        known++;
        bool still = r->stage == HW_USABLE && (word & 1) && r->applied == word && r->stopped;
        if (still)
            held[r->slot] = 1;
        else
            loose[r->slot] = 1;
        if (r->stage != HW_USABLE) {
            all_applied = false;
            continue;
        }
        usable++;
        all_applied &= r->applied == word;
        sliced &= slice && r->slice_us == slice;
        ht->actor = r->actor;
        ht->method = r->method;
    }
    for (uint32_t i = 0; i < QG_MAX_PROCS; i++)
        HW_STORE(ht->held[i], (uint8_t)(held[i] && !loose[i]));
    HW_STORE(ht->known, known);
    HW_STORE(ht->usable, usable);
    HW_STORE(ht->sliced, (uint32_t)(usable && sliced));
    record_stops(hw, tenant, word, known, all_applied);
}
