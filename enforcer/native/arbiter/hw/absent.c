/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for hardware preemption in an arbiter that is built without it (make HW=0). No group
 * is ever stopped, and an order to do so gets ENOTSUP.
 */
#include <errno.h>
#include <string.h>

#include "hw/hw.h"
#include "qg_msg.h"

void hw_review(struct card *card, uint64_t now)
{
    (void)card, (void)now;
}

bool hw_held(const struct tenant *t, uint32_t slot)
{
    (void)t, (void)slot;
    return false;
}

uint32_t hw_window(const struct tenant *t)
{
    (void)t;
    return 0;
}

bool hw_watches(const struct tenant *t)
{
    (void)t;
    return false;
}

void hw_escaped(const struct tenant *t)
{
    (void)t;
}

void hw_process_left(struct arbiter *a, const struct tenant *t, uint32_t slot)
{
    (void)a, (void)t, (void)slot;
}

void hw_connection_ended(struct arbiter *a, const struct tenant *t, uint32_t slot)
{
    (void)a, (void)t, (void)slot;
}

void hw_tenant_revoked(struct arbiter *a, const struct tenant *t)
{
    (void)a, (void)t;
}

void hw_tenant_new(struct card *card, uint32_t index)
{
    (void)card, (void)index;
}

void hw_tenant_changed(const struct tenant *t)
{
    (void)t;
}

bool hw_control_of(const struct arbiter *a, const void *buf, size_t cap,
                   struct qg_ctl_hardware *device)
{
    (void)a, (void)buf, (void)cap, (void)device;
    return false;
}

void hw_attend(struct arbiter *a, struct key *key)
{
    (void)a, (void)key;
}

void hw_finish(struct arbiter *a)
{
    (void)a;
}

/* Answers a process that is about to destroy its groups, as it waits for that. */
void hw_groups(struct arbiter *a, struct conn *c, const void *buf, size_t len, int *fd)
{
    struct qg_groups m;
    (void)a, (void)fd;
    if (!qg_msg_is(buf, len, QG_MSG_GROUPS, sizeof(m)))
        return;
    memcpy(&m, buf, sizeof(m));
    if (!(m.flags & QG_GROUPS_LEAVE))
        return;
    struct qg_act act = {.action = QG_ACT_CONTINUE, .method = QG_HW_AUTO, .value = m.client};
    memcpy(act.uuid, m.uuid, sizeof(act.uuid));
    qg_msg_head_init(&act.head, QG_MSG_ACT, sizeof(act));
    qg_msg_send(c->fd, &act, sizeof(act), NULL, 0);
}

void hw_acted(struct arbiter *a, struct conn *c, const void *buf, size_t len)
{
    (void)a, (void)c, (void)buf, (void)len;
}

int hw_settings(struct arbiter *a, const void *buf)
{
    struct qg_ctl_hardware m;
    (void)a;
    memcpy(&m, buf, sizeof(m));
    return m.enabled ? ENOTSUP : 0;
}

bool hw_report(struct arbiter *a, struct conn *c)
{
    (void)a, (void)c;
    return true;
}
