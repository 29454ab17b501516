/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the NVIDIA driver's control interface that qgpu speaks: ioctl(2) on the control
 * device, as published with the open kernel modules (535 to 595). Declared here from the documented
 * layouts, so that nothing of theirs is needed to build; every size is pinned, and a driver whose
 * sizes differ is left alone. docs/specs/hardware.md explains each.
 *
 * Words: a client is what one open file of the control device made; objects hang below it by
 * handles that the client chose. device > subdevice, device > channel group (TSG) > channel. Only
 * the file that made a client may use it.
 */
#ifndef QGPU_RM_H
#define QGPU_RM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

/* ioctl numbers below 'F' */
enum {
    RM_ESC_FREE = 0x29,
    RM_ESC_CONTROL = 0x2a,
    RM_ESC_ALLOC = 0x2b,
    RM_ESC_DUP = 0x34,
    RM_ESC_SHARE = 0x35
};
#define RM_MAGIC 'F'

enum rm_class {
    RM_CLASS_ROOT = 0x0, /* a client; the next two as well */
    RM_CLASS_ROOT_NON_PRIV = 0x1,
    RM_CLASS_ROOT_CLIENT = 0x41,
    RM_CLASS_DEVICE = 0x80,
    RM_CLASS_SUBDEVICE = 0x2080,
    RM_CLASS_GROUP = 0xa06c /* KEPLER_CHANNEL_GROUP_A: the TSG class of every card since Kepler */
};
/* GPFIFO channel classes end in 6f: c36f Volta, c46f Turing, c56f Ampere, c86f Hopper, c96f, ca6f
 * Blackwell. */
#define RM_IS_CHANNEL(class_id) (((class_id) & 0xffu) == 0x6fu && (class_id) > 0xff)

enum {
    RM_ENGINE_GRAPHICS = 1,
    RM_ENGINE_GRAPHICS_LAST = 8,
    RM_ENGINE_COPY0 = 9,
    RM_ENGINE_COPY9 = 18
};

/* NV_STATUS */
enum rm_status {
    RM_OK = 0,
    RM_DUPLICATE_NAME = 0x19, /* the handle is taken */
    RM_NO_RESOURCES = 0x1a,
    RM_NO_PERMISSION = 0x1b,
    RM_BAD_ARGUMENT = 0x1f,
    RM_BAD_CLASS = 0x22,
    RM_BAD_CLIENT = 0x23,
    RM_BAD_COMMAND = 0x24,
    RM_BAD_HANDLE = 0x33,
    RM_BAD_NEW_HANDLE = 0x34,
    RM_BAD_PARENT = 0x36,
    RM_BAD_PARAMS = 0x3a,
    RM_BAD_POINTER = 0x3d,
    RM_BAD_STATE = 0x40,
    RM_NOT_SUPPORTED = 0x56,
    RM_NOT_FOUND = 0x57,
    RM_TIMEOUT = 0x65
};

struct rm_free { /* NVOS00 */
    uint32_t client, parent, object, status;
};
struct rm_alloc { /* NVOS21 */
    uint32_t client, parent, object, class_id;
    uint64_t params;
    uint32_t params_size, status;
};
struct rm_alloc64 { /* NVOS64 */
    uint32_t client, parent, object, class_id;
    uint64_t params, rights;
    uint32_t params_size, flags, status, pad;
};
struct rm_control { /* NVOS54 */
    uint32_t client, object, cmd, flags;
    uint64_t params;
    uint32_t params_size, status;
};
struct rm_dup { /* NVOS55 */
    uint32_t client, parent, object, client_from, object_from, flags, status;
};
#define RM_FREE    _IOWR(RM_MAGIC, RM_ESC_FREE, struct rm_free)
#define RM_ALLOC   _IOWR(RM_MAGIC, RM_ESC_ALLOC, struct rm_alloc)
#define RM_ALLOC64 _IOWR(RM_MAGIC, RM_ESC_ALLOC, struct rm_alloc64)
#define RM_CONTROL _IOWR(RM_MAGIC, RM_ESC_CONTROL, struct rm_control)
#define RM_DUP     _IOWR(RM_MAGIC, RM_ESC_DUP, struct rm_dup)

