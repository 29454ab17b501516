/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of the reporter (rm_report.c): sizes of its tables, messages per second, times.
 */
#ifndef QG_SHIM_RM_LIMITS_H
#define QG_SHIM_RM_LIMITS_H

/* Orders that may wait. An arbiter has fewer under way at once. */
#define MAX_ORDERS 32u
/* Devices of clients that the arbiter knows. Chosen, not measured: 4 clients on each of 16 cards.
 */
#define REPORTED_DEVICES 64u
/* Messages that may be sent at once. The arbiter closes a connection that sends 64 at once. */
#define BURST 40u
/* Messages per second. The arbiter closes a connection that sends more than 200. */
#define PER_SECOND 150u
/* Messages of the burst that are kept for contexts that are about to end. Chosen, not measured. */
#define RESERVED 8u
/* Leases without a heartbeat after which the arbiter counts as hung, as in gate.c. */
#define HUNG_FACTOR 3u
/* ns of a second. */
#define NS 1000000000ull
/* Attempts to send an answer when the budget is used up: 0.13 s in all. Chosen, not measured. */
#define ANSWERS 20
/* Attempts to continue all groups: 0.67 s at PER_SECOND. Chosen, not measured. */
#define ATTEMPTS 100u
/* ns to wait for more changes before a round. Chosen, not measured: a context is made by many
 * calls. */
#define GATHER_NS 2000000u
/* ns of the same while a thread makes a context, since that thread asks when it is done. Below 1 s,
 * so that a lost thread delays a report by less. */
#define MAKING_NS 999000000u

#endif
