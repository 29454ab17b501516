/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * gres_qgpu.so counts percent of cards; its Type is the class.
 */
#include "native.h"

const char plugin_name[] = "qgpu: shares of GPUs";
const char plugin_type[] = "gres/qgpu";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

const struct qgn_kind qgn_kind = {
    .gres = "qgpu",
    .prep_count = "QGPU_NATIVE_SHARE",
    .prep_class = "QGPU_NATIVE_CLASS",
    .task_count = "QGPU_ON_NODE",
    .task_unit = 1,
    .clears = "SLURM_SHARDS_ON_NODE",
    .valid = qgn_valid_qgpu,
};
