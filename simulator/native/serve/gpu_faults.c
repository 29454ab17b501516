/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults on demand, for tests. One command in words, "VERB key=value ...", through sim.sock (root
 * alone) or --fault:
 *   sticky pid=P [code=700]            every context of the process is in error: its work is lost,
 *                                      all calls answer code
 *   hang pid=P [kernels=1]             so many of its next kernels never end
 *   stall us=U [card=0]                nothing on the card moves for that long
 *   linger pid=P us=U                  it holds its memory, and NVML lists it, so long after its
 *                                      end
 *   list pid=P as=KIND                 NVML lists it as compute, graphics or mps
 *   slice pid=P us=U                   its time slice, of present and coming contexts
 *   delay call=NAME us=U [times=K] [pid=P]    the function takes that much longer
 *   error call=NAME code=C [times=K] [pid=P]  the function answers code and does nothing
 *   block call=NAME [times=K] [pid=P]  the function does not return until "clear"
 *   midway call=NAME [times=K] [pid=P] it fails when half is done: cuCheckpointProcessCheckpoint or
 *                                      cuCheckpointProcessRestore; pid is the target
 *   errno call=rm.NAME code=C [times=K] [pid=P]  the ioctl fails with that errno
 *   clear [pid=P]                      no delay, error, errno or block any more
 *   flush                              no fault: what the cards executed so far reaches the trace
 *                                      at once
 * NAME is a function of libcuda or NVML without its version suffix, "*" any of libcuda, "nvml*" any
 * of NVML, "rm.NAME" a call of the control device (rm_fault.c), "rm.*" any of those. Without a pid:
 * every process that is there or comes; of calls of the control device: the caller, or the process
 * that the open file belongs to.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"

struct words {
    char verb[16], call[SIM_CALL_LEN], as[16];
    uint64_t pid, code, us, times, card, kernels;
    bool has_pid, has_code, has_us;
};

static bool number(const char *text, uint64_t *value)
{
    char *end;
    *value = strtoull(text, &end, strncmp(text, "0x", 2) == 0 ? 16 : 10);
    return end != text && !*end && *text != '-' && *value <= 0xffffffffffull;
}

static bool keyword(struct words *words, const char *key, const char *value)
{
    if (strcmp(key, "call") == 0)
        return snprintf(words->call, sizeof words->call, "%s", value) < (int)sizeof words->call &&
               *value;
    if (strcmp(key, "as") == 0)
        return snprintf(words->as, sizeof words->as, "%s", value) < (int)sizeof words->as;
    if (strcmp(key, "pid") == 0)
        return words->has_pid = number(value, &words->pid);
    if (strcmp(key, "code") == 0)
        return words->has_code = number(value, &words->code);
    if (strcmp(key, "us") == 0)
        return words->has_us = number(value, &words->us);
    if (strcmp(key, "times") == 0)
        return number(value, &words->times) && words->times;
    if (strcmp(key, "card") == 0)
        return number(value, &words->card);
    return strcmp(key, "kernels") == 0 && number(value, &words->kernels);
}

static bool parse(const char *command, struct words *words)
{
    char copy[SIM_TEXT], *save, *word;
    *words = (struct words){.kernels = 1};
    snprintf(copy, sizeof copy, "%s", command);
    for (word = strtok_r(copy, " \n", &save); word; word = strtok_r(NULL, " \n", &save)) {
        char *value = strchr(word, '=');
        if (!words->verb[0] && !value) {
            if (snprintf(words->verb, sizeof words->verb, "%s", word) >= (int)sizeof words->verb)
                return false;
            continue;
        }
        if (!value)
            return false;
        *value++ = 0;
        if (!keyword(words, word, value))
            return false;
    }
    return words->verb[0] != 0;
}

/* ---- faults of calls ---- */

static bool add_fault(struct sim_page *page, const struct sim_fault *fault)
{
    for (unsigned i = 0; i < SIM_FAULTS; i++) {
        struct sim_fault *slot = &page->faults[i];
        if (slot->kind && slot->left && strncmp(slot->call, fault->call, sizeof slot->call) != 0)
            continue;
        __atomic_store_n(&slot->kind, SIM_FAULT_NONE, __ATOMIC_SEQ_CST);
        memcpy(slot->call, fault->call, sizeof slot->call);
        slot->value = fault->value;
        __atomic_store_n(&slot->left, fault->left, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->kind, fault->kind, __ATOMIC_SEQ_CST);
        if (page->nfaults <= i)
            __atomic_store_n(&page->nfaults, i + 1, __ATOMIC_SEQ_CST);
        return true;
    }
    return false;
}

