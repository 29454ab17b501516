/* SPDX-License-Identifier: Apache-2.0
 *
 * Hardware preemption with the shim as the actor. It is used where the arbiter cannot or shall not
 * act through the control device. The worker sends the order on the process's connection; the main
 * thread receives the answer. A process acts on all its groups of the card at once. So one order is
 * for all its records. All with hw->lock; nothing here blocks.
 */
#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "hw/hw_parts.h"
#include "model/model.h"
#include "qg_msg.h"
#include "qg_time.h"

/* False: the process does not read. A connection that has just ended counts as success: a process
 * that dies must not fail the whole tenant. */
static bool send_act(int sock, struct qg_act *m)
{
    qg_msg_head_init(&m->head, QG_MSG_ACT, sizeof(*m));
    int err = qg_msg_send(sock, m, sizeof(*m), NULL, 0);
    return err == 0 || err == -EPIPE || err == -ECONNRESET;
}

bool hw_acknowledge(int sock, const char *uuid, uint32_t client)
{
    struct qg_act m = {.action = QG_ACT_CONTINUE, .method = QG_HW_AUTO, .value = client};
    memcpy(m.uuid, uuid, sizeof(m.uuid));
    return send_act(sock, &m);
}

bool hw_ask(struct hw *hw, struct hw_record *r, uint32_t action, uint32_t method, uint64_t value)
{
    struct qg_act m = {.action = action, .method = method, .value = value, .serial = ++hw->serial};
    uint64_t word = HW_LOAD(hw->tenant[r->tenant].word), now = qg_now_ns();
    memcpy(m.uuid, hw->card->uuid, sizeof(m.uuid));
    for (struct hw_record *o = hw->records; o; o = o->next) {
        if (o->tenant != r->tenant || o->slot != r->slot || o->actor != QG_HW_ACTOR_SHIM)
            continue;
        o->serial = m.serial;
        o->doing = word;
        o->due_ns = now + (o->stage == HW_ASKED ? HW_FIRST_NS : HW_LIMIT_NS);
        if (action == QG_ACT_STOP)
            o->stopped = true;
        if (action == QG_ACT_SLICE)
            o->slice_us = value;
    }
    return send_act(r->sock, &m);
}

/* For groups that the arbiter cannot continue, or that the shim stopped. The answer is not awaited.
 */
void hw_ask_undo(struct hw *hw, struct hw_record *r)
{
    const struct hw_record *f = hw_former(r);
    bool stopped = r->stopped || (f && f->stopped), slices = r->slice_us || (f && f->slice_us);
    if (r->sock < 0)
        return;
    if (stopped)
        hw_ask(hw, r, QG_ACT_CONTINUE, QG_HW_AUTO, 0);
    if (slices || (stopped && r->method == QG_HW_TIMESLICE))
        hw_ask(hw, r, QG_ACT_CONTINUE, QG_HW_TIMESLICE, 0);
}

/* Asks the shim to try the next method, by continuing groups that run. */
void hw_ask_test(struct hw *hw, struct hw_record *r)
{
    uint32_t m = QG_HW_SCHEDULE;
    while (m <= QG_HW_TIMESLICE && !(r->methods & 1u << m))
        m++;
    if (m > QG_HW_TIMESLICE) {
        hw_fail(hw, r->tenant, r->status,
                "neither the arbiter nor the process itself can act on its groups");
        return;
    }
    r->actor = QG_HW_ACTOR_SHIM;
    r->stage = HW_ASKED;
    r->method = m;
    r->methods &= ~(1u << m);
    if (!hw_ask(hw, r, QG_ACT_CONTINUE, m, 0))
        hw_fail(hw, r->tenant, 0, "the process does not read its orders");
}