/* parameters of allocations */
struct rm_device_params { /* NV0080_ALLOC_PARAMETERS */
    uint32_t device, client_share, target_client, target_device, flags;
    uint32_t pad0;
    uint64_t va_size, va_start, va_limit;
    uint32_t va_mode, pad1;
};
struct rm_group_params { /* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
    uint32_t error, ecc_error, va_space, engine;
    uint8_t vgpu, pad[3];
};

/* control commands; of a group: */
#define RM_GROUP_SCHEDULE      0xa06c0101u
#define RM_GROUP_SET_TIMESLICE 0xa06c0103u
#define RM_GROUP_GET_TIMESLICE 0xa06c0104u
#define RM_GROUP_PREEMPT       0xa06c0105u
#define RM_GROUP_GET_INFO      0xa06c0106u
/* of a subdevice: */
#define RM_SUBDEVICE_DISABLE_CHANNELS    0x2080110bu
#define RM_SUBDEVICE_GET_GID             0x2080014au
#define RM_SUBDEVICE_SET_PREEMPTION_MODE 0x20801210u
/* of a client: */
#define RM_CLIENT_HANDLE_INFO 0x00000d02u

struct rm_schedule {
    uint8_t enable, skip_submit, skip_enable;
};
struct rm_timeslice {
    uint64_t us;
};
struct rm_preempt {
    uint8_t wait, manual_timeout, pad[2];
    uint32_t timeout_us; /* at most 1 s */
};
struct rm_group_info {
    uint32_t group_id;
};
#define RM_MAX_DISABLED 64u
struct rm_disable_channels {
    uint8_t disable, pad0[3];
    uint32_t count;
    uint8_t only_scheduling, rewind, pad1[6];
    uint64_t event; /* kernel only: zero */
    uint32_t clients[RM_MAX_DISABLED];
    uint32_t channels[RM_MAX_DISABLED];
};
struct rm_preemption_mode { /* NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS */
    uint32_t flags, channel, graphics, compute; /* compute: enum rm_preemption, with this flag: */
    uint32_t route_flags, pad;
    uint64_t route;
};
#define RM_PREEMPT_SET_COMPUTE 1u
enum rm_preemption { RM_PREEMPT_WFI, RM_PREEMPT_CTA, RM_PREEMPT_CILP };
struct rm_gid { /* flags: 2 = binary; the card's UUID, 16 bytes */
    uint32_t index, flags, length;
    uint8_t data[256];
};
#define RM_GID_BINARY 2u
struct rm_handle_info {
    uint32_t object, index; /* index: what is asked */
    uint64_t result;
};
enum { RM_HANDLE_PARENT = 1, RM_HANDLE_CLASS = 2 };

#define RM_PIN(type, size) _Static_assert(sizeof(type) == (size), #type " changed its size")
RM_PIN(struct rm_free, 16);
RM_PIN(struct rm_alloc, 32);
RM_PIN(struct rm_alloc64, 48);
RM_PIN(struct rm_control, 32);
RM_PIN(struct rm_dup, 28);
RM_PIN(struct rm_device_params, 56);
RM_PIN(struct rm_group_params, 20);
RM_PIN(struct rm_schedule, 3);
RM_PIN(struct rm_preempt, 8);
RM_PIN(struct rm_disable_channels, 536);
RM_PIN(struct rm_preemption_mode, 32);
RM_PIN(struct rm_gid, 268);
RM_PIN(struct rm_handle_info, 16);
_Static_assert(offsetof(struct rm_disable_channels, event) == 16, "event moved");
_Static_assert(RM_CONTROL == 0xc020462au && RM_ALLOC64 == 0xc030462bu,
               "numbers of the published interface");

#endif
