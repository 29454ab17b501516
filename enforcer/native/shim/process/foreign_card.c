/* SPDX-License-Identifier: Apache-2.0
 *
 * Cards that the process sees and that its grant does not name.
 */
#include "process/process.h"
#include "base/message.h"

bool qg_context_refused(CUdevice device)
{
    static bool reported;
    CUdevice known;
    if (!qg_governed || qg_depth || qg_card_by_ordinal(device) || device < 0 ||
        QG_REAL(cuDeviceGet)(&known, device) != CUDA_SUCCESS)
        return false; /* no such device: the driver itself returns the error */
    if (!__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
        qg_message(
            "this card is not part of job %llu. Use the cards in CUDA_VISIBLE_DEVICES as it was "
            "when the program "
            "started.",
            (unsigned long long)qg_info.grant.job_id);
    return true;
}
