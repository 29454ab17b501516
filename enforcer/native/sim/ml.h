/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of build/sim/libnvidia-ml.so.1.
 */
#ifndef QGPU_SIM_ML_H
#define QGPU_SIM_ML_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "sim_client.h"

struct nvmlDevice_st {
    struct sim_card_info info;
};

#define TRY(expression)                        \
    do {                                       \
        nvmlReturn_t try_status = (expression); \
        if (try_status != NVML_SUCCESS)        \
            return try_status;                 \
    } while (0)

/* Where every function begins: it is refused before nvmlInit, and faults on demand act. */
nvmlReturn_t ml_enter_in(const char *function);
nvmlReturn_t ml_check_in(const char *function, nvmlDevice_t device);
#define ml_enter() ml_enter_in(__func__)
#define ml_check(device) ml_check_in(__func__, device)

/* A question to the device side; the answer begins with struct sim_rep. text NULL: the question has none. */
nvmlReturn_t ml_ask(uint32_t type, const uint64_t numbers[3], const char *text, void *answer, size_t size);

#endif
