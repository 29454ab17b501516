/* SPDX-License-Identifier: Apache-2.0
 *
 * Managed memory above the cap of 256 MiB. `mem_managed full` is refused it; `mem_managed resident`
 * gets it, and plain memory beside it while the test says that there is room.
 */
#include "step.h"

static void resident(void)
{
    CUdeviceptr managed, plain, more;
    MUST(CALL(cuMemAllocManaged)(&managed, 300 * MIB, CU_MEM_ATTACH_GLOBAL));
    step("managed");
    MUST(CALL(cuMemAlloc_v2)(&plain, 64 * MIB));
    step("beside");
    REFUSED(CALL(cuMemAlloc_v2)(&more, 8 * MIB));
    step("full");
    MUST(CALL(cuMemFree_v2)(managed));
    MUST(CALL(cuMemFree_v2)(plain));
    step("freed");
}

int main(int argc, char **argv)
{
    CUdeviceptr managed;
    begin();
    if (argc == 2 && !strcmp(argv[1], "resident")) {
        resident();
    } else {
        REFUSED(CALL(cuMemAllocManaged)(&managed, 300 * MIB, CU_MEM_ATTACH_GLOBAL));
        step("refused");
    }
    return 0;
}
