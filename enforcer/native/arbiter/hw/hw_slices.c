/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights: shares by time slices. The gates of all tenants of a class stay open. Their groups get
 * time slices in proportion to their shares. The slices add up to the period. Tenants with records
 * count. The card ends a slice early where there is no work. So it does not idle. With hw->lock.
 */
#include "hw/hw_parts.h"
#include "model/model.h"
#include "policy/policy.h"

#define MIN_SLICE_US 100u /* shortest time slice, in us, of a small share; chosen, not measured */

uint64_t hw_slice_of(const struct hw *hw, uint32_t tenant)
{
    const struct hw_tenant *me = &hw->tenant[tenant];
    uint64_t sum = 0;
    if (!hw->settings.weights || !HW_LOAD(hw->on) || me->failed)
        return 0;
    for (uint32_t i = 0; i < QP_MAX_TENANTS; i++) {
        const struct hw_tenant *ht = &hw->tenant[i];
        if (ht->nrecords && !ht->failed && ht->job_class == me->job_class)
            sum += ht->share;
    }
    if (!sum)
        return 0;
    uint64_t us = (uint64_t)hw->settings.period_us * me->share / sum;
    return us > MIN_SLICE_US ? us : MIN_SLICE_US;
}
