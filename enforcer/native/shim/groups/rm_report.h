/* SPDX-License-Identifier: Apache-2.0
 *
 * What the reporter and the threads of the program share.
 */
#ifndef QG_SHIM_RM_REPORT_H
#define QG_SHIM_RM_REPORT_H

#include "groups/rm.h"
#include "process/process.h"

extern struct qg_reporter {
    uint32_t work; /* atomic, futex: rises when there may be something to do */
    uint32_t done; /* atomic, futex: rises with each round */
    bool running;  /* atomic: a reporter exists in this process */
    bool exiting;  /* atomic: the process ends; only its end is still reported */
    /* atomic: threads that are making a context, and ask for a round afterwards */
    uint32_t making;
    uint32_t noticed;  /* atomic: qg_rm_changes() when it was last woken for them */
    uint32_t seen;     /* atomic: qg_rm_changes() that the last complete round began with */
    uint32_t asked;    /* atomic, futex: rises with each request for a round */
    uint32_t answered; /* atomic: what `asked` was when the last round began */
    uint32_t leaving[QG_MAX_CARDS];  /* atomic: threads that destroy a context there */
    uint32_t reported[QG_MAX_CARDS]; /* atomic: devices with groups there that the arbiter knows */
    uint32_t not_left[QG_MAX_CARDS]; /* atomic: of these, those that it has not yet left alone */
} qg_reporter;

void qg_rm_wake(uint32_t *word);
/* Requests a round. `answered` reaches the returned number when a round that began afterwards is
 * over. */
uint32_t qg_rm_ask(void);
void qg_rm_sleep(uint32_t *word, uint32_t seen, uint64_t ns); /* ns 0: without a limit */

/* Continues the groups of a card (-1: of all) by every method, and gives them their slices back. By
 * any thread. False: the driver refused some of it. */
bool qg_rm_continue(int card);

/* The order's action on all groups of a card. The first status that is not RM_OK; *count: groups
 * acted on. A group that went away meanwhile is no failure. */
uint32_t qg_rm_act_on_card(int card, const struct qg_act *order, uint32_t *count);

#endif
