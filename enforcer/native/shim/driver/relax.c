/* SPDX-License-Identifier: Apache-2.0
 *
 * Driver calls of ours while a capture of the program is open. The capture mode of this thread is
 * relaxed for them, so that they do not end the capture.
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
