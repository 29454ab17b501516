/* SPDX-License-Identifier: Apache-2.0
 *
 * Is that user id the node's root, as this process sees it? A user namespace shows a stand-in
 * (overflowuid) for each user that it does not map. There the user himself may be number 0, so a
 * number alone proves nothing.
 */
#ifndef QG_ROOT_H
#define QG_ROOT_H

#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* How the node's root looks from here. The kernel made the one inode behind all epoll descriptors
 * when it booted, as root, and no mount can stand in its place (as it can for /proc/self/uid_map).
 */
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

/* In a namespace without root everybody who is not mapped looks alike. If this process is one of
 * them, its own files and sockets would look like root's: then nothing is believed. Number 0 is
 * believed there only of a node that lies as a whole in a namespace: a user who became number 0
 * himself cannot pass for its root. */
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
