/* SPDX-License-Identifier: Apache-2.0
 *
 * Is a user id the node's root, as this process sees it? A user namespace shows one id
 * (overflowuid) for all users that it does not map. A user may have id 0 in a namespace of his own.
 * So a number alone proves nothing.
 */
#ifndef QG_ROOT_H
#define QG_ROOT_H

#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* The user id of the node's root, as this process sees it. When it boots, the kernel makes one
 * inode for all epoll descriptors. Root owns it. No mount can cover it, as one can cover
 * /proc/self/uid_map. */
static inline bool qg_root_here(uid_t *root)
{
    struct stat st;
    int fd = epoll_create1(EPOLL_CLOEXEC);
    bool known = fd >= 0 && fstat(fd, &st) == 0;

    if (fd >= 0)
        close(fd);
    if (known)
        *root = st.st_uid;
    return known;
}

/* In a namespace without root, all unmapped users have the same id. If this process has that id,
 * its own files and sockets would seem to be root's. Then no id counts as root. Id 0 counts as root
 * there only where this process is not 0 itself: then a whole node runs in a namespace. A user who
 * is id 0 in his own namespace cannot pass as its root. */
static inline bool qg_is_root(uid_t uid)
{
    uid_t root, real = getuid(), effective = geteuid();

    if (!qg_root_here(&root))
        return false;
    if (root == 0)
        return uid == 0;
    if (real == root || effective == root)
        return false;
    return uid == root || (uid == 0 && real != 0 && effective != 0);
}

#endif
