/* SPDX-License-Identifier: Apache-2.0
 *
 * How cards are connected: by PCI, and by the NVLinks of the device side's --nvlinks. Whether cards
 * map each other's memory its --peers says, as for cuDeviceCanAccessPeer().
 */
#include <stddef.h>
#include <string.h>

#include "ml.h"

static nvmlReturn_t two(const char *function, nvmlDevice_t one, nvmlDevice_t other, const void *out)
{
    TRY(ml_check_card_in(function, one));
    TRY(ml_check_card_in(function, other));
    return out ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* By links, or both by switches. */
static bool linked(nvmlDevice_t one, nvmlDevice_t other)
{
    return one->info.links[other->info.index] ||
           (one->info.switch_links && other->info.switch_links);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other,
                                    nvmlGpuP2PCapsIndex_t what, nvmlGpuP2PStatus_t *status)
{
    TRY(two(__func__, one, other, status));
    if ((unsigned)what >= NVML_P2P_CAPS_INDEX_UNKNOWN)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool may = what == NVML_P2P_CAPS_INDEX_READ || what == NVML_P2P_CAPS_INDEX_WRITE ||
               what == NVML_P2P_CAPS_INDEX_PCI;
    bool can = what == NVML_P2P_CAPS_INDEX_NVLINK ? linked(one, other)
                                                  : may && ml_option(SIM_OPTION_PEERS);
    *status = one == other || can ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
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

/* ---- links: those to card 0, to card 1 ..., then those to switches ---- */

#define TO_SWITCH SIM_MAX_CARDS
#define INACTIVE  (SIM_MAX_CARDS + 1u)

/* The card at a link's other end, or one of the two above. */
static unsigned remote_of(nvmlDevice_t device, unsigned int link)
{
    for (unsigned card = 0; card < SIM_MAX_CARDS; card++) {
        if (link < device->info.links[card])
            return card;
        link -= device->info.links[card];
    }
    return link < device->info.switch_links ? TO_SWITCH : INACTIVE;
}

static nvmlReturn_t link_in(const char *function, nvmlDevice_t device, unsigned int link,
                            const void *out)
{
    _Static_assert(SIM_MAX_LINKS == NVML_NVLINK_MAX_LINKS, "links that NVML does not know");
    TRY(ml_check_card_in(function, device));
    return out && link < NVML_NVLINK_MAX_LINKS ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* Of the other end of an inactive link nothing is known. */
static nvmlReturn_t remote_in(const char *function, nvmlDevice_t device, unsigned int link,
                              const void *out, unsigned *remote)
{
    TRY(link_in(function, device, link, out));
    *remote = remote_of(device, link);
    return *remote == INACTIVE ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t *active)
{
    TRY(link_in(__func__, device, link, active));
    *active = remote_of(device, link) != INACTIVE ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                           nvmlNvLinkCapability_t capability, unsigned int *result)
{
    TRY(link_in(__func__, device, link, result));
    if ((unsigned)capability >= NVML_NVLINK_CAP_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool has = capability == NVML_NVLINK_CAP_P2P_SUPPORTED || capability == NVML_NVLINK_CAP_VALID;
    *result = has && remote_of(device, link) != INACTIVE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                 nvmlPciInfo_t *pci)
{
    unsigned remote;
    TRY(remote_in(__func__, device, link, pci, &remote));
    ml_pci(remote, pci); /* switches have the address behind the last card that there can be */
    if (remote == TO_SWITCH)
        pci->pciDeviceId = SIM_PCI_SWITCH;
    return NVML_SUCCESS;
}

/* An old form: without the long bus id. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link,
                                              nvmlPciInfo_t *pci)
{
    nvmlPciInfo_t whole;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &whole));
    memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *type)
{
    unsigned remote;
    TRY(remote_in(__func__, device, link, type, &remote));
    *type = remote == TO_SWITCH ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link,
                                        unsigned int *version)
{
    unsigned remote;
    TRY(remote_in(__func__, device, link, version, &remote));
    *version = NVML_NVLINK_VERSION_4_0; /* of an H200 */
    return NVML_SUCCESS;
}

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
