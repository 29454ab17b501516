/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared memory that neither side can take away from the other. Also grants, which only root can
 * have made.
 */
#ifndef QG_SEAL_H
#define QG_SEAL_H

#include <stddef.h>
#include <sys/types.h>

#include "qgpu_abi.h"

/* Creates a zeroed memfd of `size` bytes, maps it writable and fixes its size. With `read_only`
 * no process, not even its creator, can map it writable or write it later; the returned mapping
 * stays writable.
 * Returns 0 or a negative errno. */
int qg_shared_create(const char *name, size_t size, int read_only, int *fd, void **map);

/* The same for memory that both sides write. A memory file can be sealed against holes only if it
 * is sealed against writing as well. So this is a BPF array (Linux 5.5, CAP_BPF). It has no file
 * operations that could make a hole. Returns 0 or a negative errno. */
int qg_kept_create(const char *name, size_t size, int *fd, void **map);

/* Reads a grant from a descriptor that an untrusted process sent. It must be a memory file that
 * `owner` (root) owns and that is sealed against every change. Returns NULL, or a sentence that
 * says why it is refused. */
const char *qg_grant_from_fd(int fd, uid_t owner, struct qg_grant *grant);

#endif