static void clear_faults(struct sim_page *page)
{
    __atomic_store_n(&page->nfaults, 0, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < SIM_FAULTS; i++)
        __atomic_store_n(&page->faults[i].kind, SIM_FAULT_NONE, __ATOMIC_SEQ_CST);
}

/* fault NULL: clear. */
static int on_pages(struct gpu *gpu, const struct words *words, const struct sim_fault *fault,
                    uint64_t *reached)
{
    bool ok = true;
    if (!fault)
        rm_fault_clear(gpu, words->has_pid ? (uint32_t)words->pid : 0);
    if (!words->has_pid) {
        if (fault)
            ok = add_fault(&gpu->page, fault);
        else
            clear_faults(&gpu->page);
    }
    for (struct gpu_conn *conn = gpu->conns; conn && ok; conn = conn->next) {
        if (!conn->page || (words->has_pid && (uint64_t)conn->pid != words->pid))
            continue;
        if (fault)
            ok = add_fault(conn->page, fault);
        else
            clear_faults(conn->page);
        ++*reached;
    }
    if (!ok)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return words->has_pid && !*reached ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

/* This process serves the control device itself: no page of a client is concerned. */
static int on_ioctls(struct gpu *gpu, const struct words *words, uint64_t *reached)
{
    struct rm_fault fault = {.left = words->times ? (int64_t)words->times : -1,
                             .pid = (uint32_t)words->pid,
                             .value = words->has_us ? words->us : words->code};
    const char *verb = words->verb;
    fault.kind = strcmp(verb, "delay") == 0 && words->has_us     ? RM_FAULT_DELAY
                 : strcmp(verb, "error") == 0 && words->has_code ? RM_FAULT_STATUS
                 : strcmp(verb, "errno") == 0 && words->has_code ? RM_FAULT_ERRNO
                 : strcmp(verb, "block") == 0                    ? RM_FAULT_HANG
                                                                 : RM_FAULT_NONE;
    if (!fault.kind || !rm_call_exists(words->call) || fault.value > 3600000000u ||
        (fault.kind == RM_FAULT_ERRNO && (!fault.value || fault.value > 4095)))
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(fault.call, sizeof fault.call, "%s", words->call);
    *reached = 1;
    return rm_fault_add(gpu->rm, &fault) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool has_midst(const char *call)
{
    return strcmp(call, "cuCheckpointProcessCheckpoint") == 0 ||
           strcmp(call, "cuCheckpointProcessRestore") == 0;
}

static int on_calls(struct gpu *gpu, const struct words *words, uint64_t *reached)
{
    struct sim_fault fault = {.left = words->times ? (int32_t)words->times : -1};
    if (strncmp(words->call, "rm.", 3) == 0)
        return on_ioctls(gpu, words, reached);
    if (strcmp(words->verb, "delay") == 0 && words->has_us) {
        fault.kind = SIM_FAULT_DELAY;
        fault.value = (uint32_t)words->us;
    } else if (strcmp(words->verb, "error") == 0 && words->has_code) {
        fault.kind = SIM_FAULT_ERROR;
        fault.value = (uint32_t)words->code;
    } else if (strcmp(words->verb, "block") == 0) {
        fault.kind = SIM_FAULT_HANG;
    } else if (strcmp(words->verb, "midway") == 0 && has_midst(words->call)) {
        fault.kind = SIM_FAULT_MIDWAY;
    }
    if (!fault.kind || !words->call[0] || words->times > INT32_MAX || fault.value > 3600000000u)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(fault.call, words->call, sizeof fault.call);
    return on_pages(gpu, words, &fault, reached);
}

/* ---- faults of the card ---- */

static void on_contexts(struct gpu_conn *conn, const struct words *words, uint64_t *reached)
{
    for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next) {
        gpu_card_sync(ctx->card);
        if (strcmp(words->verb, "sticky") == 0)
            gpu_ctx_poison(ctx, words->has_code ? (int)words->code : CUDA_ERROR_ILLEGAL_ADDRESS);
        else if (strcmp(words->verb, "slice") == 0)
            model_set_slice(ctx->model, ENG_COMPUTE, words->us * 1000);
        ++*reached;
    }
}

static int on_process(struct gpu *gpu, const struct words *words, uint64_t *reached)
{
    if (!words->has_pid || (strcmp(words->verb, "slice") == 0 && !words->us) ||
        (words->has_code && (!words->code || words->code > 999)))
        return CUDA_ERROR_INVALID_VALUE;
    for (struct gpu_conn *conn = gpu->conns; conn; conn = conn->next) {
        if ((uint64_t)conn->pid != words->pid || !conn->page)
            continue;
        if (strcmp(words->verb, "hang") == 0) {
            for (struct gpu_ctx *ctx = conn->ctxs; ctx; ctx = ctx->next)
                gpu_card_sync(ctx->card); /* those that were launched before are not the next */
            conn->hang_kernels = (uint32_t)words->kernels;
            ++*reached;
        } else if (strcmp(words->verb, "linger") == 0) {
            conn->linger_us = words->us;
            ++*reached;
        } else {
            on_contexts(conn, words, reached);
            conn->slice_ns = strcmp(words->verb, "slice") == 0 ? words->us * 1000 : conn->slice_ns;
        }
    }
    return *reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static int list(struct gpu *gpu, const struct words *words, uint64_t *reached)
{
    static const char *const kinds[] = {[SIM_LISTED_COMPUTE] = "compute",
                                        [SIM_LISTED_GRAPHICS] = "graphics",
                                        [SIM_LISTED_MPS] = "mps"};
    unsigned kind = 0;
    while (kind <= SIM_LISTED_MPS && strcmp(words->as, kinds[kind]) != 0)
        kind++;
    if (!words->has_pid || kind > SIM_LISTED_MPS)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct gpu_conn *conn = gpu->conns; conn; conn = conn->next)
        if ((uint64_t)conn->pid == words->pid) {
            conn->listed = (enum sim_listed)kind;
            ++*reached;
        }
    return *reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static int stall(struct gpu *gpu, const struct words *words, uint64_t *reached)
{
    if (!words->us || words->card >= gpu->config.cards)
        return CUDA_ERROR_INVALID_VALUE;
    gpu_card_sync(&gpu->cards[words->card]);
    model_stall(&gpu->cards[words->card].model, words->us * 1000);
    *reached = 1;
    return CUDA_SUCCESS;
}

/* The trace is written ten times a second; this writes what is buffered now. */
static int flush(struct gpu *gpu, uint64_t *reached)
{
    for (unsigned i = 0; i < gpu->config.cards; i++)
        gpu_card_sync(&gpu->cards[i]);
    gpu_trace_flush(gpu);
    *reached = gpu->config.cards;
    return CUDA_SUCCESS;
}

static int execute(struct gpu *gpu, const struct words *words, uint64_t *reached)
{
    const char *verb = words->verb;
    if (strcmp(verb, "flush") == 0)
        return flush(gpu, reached);
    if (strcmp(verb, "clear") == 0)
        return on_pages(gpu, words, NULL, reached);
    if (strcmp(verb, "list") == 0)
        return list(gpu, words, reached);
    if (strcmp(verb, "stall") == 0)
        return stall(gpu, words, reached);
    if (strcmp(verb, "sticky") == 0 || strcmp(verb, "hang") == 0 || strcmp(verb, "slice") == 0 ||
        strcmp(verb, "linger") == 0)
        return on_process(gpu, words, reached);
    return on_calls(gpu, words, reached);
}

int gpu_fault_command(struct gpu *gpu, const char *command, uint64_t *reached, bool complain)
{
    struct words words;
    *reached = 0;
    int status = parse(command, &words) ? execute(gpu, &words, reached) : CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS && complain)
        fprintf(stderr,
                "qgpu-simgpu: '%s' is no fault that is understood (docs/specs/simulator.md lists "
                "them)\n",
                command);
    return status;
}
