/* SPDX-License-Identifier: Apache-2.0
 *
 * What this library reports to qgpu's libnvidia-ml.so.1 in the same process. Both libraries then
 * give the same answers.
 */
#include <string.h>

#include "memory/memory.h"
#include "memory/pools.h"
#include "boot/job_view.h"

__attribute__((visibility("default"))) bool qgpu_job_view(const char *name, struct qgpu_view *out)
{
    for (unsigned i = 0; qg_governed && i < QG_MAX_CARDS; i++) {
        struct qg_card *card = &qg_cards[i];
        struct qg_pages *pages =
            card->grant && strcmp(qg_card_name(card->grant), name) == 0 ? qg_pages_of(card) : NULL;
        if (!pages)
            continue;
        if (!qg_depth)
            qg_pools_poll();
        *out =
            (struct qgpu_view){.cap = qg_cap(card), .used = qg_job_used(card), .job = pages->job};
        return true;
    }
    return false;
}
