/* SPDX-License-Identifier: Apache-2.0 */
#include "ml_stub.h"
#include "ml.h"

int ml_stub(const char *function)
{
    sim_debug("%s is not simulated: NVML_ERROR_NOT_SUPPORTED", function);
    TRY(ml_enter_in(function));
    return NVML_ERROR_NOT_SUPPORTED;
}
