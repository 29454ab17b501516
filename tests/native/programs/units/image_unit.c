/* SPDX-License-Identifier: Apache-2.0
 *
 * The shim's reader of modules by itself, for tests under sanitizers. From stdin: a length in 4
 * bytes and an image, again and again; to stdout, for each: whether it could be read, the bytes of
 * its variables, and those of the managed ones. The image is read where it lies in memory of just
 * its length, and from a file; both must answer the same.
 */
#include "base/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARCH 90

static bool same(const struct qg_image *a, const struct qg_image *b)
{
    return a->variables == b->variables && a->managed == b->managed;
}

static bool from_file(const uint8_t *bytes, uint32_t size, struct qg_image *out)
{
    char path[64];
    int fd = memfd_create("image", 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
        abort();
    bool read = qg_image_in_file(path, ARCH, out);
    close(fd);
    return read;
}

/* Memory that ends with the image, as of a program whose image is cut: nothing may crash. */
static void at_the_end_of_memory(const uint8_t *bytes, uint32_t size)
{
    struct qg_image image;
    size_t page = 4096, room = (size + page) / page * page;
    char *map = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || munmap(map + room, page))
        abort();
    memcpy(map + room - size, bytes, size);
    qg_image_at(map + room - size, ARCH, &image);
    munmap(map, room);
}

int main(void)
{
    uint32_t size;
    while (fread(&size, sizeof(size), 1, stdin) == 1) {
        struct qg_image here, there;
        uint8_t *bytes = malloc(size ? size : 1);
        if (!bytes || fread(bytes, 1, size, stdin) != size)
            return 1;
        struct qg_image_source source = {QG_IMAGE_OWN, -1, (uint64_t)(uintptr_t)bytes, size};
        bool read = qg_image_sizes(&source, ARCH, &here);
        if (from_file(bytes, size, &there) != read || (read && !same(&here, &there)) ||
            (read && here.managed > here.variables))
            abort();
        at_the_end_of_memory(bytes, size);
        free(bytes);
        printf("%d %llu %llu\n", read, read ? (unsigned long long)here.variables : 0,
               read ? (unsigned long long)here.managed : 0);
        fflush(stdout);
    }
    return 0;
}
