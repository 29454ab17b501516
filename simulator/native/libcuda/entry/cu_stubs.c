/* SPDX-License-Identifier: Apache-2.0
 *
 * One stub for each function of the shim's symbols.tsv without a body. The build makes the list
 * (stubs.awk). Not cuda.h: a stub has no parameters, as it uses none.
 */
#include "cu_stub.h"

#define STUB(name)                                                                                 \
    int name(void)                                                                                 \
    {                                                                                              \
        return cu_stub(#name);                                                                     \
    }
#include "cu_stubs.h"
