/* SPDX-License-Identifier: Apache-2.0
 *
 * What the arbiter (porter.c) and its porters (porter_child.c) say to each other, over a socket of
 * their own.
 */
#ifndef QGPU_PORTER_H
#define QGPU_PORTER_H

#include <stdint.h>

#include "qgpu_abi.h"

#define PORTER_CAP       1024u /* the longest message there is, and more */
#define PORTER_PROCESSES 512u  /* of all users, those that hang included */

enum porter_word {
    /* with a connection: take its next message, pass on what came with it if that is harmless */
    PORTER_FETCH = 1,
    PORTER_CLOSE,   /* with a connection: close it */
    PORTER_HOLD,    /* with a connection: close it when you end, not before */
    PORTER_MESSAGE, /* the answer to FETCH */
    /* all that was asked for is done, and closed; without being asked: here I am */
    PORTER_DONE
};

struct porter_ask {
    uint32_t what, has_device;
    uint64_t id;
    struct qg_ctl_hardware device; /* the control device that may come with this message */
};

struct porter_answer {
    uint32_t what;
    int32_t got; /* as qg_msg_recv() */
    uint64_t id;
    char bytes[PORTER_CAP]; /* `got` of them are sent */
};

/* Makes porters, for as long as the arbiter holds the other end of `sock`. */
void porter_nursery(int sock) __attribute__((noreturn));

#endif
