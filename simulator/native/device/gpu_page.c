/* SPDX-License-Identifier: Apache-2.0
 *
 * The page that a process shares with the device side: faults that its libraries act out, and rules
 * for kernels. A process may scribble over its own; nothing that matters here is read back from it.
 */
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu.h"

bool gpu_page_open(struct gpu_conn *conn)
{
    if (conn->page)
        return true;
    int fd = memfd_create("qgpu-sim-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *map = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, sizeof(struct sim_page)) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        map = mmap(NULL, sizeof(struct sim_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    conn->page = map;
    conn->page_fd = fd;
    *conn->page = conn->gpu->page;
    conn->page->magic = SIM_MAGIC;
    return true;
}

void gpu_page_close(struct gpu_conn *conn)
{
    if (!conn->page)
        return;
    munmap(conn->page, sizeof *conn->page);
    close(conn->page_fd);
    conn->page = NULL;
}
