/* SPDX-License-Identifier: Apache-2.0
 *
 * Registered processes. Only its pidfd tells that a process ended. The end of its connection does
 * not: a forked child may keep it open, and a program may close it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/base.h"
#include "model/model.h"
#include "tenant/tenant.h"

/* count: Processes of the node. Each takes a pidfd of the arbiter's 65536. Chosen, not measured. */
#ifndef MAX_PROCS /* a test fills a smaller table */
#define MAX_PROCS 8192u
#endif

bool proc_lives(int pidfd)
{
    struct pollfd pfd = {.fd = pidfd, .events = POLLIN};
    return poll(&pfd, 1, 0) == 0;
}

static struct proc *find(const struct arbiter *a, pid_t pid)
{
    struct proc *p = a->procs;
    while (p && (p->pid != pid || p->ended))
        p = p->next;
    return p;
}

static bool room_for(const struct arbiter *a, uid_t uid)
{
    uint32_t mine = 0, all = 0;
    for (const struct proc *p = a->procs; p; p = p->next, all++)
        mine += p->uid == uid;
    return ar_may_hold(mine, all, MAX_PROCS);
}

struct proc *proc_get(struct arbiter *a, pid_t pid, uid_t uid, int pidfd, int *err)
{
    struct proc *p = find(a, pid);
    if (p && proc_lives(p->pidfd))
        return p;
    if (p)
        proc_died(a, p); /* its pid belongs to another process now */
    bool room = room_for(a, uid);
    *err = room ? -ENOMEM : -EDQUOT;
    if (!room || !(p = calloc(1, sizeof(*p))))
        return NULL;
    p->key.kind = KEY_PROC;
    p->pid = pid;
    p->uid = uid;
    p->pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0);
    *err = p->pidfd < 0 ? -errno : !proc_lives(p->pidfd) ? -ESRCH : ar_watch(a, p->pidfd, &p->key);
    if (*err) {
        if (p->pidfd >= 0)
            close(p->pidfd);
        free(p);
        return NULL;
    }
    p->next = a->procs;
    a->procs = p;
    return p;
}

void proc_died(struct arbiter *a, struct proc *p)
{
    if (p->ended)
        return;
    p->ended = true;
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, p->pidfd, NULL);
    while (p->nslots) {
        p->nslots--;
        tenant_leave(a, p->slots[p->nslots].tenant, p->slots[p->nslots].slot);
    }
}

void proc_sweep(struct arbiter *a)
{
    for (struct proc **at = &a->procs; *at;) {
        struct proc *p = *at;
        if (!p->ended && p->nslots) {
            at = &p->next;
            continue;
        }
        *at = p->next; /* it ended, or never got a slot */
        /* The pidfd of its connection is a duplicate of this one. As long as that is open, closing
         * this one does not end its entry in the epoll set. */
        epoll_ctl(a->epfd, EPOLL_CTL_DEL, p->pidfd, NULL);
        close(p->pidfd);
        free(p);
    }
}
