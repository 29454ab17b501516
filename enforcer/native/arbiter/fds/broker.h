/* SPDX-License-Identifier: Apache-2.0
 *
 * What the arbiter (broker.c) and its porters (broker_child.c) say to each other, over a socket of
 * their own.
 */
#ifndef QGPU_BROKER_H
#define QGPU_BROKER_H

#include <stdint.h>

#include "qgpu_abi.h"

#define BROKER_MESSAGE_BYTES 1024u /* the longest message there is, and more */
#define MAX_BROKERS          512u  /* of all users, those that hang included */

enum broker_command {
    /* with a connection: take its next message, pass on what came with it if that is harmless */
    BROKER_FETCH = 1,
    BROKER_CLOSE,   /* with a connection: close it */
    BROKER_HOLD,    /* with a connection: close it when you end, not before */
    BROKER_MESSAGE, /* the answer to FETCH */
    /* all that was asked for is done, and closed; without being asked: here I am */
    BROKER_DONE
};

struct broker_order {
    uint32_t what, has_device;
    uint64_t id;
    struct qg_ctl_hardware device; /* the control device that may come with this message */
};

struct broker_answer {
    uint32_t what;
    int32_t got; /* as qg_msg_recv() */
    uint64_t id;
    char bytes[BROKER_MESSAGE_BYTES]; /* `got` of them are sent */
};

/* Makes porters, for as long as the arbiter holds the other end of `sock`. */
void broker_spawner(int sock) __attribute__((noreturn));

#endif
