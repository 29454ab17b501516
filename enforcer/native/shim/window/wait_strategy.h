/* SPDX-License-Identifier: Apache-2.0
 *
 * What a poll of the window finds, and how long a thread sleeps until the next poll.
 */
#ifndef QG_WAIT_STRATEGY_H
#define QG_WAIT_STRATEGY_H

#include "track/streams.h"

/* ns of polling before the first sleep; a sleep costs more than that */
#define SPIN_NS 5000u
/* ns of a sleep if no better end is known */
#define DEFAULT_SLEEP_NS 20000u

/* One poll of the window. */
struct qg_poll {
    /* time of the poll, time of the last observed progress, unfinished ns at the last poll */
    uint64_t now, moved, last;
    uint64_t began; /* start of the running work (start_inference.h) */
    bool guessed;   /* that start may be quite wrong */
    uint32_t flags; /* the gate word */
    bool closed;    /* the gate closed meanwhile */
    bool held;      /* other work on the card must end first */
    /* the time for which the gate was opened is over, and the arbiter has not decided since */
    bool expired;
    /* no progress for too long; the driver is asked about `inflight.oldest` */
    bool stuck;
    /* ns of running time after which the waiting work may be queued; 0: only at the end */
    uint64_t due;
    bool expected; /* the running work ends about now, if it takes as long as recently */
    /* ns that the running work takes at most and at least, given its start */
    uint64_t first_ns, first_low_ns;
    struct qg_inflight inflight;
};

/* The running work may end long before its estimate. */
static inline bool qg_uncertain(const struct qg_poll *at)
{
    return at->first_low_ns < at->first_ns / 4 * 3;
}

/* ns to sleep until work may have ended; 0: it is about to end. The running work takes between its
 * lower estimate and its estimate. If more work is queued behind it, its end need not be met
 * exactly. Otherwise polls begin shortly before the lower estimate, become rarer, and are exact
 * again at the estimate. */
uint64_t qg_wait_sleep_ns(const struct qg_poll *at);

/* Learns from a sleep how late this process's threads wake up. */
void qg_wait_slept(uint64_t asked_ns, uint64_t took_ns);

/* Sleeps for that long, or polls; not while the gate is closed. word: the gate word. */
void qg_wait_sleep(const struct qg_poll *at, const uint32_t *word);

/* off: sets the timer slack to the least, since the usual 50 us would more than double a short
 * sleep. restore: puts the program's own setting back. */
int qg_timer_slack_off(void);
void qg_timer_slack_restore(int slack);

#endif
