/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared memory that one side cannot pull away from the other, and grants that only root can have
 * made.
 */
#ifndef QG_SEAL_H
#define QG_SEAL_H

#include <stddef.h>
#include <sys/types.h>

#include "qgpu_abi.h"

/* Creates a zeroed memfd of `size` bytes, maps it writable and fixes its size. With `read_only`
 * nobody, not even its creator, can map or write it again; the returned mapping stays writable.
 * Returns 0 or a negative errno. */
int qg_shared_create(const char *name, size_t size, int read_only, int *fd, void **map);

/* The same for memory that both sides write, and that none can pull away: a memory file cannot be
 * sealed against holes without being sealed against writing, so this is a BPF array (no file
 * operations at all; Linux 5.5, CAP_BPF). Returns 0 or a negative errno. */
int qg_kept_create(const char *name, size_t size, int *fd, void **map);

/* Reads a grant from a descriptor that an untrusted process sent. It is believed only if it is a
 * memfd that belongs to `owner` (0) and is sealed against every change. Returns NULL, or why it is
 * not believed. */
const char *qg_grant_from_fd(int fd, uid_t owner, struct qg_grant *grant);

#endif
