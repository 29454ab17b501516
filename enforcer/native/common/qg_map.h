/* SPDX-License-Identifier: Apache-2.0
 *
 * Maps a page that the arbiter sent. First it checks that root made the page and that it cannot
 * shrink.
 */
#ifndef QG_MAP_H
#define QG_MAP_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "qg_root.h"

#ifndef F_SEAL_FUTURE_WRITE /* the kernel's value, which older headers lack */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define QG_SEALS_FIXED (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) /* every memory file has these */

/* May it be mapped? A memory file must be root's and have these seals and this size. A BPF array
 * (qg_kept_create) has neither a file's type nor seals. Its size is fixed, and mmap(2) checks
 * it. */
static inline bool qg_map_may(int fd, size_t size, int seals)
{
    struct stat st;
    int have = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &st) != 0 || !qg_is_root(st.st_uid))
        return false;
    if (have < 0)
        return (st.st_mode & S_IFMT) == 0 && !(seals & F_SEAL_FUTURE_WRITE);
    return (have & seals) == seals && st.st_size >= (off_t)size;
}

/* Maps the page. NULL if it is not root's page of that size, or cannot be mapped. */
static inline void *qg_map_page(int fd, size_t size, int seals, int protection)
{
    void *page =
        qg_map_may(fd, size, seals) ? mmap(NULL, size, protection, MAP_SHARED, fd, 0) : MAP_FAILED;
    return page == MAP_FAILED ? NULL : page;
}

#endif
