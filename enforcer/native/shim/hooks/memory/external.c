/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of memory from other processes and libraries. Memory behind an IPC handle is charged to its
 * maker if that is of this job, otherwise to this process. External memory is made by no CUDA call,
 * so this process is charged.
 */
#include "hooks/memory/charge.h"
#include "memory/ipc.h"

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    CUresult result = QG_REAL(cuIpcGetMemHandle)(handle, pointer);
    CUdeviceptr base = pointer;
    if (result != CUDA_SUCCESS || !ruled())
        return result;
    size_t size;
    if (DIRECT(QG_REAL(cuMemGetAddressRange_v2)(&base, &size, pointer)) != CUDA_SUCCESS)
        base = pointer;
    qg_share_this(QG_KIND_POINTER, base, qg_share_name(handle, sizeof(*handle)), -1);
    return result;
}

/* The card that opened memory is on. The driver also opens memory of another card than that of the
 * current context, if that one reaches it. */
static struct qg_card *card_of(CUdeviceptr pointer)
{
    int ordinal = -1;
    if (DIRECT(QG_REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                              pointer)) == CUDA_SUCCESS &&
        ordinal >= 0)
        return qg_card_by_ordinal(ordinal);
    return qg_card_current();
}

/* Charges memory that was opened; its size is known only now. False: it exceeds the cap. */
static bool opened(CUdeviceptr pointer, struct qg_card *card, CUcontext context, uint64_t name)
{
    CUdeviceptr base;
    size_t size = 0;
    uint16_t share = qg_share_known(card, name);
    if (!share &&
        (DIRECT(QG_REAL(cuMemGetAddressRange_v2)(&base, &size, pointer)) != CUDA_SUCCESS ||
         !qg_reserve(card, size)))
        return false;
    qg_charge(card, share ? 0 : size, QG_KIND_IPC, pointer, owner_of(context), share ? 0 : size);
    if (share)
        qg_set_share(QG_KIND_IPC, pointer, share);
    return true;
}

#define OPENS(name)                                                                                \
    CUresult name(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)                 \
    {                                                                                              \
        CUcontext context = NULL;                                                                  \
        struct qg_entry entry;                                                                     \
        CUresult result = QG_REAL(name)(pointer, handle, flags);                                   \
        if (result != CUDA_SUCCESS || !ruled() ||                                                  \
            QG_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)                                    \
            return result;                                                                         \
        if (qg_reopen(QG_KIND_IPC, *pointer, 1, &entry)) /* open already: the same address */      \
            return result;                                                                         \
        struct qg_card *card = card_of(*pointer);                                                  \
        if (card && opened(*pointer, card, context, qg_share_name(&handle, sizeof(handle))))       \
            return result;                                                                         \
        DIRECT(QG_REAL(cuIpcCloseMemHandle)(*pointer));                                            \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                           \
    }

OPENS(cuIpcOpenMemHandle)
OPENS(cuIpcOpenMemHandle_v2)

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    struct qg_entry entry;
    CUresult result = QG_REAL(cuIpcCloseMemHandle)(pointer);
    if (result == CUDA_SUCCESS && ruled() && qg_reopen(QG_KIND_IPC, pointer, -1, &entry) &&
        !entry.refs)
        qg_commit(&entry);
    return result;
}

/* Its memory is on the card already. */
CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *wanted)
{
    if (!wanted)
        return QG_REAL(cuImportExternalMemory)(memory, wanted);
    CHARGED(wanted->size, QG_REAL(cuImportExternalMemory)(memory, wanted), QG_KIND_EXTERNAL,
            *memory, wanted->size);
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    FREED(QG_KIND_EXTERNAL, memory, QG_REAL(cuDestroyExternalMemory)(memory));
}
