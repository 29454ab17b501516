/* SPDX-License-Identifier: Apache-2.0
 *
 * The place of memory, as a CUmemLocation says it. Only memory that is known to be the host's is
 * not charged: a type that a later driver adds may be memory of a card.
 */
#ifndef QG_PLACE_H
#define QG_PLACE_H

#include <stdbool.h>

#include <cuda.h>

enum qg_place {
    QG_PLACE_NONE, /* says nothing; the driver refuses it, but for managed memory */
    QG_PLACE_HOST,
    QG_PLACE_CARD
};

static inline enum qg_place qg_place_of(CUmemLocationType type)
{
    switch ((int)type) {
    case CU_MEM_LOCATION_TYPE_NONE:
        return QG_PLACE_NONE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return QG_PLACE_HOST;
    default:
        return QG_PLACE_CARD;
    }
}

/* True: the location names the card; *ordinal is its ordinal. INVISIBLE does not name one, nor do
 * unknown types. */
static inline bool qg_place_ordinal(const CUmemLocation *location, CUdevice *ordinal)
{
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        *ordinal = location->id;
    else if (location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
        *ordinal = location->localized.deviceId;
    else
        return false;
    return true;
}

/* Whether memory of this kind at this place is charged. Only what cannot move stays where the
 * location says: managed memory counts wherever it is to lie first, as that of cuMemAllocManaged
 * does. */
static inline bool qg_place_counts(const CUmemLocation *location, CUmemAllocationType type)
{
    return qg_place_of(location->type) == QG_PLACE_CARD || type == CU_MEM_ALLOCATION_TYPE_MANAGED;
}

#endif
