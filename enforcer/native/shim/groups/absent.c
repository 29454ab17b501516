/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for channel groups in a shim that is built without hardware preemption (make HW=0). No
 * control call is observed, and the arbiter gets no groups from this process.
 */
#include "groups/rm.h"

void qg_rm_watch(bool on)
{
    (void)on;
}

void qg_rm_driver_opened(void *library)
{
    (void)library;
}

void qg_rm_connected(int sock, dev_t dev, ino_t ino)
{
    (void)sock, (void)dev, (void)ino;
}

void qg_rm_disconnected(void)
{
}

void qg_rm_received(const void *message, size_t size)
{
    (void)message, (void)size;
}

void qg_rm_poll(void)
{
}

void qg_rm_after_fork(void)
{
}

bool qg_rm_reports(void)
{
    return false;
}

bool qg_rm_making(void)
{
    return false;
}

void qg_rm_context_made(bool counted, bool made)
{
    (void)counted, (void)made;
}

bool qg_rm_leave(struct qg_card *card)
{
    (void)card;
    return false;
}

void qg_rm_left(struct qg_card *card)
{
    (void)card;
}
