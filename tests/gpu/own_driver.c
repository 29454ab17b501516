/* A libcuda.so.1 for the test of bench/gpu/experiments/own.c: its calls make the control calls that
 * a real one makes, and the kernel that answers them is the function syscall() below. What is done
 * to a handle that was never allocated goes to QGPU_OWN_LOG. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    ROOT = 0xc1d00001u,
    GROUP = 0x5c000010u,
    COPY = 0x5c000020u,
    GONE = 0x5c000030u,
    INVALID_OBJECT = 0x57
};

static uint64_t slice_us[2] = {1024, 2048};
static int control_fd = -1;

static void told(const char *text, unsigned a, unsigned b)
{
    const char *path = getenv("QGPU_OWN_LOG");
    FILE *log = path ? fopen(path, "ae") : NULL;
    if (log) {
        fprintf(log, "%s 0x%x 0x%x\n", text, a, b);
        fclose(log);
    }
}

static uint32_t control(uint32_t client, uint32_t object, uint32_t cmd, void *params)
{
    told("control", object, cmd);
    if (client != ROOT || (object != GROUP && object != COPY))
        return INVALID_OBJECT;
    uint64_t *slice = &slice_us[object == COPY];
    if (cmd == 0xa06c0104u)
        memcpy(params, slice, sizeof *slice);
    else if (cmd == 0xa06c0103u)
        memcpy(slice, params, sizeof *slice);
    else if (cmd == 0xa06c0106u)
        memcpy(params, &(uint32_t){7}, 4);
    return 0;
}

__attribute__((visibility("default"))) long syscall(long number, ...)
{
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number != SYS_ioctl || (int)a[0] != control_fd) {
        static long (*real)(long, ...);
        if (!real)
            *(void **)&real = dlsym(RTLD_NEXT, "syscall");
        return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    uint32_t *word = (uint32_t *)a[2];
    if ((a[1] & 0xff) == 0x2a) {
        uint64_t params;
        memcpy(&params, word + 4, sizeof params);
        word[7] = control(word[0], word[1], word[2], (void *)(uintptr_t)params);
    }
    return 0;
}

static void allocate(uint32_t root, uint32_t parent, uint32_t object, uint32_t class_id,
                     uint32_t engine)
{
    uint32_t group[8] = {0, 0, 0, engine}, call[8] = {root, parent, object, class_id};
    uint64_t params = (uintptr_t)group;
    memcpy(call + 4, &params, sizeof params);
    ioctl(control_fd, _IOWR('F', 0x2b, call), call);
}

int cuInit(unsigned flags)
{
    (void)flags;
    control_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    allocate(0, 0, ROOT, 0x41, 0);
    return control_fd < 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    uint32_t freed[4] = {ROOT, ROOT, GONE, 0},
             failed[8] = {ROOT, ROOT, 0x5c0000ff, 0xa06c, 0, 0, 0, INVALID_OBJECT};
    (void)device;
    *context = context;
    allocate(ROOT, ROOT, 0x5c000003u, 0x2080, 0);
    allocate(ROOT, ROOT, GROUP, 0xa06c, 1);
    allocate(ROOT, GROUP, 0x5c000011u, 0xc86f, 0);
    allocate(ROOT, ROOT, COPY, 0xa06c, 9);
    allocate(ROOT, ROOT, GONE, 0xa06c, 1);
    ioctl(control_fd, _IOWR('F', 0x29, freed), freed);
    ioctl(control_fd, _IOWR('F', 0x2b, failed), failed);
    return 0;
}

int cuCtxSetCurrent(void *context)
{
    return context == NULL;
}

int cuMemAlloc_v2(uint64_t *p, size_t size)
{
    *p = size;
    return 0;
}

int cuMemsetD8_v2(uint64_t p, unsigned char value, size_t size)
{
    return p != size || !value;
}

int cuCtxSynchronize(void)
{
    return 0;
}
