/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Class and count in one number; nothing of Slurm is needed for it, so that it is tested without.
 */
#ifndef QGPU_NATIVE_PACK_H
#define QGPU_NATIVE_PACK_H

#include <stdbool.h>
#include <stdint.h>

/* The classes as they travel to the node. */
enum qgn_class { QGN_NONE = 0, QGN_ONLINE = 1, QGN_OFFLINE = 2, QGN_OTHER = 15 };

/*
 * The number that slurmctld (or slurmd, from the signed credential) hands to the node for each gres
 * of a job. The structure has no field for the Type, so the class is in the high bits of the count,
 * which nobody but this plugin reads: bits 60..63 say that it is packed so, 56..59 are the class,
 * 0..55 the count.
 */
#define QGN_COUNT_BITS 56
#define QGN_COUNT_MASK ((UINT64_C(1) << QGN_COUNT_BITS) - 1)
#define QGN_PACKED     UINT64_C(0xA)

uint64_t qgn_pack(uint64_t count, const char *type);
bool qgn_unpack(uint64_t packed, uint64_t *count, enum qgn_class *type);
const char *qgn_class_name(enum qgn_class type);
enum qgn_class qgn_class_of(const char *type);

#endif
