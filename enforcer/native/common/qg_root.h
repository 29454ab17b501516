/* SPDX-License-Identifier: Apache-2.0
 *
 * Is that user id the node's root, as this process sees it? In a user namespace (containers without root) the
 * kernel shows a stand-in for users that the namespace does not map, which root of the node then is. There a user
 * could forge what only root can make elsewhere; he wins nothing that way, since the arbiter, outside, looks again.
 */
#ifndef QG_ROOT_H
#define QG_ROOT_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static inline bool qg_proc_line(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, out, size - 1);

    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return false;
    out[got] = '\0';
    return true;
}

static inline bool qg_is_root(uid_t uid)
{
    char text[64];
    unsigned long first[3] = {1, 1, 1};
    char *at = text;

    if (uid == 0)
        return true;
    if (!qg_proc_line("/proc/self/uid_map", text, sizeof(text)))
        return false;
    for (int i = 0; i < 3; i++)
        first[i] = strtoul(at, &at, 10);
    if (first[0] == 0 && first[1] == 0 && first[2] == 4294967295ul)
        return false; /* everybody is who he is */
    return qg_proc_line("/proc/sys/kernel/overflowuid", text, sizeof(text)) && uid == strtoul(text, NULL, 10);
}

#endif
