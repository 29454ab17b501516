/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors that stand for memory and look alike, as NVIDIA's driver gives them: all are one
 * character device. What tells them apart is the open file: who is sent a descriptor, or inherits
 * it, has the same open file as the process that exported it (docs/adr/0029).
 */
#ifndef QG_OPEN_FILES_H
#define QG_OPEN_FILES_H

#include <stdbool.h>
#include <stdint.h>

/* All but match are called under qg_allocation_lock. */

void qg_open_files_after_fork(void);

bool qg_open_file_is_device(int fd);

/* A name for memory that is exported by such a descriptor; it leads other processes to what this
 * one watches. pid: as the job page has it. 0: no other process could follow it. */
uint64_t qg_open_file_name(uint32_t pid);

/* Watches the open file of an exported descriptor, without keeping it open. False: it cannot be
 * watched. */
bool qg_open_file_watch(int fd, uint64_t name);

/* True: an open file that was exported under the name is still open, in whatever process. */
bool qg_open_file_is_open(uint64_t name);

/* True: the name leads to the process. */
bool qg_open_file_of(uint64_t name, uint32_t pid);

/* The name under which the process that made name `like` exported the open file of fd; 0: it did
 * not, or the kernel does not say. */
uint64_t qg_open_file_match(uint64_t like, int fd);

#endif
