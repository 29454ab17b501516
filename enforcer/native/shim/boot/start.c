/* SPDX-License-Identifier: Apache-2.0
 *
 * The start of the shim. Its constructor runs in every process of the job, and most of them never
 * use a card. So it only reads the grant. The driver is opened at the first call, and the arbiter
 * is asked after the first cuInit. Where the cards of the job are is looked up then, as the job may
 * have been moved while the process, or the parent that forked it, used none.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "process/pages.h"
#include "groups/rm.h"
#include "base/message.h"
#include "process/process.h"
#include "track/waiters.h"
#include "window/window.h"
#include "boot/boot.h"
#include "link/link.h"
#include "register/register.h"

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static bool started;

void qg_start_after_fork(void)
{
    pthread_mutex_init(&start_lock, NULL);
    started = false;
}

static void load(void)
{
    qg_grant_read(&qg_info);
    qg_governed = qg_info.mode == QG_MODE_GOVERNED && qg_info.grant.state == QG_GRANT_ACTIVE;
    if (qg_info.mode == QG_MODE_GOVERNED)
        qg_driver_path(qg_info.grant.driver_path);
    if (qg_info.mode == QG_MODE_GOVERNED && !qg_governed)
        qg_info.mode = QG_MODE_NONE; /* whole cards: nothing to govern */
    qg_cards_forget();
    qg_rm_watch(qg_governed);
    if (qg_governed)
        pthread_atfork(NULL, NULL, qg_after_fork);
}

static pthread_once_t load_once = PTHREAD_ONCE_INIT;

__attribute__((constructor)) void qg_load(void)
{
    pthread_once(&load_once, load);
}

/* Compares the 32 hexadecimal digits. CUDA does not report the prefix (GPU- or MIG-). */
static bool same_uuid(const char *text, const CUuuid *uuid)
{
    static const char digits[] = "0123456789abcdef";
    const char *dash = strchr(text, '-');
    const char *at = dash ? dash + 1 : text;
    for (unsigned i = 0; i < 32; i++) {
        while (*at == '-')
            at++;
        unsigned char byte = (unsigned char)uuid->bytes[i / 2];
        char want = digits[i % 2 ? byte & 15 : byte >> 4];
        if (tolower((unsigned char)*at++) != want)
            return false;
    }
    return *at == 0;
}

static bool uuid_of(CUdevice device, CUuuid *uuid)
{
    /* Version 2 names a MIG instance where version 1 names the card that contains it. */
    if (QG_HAVE(cuDeviceGetUuid_v2) && QG_REAL(cuDeviceGetUuid_v2)(uuid, device) == CUDA_SUCCESS)
        return true;
    return QG_REAL(cuDeviceGetUuid)(uuid, device) == CUDA_SUCCESS;
}

static void find_cards(void)
{
    int count = 0;
    if (QG_REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return;
    for (int ordinal = 0; ordinal < count && ordinal < QG_MAX_ORDINALS; ordinal++) {
        CUdevice device;
        CUuuid uuid;
        if (QG_REAL(cuDeviceGet)(&device, ordinal) != CUDA_SUCCESS || !uuid_of(device, &uuid))
            continue;
        for (uint32_t i = 0; i < qg_info.grant.ncards; i++) {
            if (device < 0 || device >= QG_MAX_ORDINALS ||
                !same_uuid(qg_cards[i].grant->uuid, &uuid))
                continue;
            qg_card_of_ordinal[device] = (int8_t)i;
            qg_cards[i].visible = true;
            qg_cards[i].ordinal = device;
        }
    }
}

static uint64_t tick_rate(void)
{
    uint64_t ns = qg_now_ns(), tick = qg_tick();
    while (qg_now_ns() - ns < 100000)
        ;
    uint64_t took_ns = qg_now_ns() - ns;
    return (qg_tick() - tick) * 1000000u / took_ns;
}

/* The tick's rate against the kernel's clock, once per process: the median of three, because the
 * kernel may take the processor away between the two clocks. */
static void measure_tick(void)
{
    uint64_t a = tick_rate(), b = tick_rate(), c = tick_rate();
    uint64_t low = a < b ? a : b, high = a < b ? b : a;
    uint64_t middle = c < low ? low : c > high ? high : c;
    qg_ticks_per_ms = middle ? middle : 1;
}

void qg_started(void)
{
    if (!qg_governed)
        return;
    if (!__atomic_load_n(&started, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&start_lock);
        if (!started) {
            qg_depth++;
            measure_tick();
            qg_grant_refresh(&qg_info);
            find_cards();
            qg_lanes_register();
            qg_register_start();
            qg_depth--;
            __atomic_store_n(&started, true, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&start_lock);
    }
    qg_link_first(); /* without the lock: a signal handler may jump out of any wait */
}
