/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between the arbiter (fds/broker_pool.c, serve/broker.c) and its descriptor brokers
 * (fds/broker_child.c). Each broker has a socketpair.
 */
#ifndef QGPU_BROKER_H
#define QGPU_BROKER_H

#include <stdint.h>

#include "qgpu_messages.h"

/* Bytes of a message that a broker passes on. Every message that a job may
 * send fits. */
#define BROKER_MESSAGE_BYTES 1024u
/* Brokers of all users at a time, those that hang included. A bound on the node's processes;
 * chosen, not measured. */
#define MAX_BROKERS 512u

enum broker_command {
    /* with a connection: take its next message, pass its descriptor on if that is harmless */
    BROKER_FETCH = 1,
    BROKER_CLOSE,   /* with a connection: close it */
    BROKER_HOLD,    /* with a connection: keep it open until the broker ends */
    BROKER_MESSAGE, /* answer to BROKER_FETCH */
    /* answer to each order: it is carried out, and its descriptors are closed; also sent once when
     * the broker starts */
    BROKER_DONE
};

struct broker_order {
    uint32_t what, has_device;
    uint64_t id;
    struct qg_ctl_hardware device; /* the control device that may come with this message */
};

struct broker_answer {
    uint32_t what;
    int32_t got; /* result of qg_msg_recv() */
    uint64_t id;
    char bytes[BROKER_MESSAGE_BYTES]; /* only the first `got` of them are sent */
};

/* Forks a broker for each request on `sock`, until the arbiter's end of it is closed. */
void broker_spawner(int sock) __attribute__((noreturn));

#endif
