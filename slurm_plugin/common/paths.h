/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths that root acts on: a node name is put into a configured path. A directory is opened only if
 * root alone can have changed it. The hook client and the SPANK plugin use this.
 */
#ifndef QGPU_PATHS_H
#define QGPU_PATHS_H

#include <stdbool.h>
#include <stddef.h>

/* Is it a Slurm node name that may be part of a path or an argument? [A-Za-z0-9._-]+, not starting
 * with a dot, shorter than 64 characters. */
bool qg_node_name_ok(const char *node);

/* Copies pattern to out and replaces each %n by node. False: it does not fit, or it needs node and
 * that is no valid name. */
bool qg_expand_node(const char *pattern, const char *node, char *out, size_t size);

/* Can root alone change the file, every directory on its path and every symbolic link? Links are
 * followed one by one. A sticky directory such as /tmp is accepted: others cannot replace root's
 * entries there. False with errno and a sentence in why. */
bool qg_path_trusted(const char *path, char *why, size_t size);

/* Opens path as a directory that only root can change. Root owns it, and neither group nor others
 * can write it. The same holds for every parent; a sticky directory such as /tmp is accepted there.
 * Returns the descriptor, or -1 with errno set and a sentence in why. */
int qg_open_trusted_dir(const char *path, char *why, size_t size);

/* Opens RUN_DIR/name, a directory that root alone can change. With `mode` it is made where it is
 * missing. Returns the descriptor, or -1 with errno set and a sentence in why. */
int qg_open_own_dir(const char *run_dir, const char *name, unsigned mode, char *why, size_t size);

/* Writes a file of that directory at once: it is there whole, or not at all. False with errno. */
bool qg_leave_file(int dir, const char *name, unsigned mode, const char *text);

#endif
