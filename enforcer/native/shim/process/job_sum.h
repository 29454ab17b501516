/* SPDX-License-Identifier: Apache-2.0
 *
 * What all processes of the job hold on a card, read from the slots of the job page.
 */
#ifndef QG_JOB_SUM_H
#define QG_JOB_SUM_H

#include "process/process.h"

/* Sums over the slots of the newest pages and, for a while after a registration anew, of the ones
 * before. */
void qg_job_sums(struct qg_pages *pages, uint64_t *used, uint64_t *pending);

/* What the arbiter charges the job beside its slots: contexts and modules, and processes that died.
 */
uint64_t qg_job_extra(const struct qg_pages *pages);

/* The cap that holds: the grant's, or the gate page's if that is smaller; the card's memory while
 * the page says so. pages may be NULL. */
uint64_t qg_job_cap(const struct qg_grant_card *grant, const struct qg_pages *pages);

/* Writes this process's numbers into its slot. Also into its former slot while other processes may
 * still read that. */
void qg_job_publish(struct qg_pages *pages, uint64_t used, uint64_t pending);

/* Before the pages are published: keeps the old ones readable. The caller holds qg_allocation_lock.
 */
void qg_job_follow(struct qg_pages *pages, struct qg_pages *old);

#endif
