/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a connection, and what hangs on it. Main thread only.
 */
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/base.h"
#include "fds/fds.h"
#include "hw/hw.h"
#include "model/model.h"
#include "peer/peer.h"
#include "qg_time.h"

void conn_hold(struct conn *c)
{
    if (c->nslots++)
        return;
    c->registered = true;
    user_wait(c->user, -1);
}

/* A child of a process that died may hold it, and a slot is what bounds the connections that may
 * stay. */
void conn_let_go(struct conn *c)
{
    if (--c->nslots)
        return;
    c->registered = false;
    c->since_ns = qg_now_ns();
    user_wait(c->user, 1);
}

void proc_conn_closed(struct arbiter *a, const struct conn *c)
{
    uint64_t now = qg_now_ns();
    for (struct proc *p = a->procs; p; p = p->next) {
        for (uint32_t i = 0; i < p->nslots; i++) {
            struct slot *s = &p->slots[i].tenant->slots[p->slots[i].slot];
            if (s->conn != c)
                continue;
            s->conn = NULL;
            __atomic_store_n(&s->lost_ns, now, __ATOMIC_RELAXED);
            hw_connection_ended(a, p->slots[i].tenant, p->slots[i].slot);
        }
    }
}

static void leave(struct arbiter *a, struct conn *c)
{
    struct user *u = c->user;
    c->user = NULL;
    a->nconns--;
    u->conns--;
    if (!c->registered)
        user_wait(u, -1);
    user_forget(c->uid);
}

void conn_close(struct arbiter *a, struct conn *c)
{
    if (c->closed)
        return;
    c->closed = true;
    if (c->nslots)
        proc_conn_closed(a, c);
    if (c->user)
        leave(a, c);
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, c->fd, NULL); /* it stays open a little, c does not */
    broker_hang_up(a, c->uid, c->fd);
    if (c->pidfd >= 0)
        close(c->pidfd);
}

/* The other end may have hung up although we have not read so far. */
bool conn_alive(const struct conn *c)
{
    struct pollfd pfd = {.fd = c->fd, .events = POLLRDHUP};
    return !c->closed && poll(&pfd, 1, 0) == 0;
}
