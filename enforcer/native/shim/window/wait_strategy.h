/* SPDX-License-Identifier: Apache-2.0
 *
 * What a thread sees when it looks at the window, and how long it sleeps before it looks again.
 */
#ifndef QG_WAIT_STRATEGY_H
#define QG_WAIT_STRATEGY_H

#include "track/streams.h"

/* ns of polling before the first sleep; a sleep costs more than that */
#define SPIN_NS 5000u
/* ns of a sleep whose end is not known better */
#define NAP_NS 20000u

/* One look at the window. */
struct qg_look {
    /* when the GPU was last seen to finish something; what was unfinished at the last look */
    uint64_t now, moved, last;
    uint64_t began; /* since when what runs now runs (start_inference.h) */
    bool guessed;   /* ... which may be quite wrong */
    uint32_t flags; /* the gate word */
    bool closed;    /* the gate closed meanwhile */
    bool held;      /* other work on the card ends first */
    /* the time for which the gate was opened is over, and the arbiter has not looked since */
    bool spent;
    /* nothing has moved for too long; the driver is asked about `inflight.oldest` */
    bool stuck;
    /* what waits may be queued when what runs has run so long; 0: not before its end */
    uint64_t due;
    bool expected; /* what runs ends now, if it takes as long as it did lately */
    /* what runs takes in all, and at least, given that it runs since began */
    uint64_t first_ns, first_low_ns;
    struct qg_inflight inflight;
};

/* What runs now may end long before its estimate. */
static inline bool qg_uncertain(const struct qg_look *at)
{
    return at->first_low_ns < at->first_ns / 4 * 3;
}

/* How long to sleep until something may have ended; 0: it is about to. What runs takes between its
 * least and its estimate (the same for most functions). Where more work stands behind it, its end
 * need not be met exactly. Else it is looked for from shortly before its least on, less and less
 * often, and exactly again at the estimate. */
uint64_t qg_nap_ns(const struct qg_look *at);

/* Learns from a sleep how late this process's threads wake up. */
void qg_nap_took(uint64_t asked_ns, uint64_t took_ns);

/* Sleeps for that long, or polls; not while the gate is closed. word: the gate word. */
void qg_nap(const struct qg_look *at, const uint32_t *word);

/* The usual timer slack of 50 us would more than double a short sleep; the program's own setting is
 * put back. */
int qg_no_slack(void);
void qg_slack_again(int slack);

#endif
