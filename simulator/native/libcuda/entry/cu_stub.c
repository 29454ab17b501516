/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that are not simulated are there nevertheless: libraries take whole lists of names by
 * dlsym() and give up when one is missing.
 */
#include "cu_stub.h"
#include "cu.h"

int cu_stub(const char *function)
{
    sim_debug("%s is not simulated: CUDA_ERROR_NOT_SUPPORTED", function);
    CUresult fault = cu_enter(function);
    return fault == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : fault;
}
