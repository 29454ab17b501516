/* SPDX-License-Identifier: Apache-2.0
 *
 * The grant of this process, read and checked once.
 */
#ifndef QG_GRANT_H
#define QG_GRANT_H

#include <stdbool.h>

#include "qgpu_abi.h"

enum qg_mode {
    QG_MODE_NONE,     /* no QGPU_* in the environment: pass everything through */
    QG_MODE_GOVERNED, /* a valid grant */
    QG_MODE_BROKEN    /* a grant was announced and cannot be believed: no device memory */
};

struct qg_grant_info {
    enum qg_mode mode;
    struct qg_grant grant; /* our own copy; valid in QG_MODE_GOVERNED */
    char problem[200];     /* valid in QG_MODE_BROKEN: the end of the sentence to the user */
};

/* Reads the grant from the sealed descriptor or else from the file. Never prints. */
void qg_grant_read(struct qg_grant_info *info);

/* The job may have been moved to other cards since that grant was made. Takes where its cards are
 * now from run_dir's JOBID.grant, if that one can be believed and names the same cards. The order
 * of the cards stays. */
void qg_grant_refresh(struct qg_grant_info *info);

/* The UUID by which the arbiter and the processes of the job name the card, wherever it is. */
static inline const char *qg_card_name(const struct qg_grant_card *card)
{
    return card->home[0] ? card->home : card->uuid;
}

/* The inherited grant descriptor if it is still the one that was read, else -1. Not a duplicate. */
int qg_grant_descriptor(void);

#endif
