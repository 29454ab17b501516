/* A libcuda whose processes are files of the directory FAKE_DIR: PID has the state as a number.
 * Each call writes a line into `calls`. A file CALL.PID has what that call answers and the state
 * that it leaves. The file `init` has what cuInit answers. */
#include <stdio.h>
#include <stdlib.h>

#include <cuda.h>

static FILE *open_file(const char *name, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", getenv("FAKE_DIR"), name);
    return fopen(path, mode);
}

static int read_numbers(const char *name, int *first, int *second)
{
    FILE *file = open_file(name, "r");
    if (!file)
        return 0;
    int got = fscanf(file, "%d %d", first, second);
    fclose(file);
    return got;
}

static int state_of(int pid)
{
    char name[32];
    int state = -1, unused;
    snprintf(name, sizeof(name), "%d", pid);
    read_numbers(name, &state, &unused);
    return state;
}

CUresult cuInit(unsigned int flags)
{
    int code = (int)flags, unused;
    read_numbers("init", &code, &unused);
    return code;
}

CUresult cuGetErrorName(CUresult result, const char **name)
{
    switch (result) {
    case CUDA_SUCCESS:
        *name = "CUDA_SUCCESS";
        return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_VALUE:
        *name = "CUDA_ERROR_INVALID_VALUE";
        return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
        return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_STATE:
        *name = "CUDA_ERROR_ILLEGAL_STATE";
        return CUDA_SUCCESS;
    case CUDA_ERROR_NOT_SUPPORTED:
        *name = "CUDA_ERROR_NOT_SUPPORTED";
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    char name[64];
    int code = 0, unused, found = state_of(pid);
    snprintf(name, sizeof(name), "state.%d", pid);
    if (read_numbers(name, &code, &unused))
        return code;
    *state = (CUprocessState)found;
    return found < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

#ifndef FAKE_OLD
static void write_state(int pid, int state)
{
    char name[32];
    snprintf(name, sizeof(name), "%d", pid);
    FILE *file = open_file(name, "w");
    fprintf(file, "%d", state);
    fclose(file);
}

static CUresult answer(const char *call, int pid, int from, int to)
{
    char name[64];
    int code = 0, state = state_of(pid), after = state;
    snprintf(name, sizeof(name), "%s.%d", call, pid);
    if (read_numbers(name, &code, &after)) {
        if (after == -1) { /* it ended */
            char path[4096];
            snprintf(path, sizeof(path), "%s/%d", getenv("FAKE_DIR"), pid);
            remove(path);
        } else if (after != state) {
            write_state(pid, after);
        }
        return code;
    }
    if (state < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (state != from)
        return CUDA_ERROR_ILLEGAL_STATE;
    write_state(pid, to);
    return CUDA_SUCCESS;
}

#define NOTE(...)                                                                                  \
    do {                                                                                           \
        FILE *calls = open_file("calls", "a");                                                     \
        fprintf(calls, __VA_ARGS__);                                                               \
        fclose(calls);                                                                             \
    } while (0)

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    NOTE("lock %d %u\n", pid, args->timeoutMs);
    return answer("lock", pid, CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
    NOTE("checkpoint %d%s\n", pid, args->customStorageInfo_out ? " custom" : "");
    return answer("checkpoint", pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    NOTE("restore %d", pid);
    for (unsigned int i = 0; i < args->gpuPairsCount; i++) {
        const CUcheckpointGpuPair *pair = &args->gpuPairs[i];
        NOTE(" %02x..%02x=%02x..%02x", (unsigned char)pair->oldUuid.bytes[0],
             (unsigned char)pair->oldUuid.bytes[15], (unsigned char)pair->newUuid.bytes[0],
             (unsigned char)pair->newUuid.bytes[15]);
    }
    NOTE("\n");
    return answer("restore", pid, CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
    NOTE("unlock %d%s\n", pid, args->reserved[0] ? " reserved" : "");
    return answer("unlock", pid, CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING);
}
#endif
