/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of build/sim/libnvidia-ml.so.1.
 */
#ifndef QGPU_SIM_ML_H
#define QGPU_SIM_ML_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "sim_client.h"

/* A card, or with MIG a card or an instance of one. */
struct nvmlDevice_st {
    /* of a card with MIG: of its first instance, but for what ml.c sets */
    struct sim_card_info info;
    struct nvmlDevice_st *card; /* an instance's card */
    unsigned gi;                /* an instance's GPU instance, from 1 on; 0: a card */
    bool parts;                 /* a card with MIG: only its instances report use */
};

#define TRY(expression)                                                                            \
    do {                                                                                           \
        nvmlReturn_t try_status = (expression);                                                    \
        if (try_status != NVML_SUCCESS)                                                            \
            return try_status;                                                                     \
    } while (0)

/* Where every function begins: it is refused before nvmlInit, and faults on demand act. */
nvmlReturn_t ml_enter_in(const char *function);
nvmlReturn_t ml_check_in(const char *function, nvmlDevice_t device);
/* ml_mig.c: the instance of that number of a card, NULL where there is none. */
nvmlDevice_t ml_instance(nvmlDevice_t card, unsigned index);
/* Like ml_check, and not for a card with MIG. */
nvmlReturn_t ml_check_work_in(const char *function, nvmlDevice_t device);
/* Like ml_check, and for neither of both: no utilisation and no limits of cgroups with MIG. */
nvmlReturn_t ml_check_whole_in(const char *function, nvmlDevice_t device);
bool ml_option(uint32_t option); /* SIM_OPTION_* */
/* ml.c: what is at the PCI address of the card with that index. */
void ml_pci(unsigned card, nvmlPciInfo_t *pci);
/* Like ml_check, and not for an instance: it has no clocks, power, links of its own. */
nvmlReturn_t ml_check_card_in(const char *function, nvmlDevice_t device);
#define ml_check_card(device)  ml_check_card_in(__func__, device)
#define ml_check_whole(device) ml_check_whole_in(__func__, device)
#define ml_check_work(device)  ml_check_work_in(__func__, device)
#define ml_enter()             ml_enter_in(__func__)
#define ml_check(device)       ml_check_in(__func__, device)

/* A question to the device side; the answer begins with struct sim_rep. text NULL: the question has
 * none. */
nvmlReturn_t ml_ask(uint32_t type, const uint64_t numbers[3], const char *text, void *answer,
                    size_t size);

#endif
