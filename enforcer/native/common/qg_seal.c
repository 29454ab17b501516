/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared memory with a fixed size, and grants; qg_seal.h describes each function.
 */
#include "qg_seal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE /* the kernel's value, which older headers lack */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define GRANT_SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

int qg_shared_create(const char *name, size_t size, int read_only, int *fd, void **map)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (read_only ? F_SEAL_FUTURE_WRITE : 0);
    int err;
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return -errno;
    *map = MAP_FAILED;
    if (ftruncate(*fd, (off_t)size) != 0)
        goto fail;
    *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, *fd, 0);
    if (*map == MAP_FAILED)
        goto fail;
    if (fcntl(*fd, F_ADD_SEALS, seals) != 0)
        goto fail;
    return 0;
fail:
    err = -errno;
    if (*map != MAP_FAILED)
        munmap(*map, size);
    close(*fd);
    *fd = -1;
    *map = NULL;
    return err;
}

/* A BPF array with one element. The kernel keeps it in whole pages. It never swaps, moves or frees
 * them while a descriptor or mapping is left. */
int qg_kept_create(const char *name, size_t size, int *fd, void **map)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = sizeof(uint32_t);
    attr.value_size = (uint32_t)size;
    attr.max_entries = 1;
    attr.map_flags = BPF_F_MMAPABLE;
    strncpy(attr.map_name, name, sizeof(attr.map_name) - 1);
    *map = NULL;
    /* The kernel makes all BPF descriptors close-on-exec. */
    *fd = (int)syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof(attr));
    if (*fd < 0)
        return -errno;
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (page == MAP_FAILED) {
        int err = -errno;
        close(*fd);
        *fd = -1;
        return err;
    }
    *map = page;
    return 0;
}

/* F_GET_SEALS works on memory files only. A file of a user's own FUSE file system can claim root as
 * its owner. It is refused here. */
const char *qg_grant_from_fd(int fd, uid_t owner, struct qg_grant *grant)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & GRANT_SEALS) != GRANT_SEALS)
        return "the descriptor is not a sealed memory file";
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return "the descriptor is not a regular file";
    if (st.st_uid != owner)
        return "root did not make the grant";
    if (st.st_size != (off_t)sizeof(*grant))
        return "the grant has a wrong size";
    if (pread(fd, grant, sizeof(*grant), 0) != (ssize_t)sizeof(*grant))
        return "the grant cannot be read";
    if (grant->magic != QG_MAGIC || grant->version != QG_GRANT_VERSION ||
        grant->size != sizeof(*grant))
        return "the grant has another version";
    if (grant->ncards > QG_MAX_CARDS)
        return "the grant names too many cards";
    return NULL;
}
