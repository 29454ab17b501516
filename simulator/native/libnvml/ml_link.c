/* SPDX-License-Identifier: Apache-2.0
 *
 * How cards are connected: by PCI alone. Every NVLink is inactive. Whether cards map each other's
 * memory the device side's --peers says, as for cuDeviceCanAccessPeer().
 */
#include <string.h>

#include "ml.h"

static nvmlReturn_t two(const char *function, nvmlDevice_t one, nvmlDevice_t other, const void *out)
{
    TRY(ml_check_card_in(function, one));
    TRY(ml_check_card_in(function, other));
    return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other,
                                    nvmlGpuP2PCapsIndex_t what, nvmlGpuP2PStatus_t *status)
{
    TRY(two(__func__, one, other, status));
    if ((unsigned)what >= NVML_P2P_CAPS_INDEX_UNKNOWN)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool may = what == NVML_P2P_CAPS_INDEX_READ || what == NVML_P2P_CAPS_INDEX_WRITE ||
               what == NVML_P2P_CAPS_INDEX_PCI;
    *status = one == other || (may && ml_option(SIM_OPTION_PEERS)) ? NVML_P2P_STATUS_OK
                                                                   : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                 nvmlGpuTopologyLevel_t *level)
{
    TRY(two(__func__, one, other, level));
    *level = one == other ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_NODE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *same)
{
    TRY(two(__func__, one, other, same));
    *same = one == other;
    return NVML_SUCCESS;
}

static nvmlReturn_t link_in(const char *function, nvmlDevice_t device, unsigned int link,
                            const void *out)
{
    TRY(ml_check_card_in(function, device));
    return out && link < NVML_NVLINK_MAX_LINKS ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t *active)
{
    TRY(link_in(__func__, device, link, active));
    *active = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                           nvmlNvLinkCapability_t capability, unsigned int *result)
{
    TRY(link_in(__func__, device, link, result));
    if ((unsigned)capability >= NVML_NVLINK_CAP_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *result = 0;
    return NVML_SUCCESS;
}

/* Of the other end of an inactive link nothing is known. */
#define REMOTE(name, type)                                                                         \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int link, type *remote)                        \
    {                                                                                              \
        TRY(link_in(#name, device, link, remote));                                                 \
        return NVML_ERROR_NOT_SUPPORTED;                                                           \
    }

REMOTE(nvmlDeviceGetNvLinkRemotePciInfo, nvmlPciInfo_t)
REMOTE(nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlPciInfo_t)
REMOTE(nvmlDeviceGetNvLinkRemoteDeviceType, nvmlIntNvLinkDeviceType_t)
REMOTE(nvmlDeviceGetNvLinkVersion, unsigned int)

/* ---- fabric, confidential computing: none ---- */

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    TRY(ml_check_card(device));
    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuFabricInfo_t){.state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED};
    return NVML_SUCCESS;
}

/* Of later headers than the one that this is built with. */
#define FABRIC_INFO_V3 (40u | 3u << 24)

/* A version names the size of its structure, which begins with it. */
static void zero_behind(unsigned int *version)
{
    memset(version + 1, 0, (*version & 0xffffffu) - sizeof *version);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    TRY(ml_check_card(device));
    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != nvmlGpuFabricInfo_v2 && info->version != FABRIC_INFO_V3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    zero_behind(&info->version);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state)
{
    TRY(ml_enter());
    if (!state)
        return NVML_ERROR_INVALID_ARGUMENT;
    *state = (nvmlConfComputeSystemState_t){0};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *settings)
{
    TRY(ml_enter());
    if (!settings)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (settings->version != nvmlSystemConfComputeSettings_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    zero_behind(&settings->version);
    return NVML_SUCCESS;
}
