/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of ours while a capture of the program is open: relaxed for this thread, so that they do
 * not end it.
 */
#include "driver/relax.h"

#include "driver/driver.h"

bool qg_relax(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return QG_HAVE(cuThreadExchangeStreamCaptureMode) &&
           QG_REAL(cuThreadExchangeStreamCaptureMode)(mode) == CUDA_SUCCESS;
}

void qg_unrelax(bool relaxed, CUstreamCaptureMode *mode)
{
    if (relaxed)
        QG_REAL(cuThreadExchangeStreamCaptureMode)(mode);
}
