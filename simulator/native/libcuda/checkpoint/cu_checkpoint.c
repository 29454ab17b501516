/* SPDX-License-Identifier: Apache-2.0
 *
 * The checkpoint calls, as the caller makes them: each asks the device side by a connection of its
 * own, as long as it takes. The caller needs no cuInit. Faults on demand act in the target.
 */
#include "cu.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static CUresult ask_on(int sock, const struct sim_req *req, struct sim_rep *rep)
{
    const struct timeval forever = {0};
    if (setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever) != 0 ||
        !sim_exchange(sock, req, rep, sizeof *rep, NULL, 0))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return (CUresult)rep->status;
}

static CUresult ask(int pid, enum sim_order_what what, uint64_t c, uint64_t d, struct sim_rep *rep)
{
    if (pid <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_req req = {
        SIM_MAGIC, SIM_VERSION, SIM_REQ_CHECKPOINT, sizeof req, (uint64_t)pid, what, c, d};
    int sock = sim_connect();
    if (sock < 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult status = ask_on(sock, &req, rep);
    close(sock);
    return status;
}

static bool zero(const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size && !*at) {
        at++;
        size--;
    }
    return !size;
}

CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    struct sim_rep rep;
    if (!tid)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(ask(pid, SIM_ORDER_THREAD, 0, 0, &rep));
    *tid = (int)rep.a;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    struct sim_rep rep;
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(ask(pid, SIM_ORDER_STATE, 0, 0, &rep));
    *state = (CUprocessState)rep.a;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    struct sim_rep rep;
    if (args && (args->reserved0 || !zero(args->reserved1, sizeof args->reserved1)))
        return CUDA_ERROR_INVALID_VALUE;
    return ask(pid, SIM_ORDER_LOCK, args ? args->timeoutMs : 0, 0, &rep);
}

/* Of 13.0: storage of the caller's own came later, in a place that had to be zero. */
CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    struct sim_rep rep;
    if (args && !zero(args, sizeof *args))
        return CUDA_ERROR_INVALID_VALUE;
    return ask(pid, SIM_ORDER_CHECKPOINT, 0, 0, &rep);
}

CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    struct sim_rep rep;
    if (args && !zero(args, sizeof *args))
        return CUDA_ERROR_INVALID_VALUE;
    return ask(pid, SIM_ORDER_UNLOCK, 0, 0, &rep);
}

/* ---- restoring ---- */

static int digit(char c)
{
    return c >= 'a' ? c - 'a' + 10 : c - '0';
}

static bool is_card(const struct sim_card_info *card, const CUuuid *uuid)
{
    const char *text = card->uuid + 4; /* after GPU- or MIG- */
    for (int i = 0; i < 16; i++, text += 2) {
        text += *text == '-';
        if ((char)(digit(text[0]) << 4 | digit(text[1])) != uuid->bytes[i])
            return false;
    }
    return true;
}

/* The caller need not see the cards. */
static CUresult find_cards(int sock, const CUcheckpointGpuPair *pair, uint32_t *from, uint32_t *to)
{
    struct sim_card_info card;
    bool found_from = false, found_to = false;
    for (uint32_t i = 0; i < SIM_MAX_CARDS && !(found_from && found_to); i++) {
        struct sim_req req = {SIM_MAGIC, SIM_VERSION, SIM_REQ_CARD, sizeof req, i, 0, 0, 0};
        if (!sim_exchange(sock, &req, &card, sizeof card, NULL, 0))
            return CUDA_ERROR_DEVICE_UNAVAILABLE;
        if (card.rep.status)
            break;
        if (is_card(&card, &pair->oldUuid)) {
            found_from = true;
            *from = i;
        }
        if (is_card(&card, &pair->newUuid)) {
            found_to = true;
            *to = i;
        }
    }
    return found_from && found_to ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult read_pairs(const CUcheckpointGpuPair *pairs, unsigned n, uint64_t *moves,
                           uint64_t *where_to)
{
    CUresult status = CUDA_SUCCESS;
    int sock = n ? sim_connect() : -1;
    if (n && sock < 0)
        return CUDA_ERROR_NOT_INITIALIZED;
    for (unsigned i = 0; i < n && status == CUDA_SUCCESS; i++) {
        uint32_t from = 0, to = 0;
        status = find_cards(sock, &pairs[i], &from, &to);
        if (status == CUDA_SUCCESS && *moves >> from & 1)
            status = CUDA_ERROR_INVALID_VALUE;
        if (status == CUDA_SUCCESS) {
            *moves |= 1ull << from;
            *where_to |= (uint64_t)to << from * 4;
        }
    }
    if (sock >= 0)
        close(sock);
    return status;
}

CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    struct sim_rep rep;
    uint64_t moves = 0, where_to = 0;
    if (args) {
        CUcheckpointRestoreArgs rest = *args;
        rest.gpuPairs = NULL;
        rest.gpuPairsCount = 0;
        if (!zero(&rest, sizeof rest) || (args->gpuPairsCount && !args->gpuPairs))
            return CUDA_ERROR_INVALID_VALUE;
        CU_TRY(read_pairs(args->gpuPairs, args->gpuPairsCount, &moves, &where_to));
    }
    return ask(pid, SIM_ORDER_RESTORE, moves, where_to, &rep);
}
