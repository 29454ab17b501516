/* SPDX-License-Identifier: Apache-2.0
 *
 * References to a primary context that several threads give back at once: our calls into its
 * streams are kept out while the driver may destroy it, whichever of theirs it hears last. What
 * another thread does is done in the driver's own call here.
 */
#include <stdio.h>

#include "hooks/context/contexts.h"
#include "memory/contexts.h"
#include "memory/pools.h"
#include "groups/rm.h"
#include "link/link.h"
#include "track/streams.h"
#include "window/window.h"

#define PRIMARY ((CUcontext)0x30)

void *qg_real[QG_NSYMBOLS];
bool qg_governed = true;
__thread int qg_depth;
unsigned qg_greens;

static unsigned references, ended, gone, left, leaving;
static bool ending, unguarded, fails;
static void (*meanwhile)(void); /* by another thread, before the driver gets to the release */

const char *qg_link_for_memory(struct qg_card *card)
{
    (void)card;
    return NULL;
}
void qg_room_held(struct qg_card *card)
{
    (void)card;
}
bool qg_room_awaited(struct qg_room *room)
{
    (void)room;
    return false;
}
void qg_room_over(const struct qg_room *room)
{
    (void)room;
}
void qg_observe_context(CUcontext context)
{
    (void)context;
}
CUcontext qg_green_owner(CUcontext context)
{
    return context;
}
void qg_greens_gone(CUcontext primary)
{
    (void)primary;
}
void qg_greens_after_fork(void)
{
}
void qg_window_context_gone(CUcontext context)
{
    (void)context;
}
void qg_pools_stale(void)
{
}
void qg_pools_poll(void)
{
}
bool qg_context_begins(CUdevice device, struct qg_making *making)
{
    (void)device;
    *making = (struct qg_making){.primary = -1};
    return true;
}
bool qg_primary_begins(CUdevice device, struct qg_making *making)
{
    (void)device;
    *making = (struct qg_making){.primary = -1};
    return true;
}
void qg_context_made(const struct qg_making *making, CUcontext context)
{
    (void)making, (void)context;
}
void qg_memory_context_ends(CUcontext context)
{
    (void)context;
}
void qg_memory_context_stays(CUcontext context)
{
    (void)context;
}
void qg_memory_context_gone(CUcontext context)
{
    (void)context;
}
void qg_streams_context_ends(CUcontext context)
{
    ending |= context == PRIMARY, ended++;
}
void qg_streams_context_stays(CUcontext context)
{
    ending &= context != PRIMARY;
}
void qg_streams_context_gone(CUcontext context)
{
    gone += context == PRIMARY, ending = false;
}
bool qg_context_refused(CUdevice device)
{
    (void)device;
    return false;
}
bool qg_have(unsigned symbol)
{
    return qg_real[symbol];
}
bool qg_rm_making(void)
{
    return false;
}
void qg_rm_context_made(bool counted, bool made)
{
    (void)counted, (void)made;
}
bool qg_rm_reports(void)
{
    return true;
}
bool qg_rm_leave(struct qg_card *card)
{
    return card && (left++, leaving++, true);
}
void qg_rm_left(struct qg_card *card)
{
    leaving -= card != NULL;
}
struct qg_card qg_cards[QG_MAX_CARDS];
struct qg_card *qg_card_current(void)
{
    return &qg_cards[0];
}
struct qg_card *qg_card_by_ordinal(int ordinal)
{
    return ordinal ? NULL : &qg_cards[0];
}
void qg_gate_wait(struct qg_card *card)
{
    (void)card;
}

static CUresult state(CUdevice device, unsigned int *flags, int *active)
{
    *flags = (unsigned)device;
    *active = references > 0;
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    (void)device;
    references++;
    *context = PRIMARY;
    return CUDA_SUCCESS;
}

static CUresult release_v2(CUdevice device) /* ours, to find out the handle */
{
    (void)device;
    references--;
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
    void (*other)(void) = meanwhile;
    (void)device;
    meanwhile = NULL;
    if (other)
        other();
    if (fails)
        return CUDA_ERROR_UNKNOWN;
    if (--references == 0)
        unguarded |= !ending || !leaving;
    return CUDA_SUCCESS;
}

#define CHECK(what)                                                                                \
    if (!(what)) {                                                                                 \
        printf("line %d: %s\n", __LINE__, #what);                                                  \
        return 1;                                                                                  \
    }

static void gives_one_back(void)
{
    cuDevicePrimaryCtxRelease(0);
}

static void takes_two_and_gives_one_back(void)
{
    CUcontext context;
    cuDevicePrimaryCtxRetain(&context, 0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuDevicePrimaryCtxRelease(0);
}

static int alone(void)
{
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && context == PRIMARY);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS && !ended && !left && !gone);
    fails = true;
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_UNKNOWN && ended == 1 && left == 1 && !gone &&
          !ending && !leaving);
    fails = false;
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS && ended == 2 && gone == 1 && !ending &&
          !leaving && !unguarded);
    return 0;
}

/* Two are left, and the second thread's call overtakes the first one's. */
static int at_once(void)
{
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
          cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    meanwhile = gives_one_back;
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS && references == 0);
    CHECK(!unguarded && gone == 2 && !ending && !leaving);
    return 0;
}

/* While the last one is given back another thread takes two and gives back one: it has nothing to
 * take back. */
static int in_between(void)
{
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    meanwhile = takes_two_and_gives_one_back;
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS && references == 1 && gone == 2 && !ending &&
          !leaving);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS && gone == 3 && !unguarded && !ending &&
          !leaving);
    return 0;
}

/* The same, but what came and went meanwhile leaves the first one's as the last after all. */
static void takes_one_and_gives_it_back(void)
{
    CUcontext context;
    cuDevicePrimaryCtxRetain(&context, 0);
    cuDevicePrimaryCtxRelease(0);
}

static int comes_and_goes(void)
{
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    meanwhile = takes_one_and_gives_it_back;
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS && references == 0);
    CHECK(!unguarded && gone == 4 && !ending && !leaving);
    return 0;
}

int main(void)
{
    qg_real[QG_SYM_cuDevicePrimaryCtxGetState] = (void *)state;
    qg_real[QG_SYM_cuDevicePrimaryCtxRetain] = (void *)retain;
    qg_real[QG_SYM_cuDevicePrimaryCtxRelease] = (void *)release;
    qg_real[QG_SYM_cuDevicePrimaryCtxRelease_v2] = (void *)release_v2;
    return alone() || at_once() || in_between() || comes_and_goes();
}
