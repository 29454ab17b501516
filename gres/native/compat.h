/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Slurm's private headers, and the differences between the supported versions of Slurm. All other
 * sources here are the same for all versions.
 *
 *   22.05         13 symbols: get_job_info and get_step_info, epilog_build_env and epilog_set_env
 *   24.11, 26.05  11 symbols: no info functions, prep_build_env and prep_set_env
 */
#ifndef QGPU_NATIVE_COMPAT_H
#define QGPU_NATIVE_COMPAT_H

#include "slurm/slurm.h"
#include "slurm/slurm_errno.h"
#include "slurm/slurm_version.h"

#define QGN_SINCE(major, minor) (SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(major, minor, 0))

#include "src/common/slurm_xlator.h"
#include "src/common/bitstring.h"
#include "src/common/env.h"
#include "src/common/list.h"
#include "src/common/log.h"
#include "src/common/xmalloc.h"
#include "src/common/xstring.h"

#if QGN_SINCE(24, 11)
#include "src/interfaces/gres.h"
typedef gres_prep_t qgn_prep_t;
#define qgn_build_env gres_p_prep_build_env
#define qgn_set_env   gres_p_prep_set_env
#elif SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(23, 2, 0) && QGN_SINCE(22, 5)
#include "src/common/gres.h"
typedef gres_epilog_info_t qgn_prep_t;
#define qgn_build_env      gres_p_epilog_build_env
#define qgn_set_env        gres_p_epilog_set_env
#define list_t             struct xlist
#define QGN_INFO_FUNCTIONS 1
#else
#error "this source is for Slurm 22.05 and for 24.11 and later, and for none between"
#endif

#if QGN_SINCE(26, 5)
#define QGN_FINI void
#define QGN_FINI_END
#else
#define QGN_FINI     int
#define QGN_FINI_END return SLURM_SUCCESS
#endif

#endif
