/* SPDX-License-Identifier: Apache-2.0
 *
 * Recognises the driver's control device among descriptors that users send. It asks no file system
 * about them: a FUSE file system of the sender may never answer.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/base.h"
#include "fds/fds.h"

#ifndef AT_STATX_DONT_SYNC /* the kernel's value, which older headers lack */
#define AT_STATX_DONT_SYNC 0x4000
#endif

/* Is it the control device that qgpud named? An O_PATH descriptor has the same numbers, but no call
 * of the driver works on it. */
bool hw_is_control(const struct qg_ctl_hardware *s, int fd)
{
    struct statx st;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || flags & O_PATH || (flags & O_ACCMODE) == O_WRONLY)
        return false;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &st) != 0)
        return false;
    if (s->ctl_rdev)
        return S_ISCHR(st.stx_mode) && makedev(st.stx_rdev_major, st.stx_rdev_minor) == s->ctl_rdev;
    return makedev(st.stx_dev_major, st.stx_dev_minor) == s->ctl_dev && st.stx_ino == s->ctl_ino;
}
