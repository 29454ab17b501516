/* SPDX-License-Identifier: Apache-2.0
 *
 * QG_MSG_REGISTER: a process joins a tenant and receives its pages, or a sentence that says why
 * not.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "fds/fds.h"
#include "model/model.h"
#include "peer/peer.h"
#include "serve/serve.h"
#include "tenant/tenant.h"
#include "qg_msg.h"
#include "qg_seal.h"
#include "qg_time.h"

/* Logs a refusal. Each user has a budget of lines, so that none fills the disk or hides what is
 * logged of others. */
static void log_refusal(const struct arbiter *a, const struct conn *c, int status, const char *why)
{
    uint32_t left_out = 0;
    int level = status == EAGAIN ? 3 : 2;
    if (level > a->level || !user_may_log(c->user, qg_now_ns(), &left_out))
        return;
    if (left_out)
        ar_log(a, 1, "%u more refusals of %s %u were not logged", left_out,
               c->user->unknown ? "users without a grant, the last uid" : "uid", c->uid);
    ar_log(a, level, "process %d (uid %u) not registered: %s", (int)c->pid, c->uid, why);
}

static void answer(struct arbiter *a, struct conn *c, int status, const char *why,
                   const struct tenant *t, uint32_t slot)
{
    struct qg_registered msg = {.status = status, .slot = slot, .mem_cap = t ? t->id.mem_cap : 0};
    qg_msg_head_init(&msg.head, QG_MSG_REGISTERED, sizeof(msg));
    snprintf(msg.message, sizeof(msg.message), "%s", why);
    int fds[3] = {t ? t->gate_fd : -1, t ? t->job_fd : -1, t ? t->bell_fd : -1};
    if (status)
        log_refusal(a, c, status, why);
    if (qg_msg_send(c->fd, &msg, sizeof(msg), fds, status ? 0 : 3) != 0)
        conn_close(a, c);
}

/* The tenant that the message names; NULL with status and sentence if there is none (yet). */
static struct tenant *find_tenant(const struct arbiter *a, const struct qg_register *m, int *status,
                                  char *why, size_t cap)
{
    struct tenant *t = tenant_named(a, m->job_id, m->uuid);
    if (t)
        return t;
    *status = a->synced ? EPERM : EAGAIN;
    if (!a->synced)
        snprintf(why, cap, "the grants of this node are not loaded yet; ask again");
    else if (!card_find(a, m->uuid))
        snprintf(why, cap, "this node has no card %s under qgpu", m->uuid);
    else
        snprintf(why, cap, "job %" PRIu64 " has no grant on card %s", m->job_id, m->uuid);
    return NULL;
}

/* Answers EAGAIN: the process may ask again over the same connection, which stays open for that. An
 * unknown uid's does not, since it could occupy the connection for ever. */
static void ask_again(struct arbiter *a, struct conn *c, const char *why, uint64_t now)
{
    if (!c->user->unknown || !a->ever_synced)
        c->since_ns = now;
    answer(a, c, EAGAIN, why, NULL, 0);
}

static void join(struct arbiter *a, struct conn *c, struct tenant *t, const struct qg_register *m)
{
    uint32_t slot = 0;
    int err = 0;
    uint64_t used = m->mem_used < AR_MAX_BYTES ? m->mem_used : 0;
    /* If the sender has ended, its child may use the connection. The pid may then belong to another
     * process, which must not be registered in its place. */
    struct proc *p = proc_lives(c->pidfd) ? proc_get(a, c->pid, c->uid, c->pidfd, &err) : NULL;
    if (!p && !err)
        err = -ESRCH;
    if (p)
        err = tenant_join(a, t, p, c, used, &slot);
    if (err == -ENOSPC) {
        answer(a, c, ENOSPC, "the job has too many processes on this card", NULL, 0);
    } else if (err == -E2BIG) {
        answer(a, c, ENOSPC, "the process is registered for as many cards as one process may be",
               NULL, 0);
    } else if (err == -EDQUOT) {
        answer(a, c, ENOSPC,
               "your user has as many processes on this node's cards as there are places left; "
               "wait until one ends",
               NULL, 0);
    } else if (p && err == -EAGAIN) {
        ask_again(a, c, "another connection of this process has just registered it; ask again",
                  qg_now_ns());
    } else if (err == -EBUSY) {
        answer(a, c, ENOSPC,
               "another copy of the driver library in this process is registered already", NULL, 0);
    } else if (err) {
        answer(a, c, -err, "the process cannot be watched", NULL, 0);
    } else {
        answer(a, c, 0, "", t, slot);
    }
}

/* Does the process show a grant of its job? Only root can have made one. Before the list of grants
 * came, this shows that its user is a grantee. */
static bool shows_grant(const struct conn *c, const struct qg_register *m, uid_t owner, int fd)
{
    struct qg_grant grant;
    return fd >= 0 && !qg_grant_from_fd(fd, owner, &grant) && grant.uid == c->uid &&
           grant.job_id == m->job_id;
}

void register_message(struct arbiter *a, struct conn *c, const void *buf, size_t len, int fd)
{
    struct qg_register m;
    char why[200];
    int status = EPERM;
    if (!qg_msg_is(buf, len, QG_MSG_REGISTER, sizeof(m))) {
        answer(a, c, EPROTO, "the message is not a registration of a version that is spoken here",
               NULL, 0);
        conn_close(a, c);
        return;
    }
    memcpy(&m, buf, sizeof(m));
    if (!qg_terminated(m.uuid, sizeof(m.uuid))) {
        answer(a, c, EPROTO, "the UUID of the card is not terminated", NULL, 0);
        conn_close(a, c);
        return;
    }
    uint64_t now = qg_now_ns();
    users_review(a);
    if (c->user->unknown && !a->synced && shows_grant(c, &m, a->owner, fd))
        user_prove(c->user);
    if (!user_may_ask(c->user, now)) {
        ask_again(a, c,
                  c->user->unknown
                      ? "too many registrations of users without a grant on this node; ask again"
                      : "too many registrations of this user; ask again",
                  now);
        return;
    }
    struct tenant *t = find_tenant(a, &m, &status, why, sizeof(why));
    const char *bad =
        t ? identify(a, c->pid, c->uid, m.job_id, t->id.uid, fd, why, sizeof(why)) : why;
    if (!bad)
        join(a, c, t, &m);
    else if (status == EAGAIN)
        ask_again(a, c, bad, now);
    else
        answer(a, c, status, bad, NULL, 0);
}
