/* SPDX-License-Identifier: Apache-2.0
 *
 * The grant of this process, for qgpu's libnvidia-ml.so.1.
 */
#ifndef QG_NVML_GRANT_H
#define QG_NVML_GRANT_H

#include "qgpu_abi.h"

/* The grant of this process, if it has a governed one that can be believed; read once. */
const struct qg_grant *qg_nvml_grant(void);

#endif
