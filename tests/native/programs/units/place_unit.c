/* SPDX-License-Identifier: Apache-2.0
 *
 * What the shim takes location types for: each argument is one, each line of output says where it
 * is, of which device if it tells, and whether pinned and managed memory there is charged. The
 * location's bytes say device 3.
 */
#include <stdio.h>
#include <stdlib.h>

#include "memory/place.h"

int main(int count, char **words)
{
    static const char *const names[] = {
        [QG_PLACE_NONE] = "none", [QG_PLACE_HOST] = "host", [QG_PLACE_CARD] = "card"};
    for (int i = 1; i < count; i++) {
        CUmemLocation location = {.type = (CUmemLocationType)strtol(words[i], NULL, 0), .id = 3};
        CUdevice ordinal = -1;
        if (location.type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN)
            location.localized.localityDomainId = 1;
        bool tells = qg_place_ordinal(&location, &ordinal);
        printf("%s %d %d %d\n", names[qg_place_of(location.type)], tells ? ordinal : -1,
               qg_place_counts(&location, CU_MEM_ALLOCATION_TYPE_PINNED),
               qg_place_counts(&location, CU_MEM_ALLOCATION_TYPE_MANAGED));
    }
    return 0;
}
