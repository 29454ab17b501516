/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths that root acts on: the node name put into a configured path, and directories opened only if
 * nobody but root can have tampered with them. Shared by the hook client and the SPANK plugin.
 */
#ifndef QGPU_PATHS_H
#define QGPU_PATHS_H

#include <stdbool.h>
#include <stddef.h>

/* A Slurm node name as we accept it in a path or in an argument: [A-Za-z0-9._-]+, not starting with
 * a dot. */
bool qg_node_name_ok(const char *node);

/* Copies pattern to out with each %n replaced by node. False: it does not fit, or node is needed
 * and bad. */
bool qg_expand_node(const char *pattern, const char *node, char *out, size_t size);

/* Whether root alone can change the file, every directory on the way and every link, which is
 * followed by hand. In a sticky directory such as /tmp others cannot replace what is root's. False
 * with errno and a sentence in why. */
bool qg_path_trusted(const char *path, char *why, size_t size);

/* Opens path as a directory that only root can change: owned by root, not writable by group or
 * others, and so is every parent (a sticky directory such as /tmp is accepted as a parent). Returns
 * the descriptor, or -1 with errno set and a sentence in why. */
int qg_open_trusted_dir(const char *path, char *why, size_t size);

#endif
