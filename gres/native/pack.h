/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Packs a class and a count into one number. It needs nothing of Slurm, so that a test can run it
 * without Slurm.
 */
#ifndef QGPU_NATIVE_PACK_H
#define QGPU_NATIVE_PACK_H

#include <stdbool.h>
#include <stdint.h>

/* The numbers of classes, as slurmctld sends them to the node. */
enum qgn_class { QGN_NONE = 0, QGN_ONLINE = 1, QGN_OFFLINE = 2, QGN_OTHER = 15 };

/*
 * The number that the node gets for each gres of a job. It comes from slurmctld or from slurmd's
 * signed credential. Slurm's structure has no field for the Type. So the class is in the high bits
 * of the count. Only this plugin reads it. Bits 60..63 mark a packed number, with a value that no
 * real count has there; 56..59 are the class, 0..55 the count.
 */
#define QGN_COUNT_BITS 56
#define QGN_COUNT_MASK ((UINT64_C(1) << QGN_COUNT_BITS) - 1)
#define QGN_PACKED     UINT64_C(0xA)

uint64_t qgn_pack(uint64_t count, const char *type);
bool qgn_unpack(uint64_t packed, uint64_t *count, enum qgn_class *type);
const char *qgn_class_name(enum qgn_class type);
enum qgn_class qgn_class_of(const char *type);

#endif
