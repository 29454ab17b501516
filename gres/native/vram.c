/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * gres_vram.so counts bytes of the cards' memory.
 */
#include "native.h"

const char plugin_name[] = "qgpu: memory of GPUs";
const char plugin_type[] = "gres/vram";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

const struct qgn_kind qgn_kind = {
    .gres = "vram",
    .prep_count = "QGPU_NATIVE_MEM",
    .task_count = "QGPU_VRAM_ON_NODE",
    .task_unit = UINT64_C(1) << 20,
    .valid = qgn_valid_mem,
};
