/* SPDX-License-Identifier: Apache-2.0
 *
 * One stub for each function of the NVML shim's symbols.tsv without a body. The build makes the
 * list (stubs.awk). Not nvml.h: a stub has no parameters, as it uses none.
 */
#include "ml_stub.h"

#define STUB(name)                                                                                 \
    int name(void)                                                                                 \
    {                                                                                              \
        return ml_stub(#name);                                                                     \
    }
#include "ml_stubs.h"
