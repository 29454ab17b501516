/* SPDX-License-Identifier: Apache-2.0
 *
 * ioctl(2), for the whole process. A call to another device than the NVIDIA driver's passes after
 * one comparison. All other calls go to the kernel unchanged, and their results are read
 * afterwards. It is called from signal handlers, before any constructor, and in children of
 * vfork(2). So it uses no allocation, no thread-local state but errno, and no lock but the table's.
 *
 * It uses neither `syscall()` nor dlsym(RTLD_NEXT): only the system call itself is always
 * available.
 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>

#include "groups/rm.h"
#include "process/process.h"

/* Command of the driver: RM_GROUP_SCHEDULE for a single channel (qgpu_rm.h has the source). */
#define CHANNEL_SCHEDULE 0xa06f0103u
/* Number of the driver's call that wraps calls of other sizes (published kernel modules). */
#define XFER 211u

struct xfer {
    uint32_t number, size;
    uint64_t argument;
};

static bool passes; /* atomic: this process is not governed */

void qg_rm_watch(bool on)
{
    __atomic_store_n(&passes, !on, __ATOMIC_RELAXED);
}

__attribute__((always_inline)) static inline long kernel(int fd, unsigned long request,
                                                         void *argument)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(16L), "D"((long)fd), "S"(request), "d"(argument)
                     : "rcx", "r11", "memory");
    return result;
}

__attribute__((always_inline)) static inline int answer(long result)
{
    if (QG_LIKELY(result >= 0))
        return (int)result;
    errno = (int)-result;
    return -1;
}

/* hObjectError, hObjectEccError, hVASpace, engineType */
static uint32_t engine_of(uint32_t class_id, uint64_t params, uint32_t size)
{
    const struct rm_group_params *group = (const struct rm_group_params *)(uintptr_t)params;
    bool there = class_id == RM_CLASS_GROUP && params &&
                 (!size || size >= offsetof(struct rm_group_params, vgpu));
    return there ? group->engine : 0;
}

static void allocated(int fd, const void *argument, uint32_t size)
{
    const struct rm_alloc *a = argument; /* both begin alike; the status is at another place */
    const struct rm_alloc64 *wide = argument;
    bool is_wide = size == sizeof(*wide);
    if ((is_wide ? wide->status : a->status) != RM_OK)
        return;
    uint32_t engine =
        engine_of(a->class_id, a->params, is_wide ? wide->params_size : a->params_size);
    qg_rm_allocated(fd, a->client, a->parent, a->object, a->class_id, engine);
    qg_rm_changed();
}

static void controlled(int fd, const struct rm_control *c)
{
    const struct rm_schedule *schedule = (const struct rm_schedule *)(uintptr_t)c->params;
    if ((c->cmd == RM_GROUP_SCHEDULE || c->cmd == CHANNEL_SCHEDULE) && c->status == RM_OK &&
        schedule && c->params_size >= sizeof(*schedule) && schedule->enable) {
        qg_rm_scheduled(fd, c->client, c->object);
        qg_rm_changed();
    } else {
        qg_rm_used(fd, c->client);
    }
}

static void duplicated(int fd, const struct rm_dup *d)
{
    if (d->status != RM_OK)
        return;
    qg_rm_duplicated(fd, d->client, d->parent, d->object, d->client_from, d->object_from);
    qg_rm_changed();
}

static bool published(uint32_t number, uint32_t size)
{
    switch (number) {
    case RM_ESC_FREE:
        return size == sizeof(struct rm_free);
    case RM_ESC_ALLOC:
        return size == sizeof(struct rm_alloc) || size == sizeof(struct rm_alloc64);
    case RM_ESC_CONTROL:
        return size == sizeof(struct rm_control);
    case RM_ESC_DUP:
        return size == sizeof(struct rm_dup);
    default:
        return true;
    }
}

/* Read before the kernel has checked it, so a wild pointer must not crash us: the kernel answers
 * EFAULT for it. The first argument is invalid, so the kernel only copies. Checking the two ends is
 * enough for less than a page. */
static bool readable(const void *p, size_t size)
{
    for (int i = 0; i < 2; i++) {
        register unsigned long of_mask __asm__("r10") = sizeof(uint64_t);
        long result;
        __asm__ volatile("syscall"
                         : "=a"(result)
                         : "0"(14L /* rt_sigprocmask */), "D"(-1L),
                           "S"((uintptr_t)p + (i ? size - sizeof(uint64_t) : 0)), "d"(0L),
                           "r"(of_mask)
                         : "rcx", "r11", "memory");
        if (result == -EFAULT)
            return false;
    }
    return true;
}

__attribute__((noinline)) static long watched(int fd, unsigned long request, void *argument)
{
    uint32_t number = (uint32_t)request & 0xff, size = (uint32_t)request >> 16 & 0x3fff, serial = 0;
    const void *inner = argument;
    if (number == XFER && size == sizeof(struct xfer) && readable(argument, sizeof(struct xfer))) {
        const struct xfer *x = argument;
        number = x->number;
        size = x->size;
        inner = (const void *)(uintptr_t)x->argument;
    }
    if (!inner || (number != RM_ESC_ALLOC && number != RM_ESC_CONTROL && number != RM_ESC_FREE &&
                   number != RM_ESC_DUP))
        return kernel(fd, request, argument);
    bool known = published(number, size);
    const struct rm_free *f = inner;
    if (number == RM_ESC_FREE && known && readable(f, sizeof(*f)))
        serial = qg_rm_freeing(f->client, f->object);
    long result = kernel(fd, request, argument);
    if (result < 0 && serial)
        qg_rm_not_freed(f->client, f->object, serial);
    if (result < 0)
        return result;
    if (!known) {
        qg_rm_not_understood();
    } else if (number == RM_ESC_ALLOC) {
        allocated(fd, inner, size);
    } else if (number == RM_ESC_CONTROL) {
        controlled(fd, inner);
    } else if (number == RM_ESC_DUP) {
        duplicated(fd, inner);
    } else if (serial) {
        (f->status == RM_OK ? qg_rm_freed : qg_rm_not_freed)(f->client, f->object, serial);
        qg_rm_changed();
    }
    return result;
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    if (QG_LIKELY((request >> 8 & 0xff) != RM_MAGIC) || __atomic_load_n(&passes, __ATOMIC_RELAXED))
        return answer(kernel(fd, request, argument));
    int saved = errno; /* the table's own calls */
    long result = watched(fd, request, argument);
    errno = saved;
    return answer(result);
}
