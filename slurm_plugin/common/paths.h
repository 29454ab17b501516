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

/* A path is resolved name by name, and each name by a descriptor of the directory before. So what
 * was checked is what is used, whatever others rename meanwhile. Root must own each directory, each
 * link and the file, and others must not be able to write them. A sticky directory such as /tmp is
 * accepted: others cannot replace root's entries there. A FUSE file system of another user than
 * root is refused without a question to it.
 *
 * Returns an O_PATH descriptor, or -1 with errno and a sentence in why. `from` is the directory of
 * a relative path, which the caller has checked, or -1. */
enum {
    QG_NO_LAST_LINK = 1, /* a link at the end of the path is refused */
    QG_FOR_ALL = 2       /* all users must be able to reach and read it */
};
int qg_open_trusted(int from, const char *path, unsigned flags, char *why, size_t size);

/* The path of an open file, without links. */
bool qg_fd_path(int fd, char *out, size_t size);

/* Would qg_open_trusted open it? Only for paths that another program opens later. */
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
