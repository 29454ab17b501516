/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots that a connection holds, and its end. Main thread only.
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

void conn_add_slot(struct conn *c)
{
    if (c->nslots++)
        return;
    c->registered = true;
    user_wait(c->user, -1);
}

/* Without a slot the connection counts as unregistered again and is closed after some seconds. Else
 * a child of a process that died could keep it open, beyond any limit. */
void conn_drop_slot(struct conn *c)
{
    if (--c->nslots)
        return;
    c->registered = false;
    c->since_ns = qg_now_ns();
    user_wait(c->user, 1);
}

void slots_lose_conn(struct arbiter *a, const struct conn *c)
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

static void leave_user(struct arbiter *a, struct conn *c)
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
        slots_lose_conn(a, c);
    if (c->user)
        leave_user(a, c);
    /* the descriptor may stay open for a while, but c is freed */
    epoll_ctl(a->epfd, EPOLL_CTL_DEL, c->fd, NULL);
    broker_hang_up(a, c->uid, c->fd);
    if (c->pidfd >= 0)
        close(c->pidfd);
}

/* Asks the socket: the peer may have closed it although the arbiter has not read the end yet. */
bool conn_alive(const struct conn *c)
{
    struct pollfd pfd = {.fd = c->fd, .events = POLLRDHUP};
    return !c->closed && poll(&pfd, 1, 0) == 0;
}
