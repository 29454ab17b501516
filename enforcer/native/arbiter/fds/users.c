/* SPDX-License-Identifier: Apache-2.0
 *
 * Users by their connections. A user with a grant on this node is a grantee; root counts as one.
 * All other uids are unknown. They share one small number of connections and one budget. A user
 * with a range of uids (/etc/subuid) can appear as many users. So an unknown uid can take nothing
 * from a grantee.
 */
#include <stdlib.h>

#include "base/base.h"
#include "fds/fds.h"
#include "model/model.h"
#include "policy/policy.h"

#define BUCKETS 256u /* of the hash table of users; chosen, not measured */
/* Registrations of one grantee, or of all unknown uids, that are checked at once. Chosen, not
 * measured. */
#define BURST 2048u
/* Registrations checked per second, of one grantee or of all unknown uids. A check is some reads
 * below /proc. Chosen, not measured. */
#define PER_SECOND 1000u
/* Refusals of one grantee, or of all unknown uids, that are logged at once, and per second. Chosen,
 * not measured. */
#define LINES            20u
#define LINES_PER_SECOND 1u

static struct {
    struct user *bucket[BUCKETS];
    struct budget shared;     /* of all unknown uids together */
    struct lines lines;       /* the same */
    uint32_t unknown_waiting; /* their connections that are not registered */
    bool stale;               /* a grant came or ended: users_review() has to walk all grants */
} users;

static bool is_root(const struct arbiter *a, uid_t uid)
{
    return uid == 0 || uid == a->owner;
}

static struct user **find(uid_t uid)
{
    struct user **at = &users.bucket[uid % BUCKETS];
    while (*at && (*at)->uid != uid)
        at = &(*at)->next;
    return at;
}

struct user *user_get(const struct arbiter *a, uid_t uid)
{
    struct user **at = find(uid);
    if (*at || !(*at = calloc(1, sizeof(**at))))
        return *at;
    (*at)->uid = uid;
    (*at)->unknown = !is_root(a, uid); /* grantees have an entry since their grant came */
    return *at;
}

/* Keeps grantees only: there are 2^32 uids, and an entry for each would fill the memory. */
void user_forget(uid_t uid)
{
    struct user **at = find(uid), *u = *at;
    if (!u || u->conns || !u->unknown)
        return;
    *at = u->next;
    free(u);
}

void users_changed(void)
{
    users.stale = true;
}

static void mark_grantees(const struct arbiter *a)
{
    for (uint32_t i = 0; i < a->ncards; i++) {
        for (uint32_t k = 0; k < QP_MAX_TENANTS; k++) {
            const struct tenant *t = a->cards[i]->tenants[k];
            struct user *u = t && !t->id.revoked ? user_get(a, t->id.uid) : NULL;
            if (u)
                u->unknown = false;
        }
    }
}

/* Walks all grants, but only after one of them changed, not for each connection. */
void users_review(const struct arbiter *a)
{
    if (!users.stale)
        return;
    users.stale = false;
    for (uint32_t i = 0; i < BUCKETS; i++) {
        for (struct user *u = users.bucket[i]; u; u = u->next) {
            u->proven = u->proven && !a->synced; /* with a list of grants no proof is needed */
            u->unknown = !u->proven && !is_root(a, u->uid);
        }
    }
    mark_grantees(a);
    users.unknown_waiting = 0;
    for (uint32_t i = 0; i < BUCKETS; i++) {
        for (struct user *u = users.bucket[i], *next; u; u = next) {
            next = u->next;
            if (u->unknown)
                users.unknown_waiting += u->waiting;
            user_forget(u->uid);
        }
    }
}

void user_prove(struct user *u)
{
    if (u->unknown)
        users.unknown_waiting -= u->waiting;
    u->proven = true;
    u->unknown = false;
}

void user_wait(struct user *u, int change)
{
    u->waiting += (uint32_t)change;
    if (u->unknown)
        users.unknown_waiting += (uint32_t)change;
}

uint32_t users_unknown_waiting(void)
{
    return users.unknown_waiting;
}

struct user *users_most_connections(void)
{
    struct user *most = NULL;
    for (uint32_t i = 0; i < BUCKETS; i++) {
        for (struct user *u = users.bucket[i]; u; u = u->next) {
            if (u->waiting && !u->unknown && (!most || u->conns > most->conns))
                most = u;
        }
    }
    return most;
}

static bool take(struct budget *b, uint64_t now, uint32_t burst, uint32_t per_second)
{
    uint64_t earned = (now - b->at_ns) / (1000000000ull / per_second);
    if (earned)
        b->at_ns = now;
    b->left = earned > burst - b->left ? burst : b->left + (uint32_t)earned;
    return b->left && b->left--;
}

bool user_may_ask(struct user *u, uint64_t now)
{
    return take(u->unknown ? &users.shared : &u->budget, now, BURST, PER_SECOND);
}

bool user_may_log(struct user *u, uint64_t now, uint32_t *left_out)
{
    struct lines *l = u->unknown ? &users.lines : &u->lines;
    if (!take(&l->budget, now, LINES, LINES_PER_SECOND)) {
        l->left_out++;
        return false;
    }
    *left_out = l->left_out;
    l->left_out = 0;
    return true;
}
