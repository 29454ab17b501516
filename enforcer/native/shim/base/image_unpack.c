/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed parts of containers. The system's libraries are opened when the first such part is met;
 * nearly every distribution has them, since its package manager needs them. Without them the size
 * of packed modules is not known.
 */
#include "base/image.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>

typedef int lz4_decompress(const char *from, char *to, int size, int room);
typedef size_t zstd_decompress(void *to, size_t room, const void *from, size_t size);

static lz4_decompress *lz4;
static zstd_decompress *zstd;

static void open_libraries(void)
{
    void *library = dlopen("liblz4.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library)
        *(void **)&lz4 = dlsym(library, "LZ4_decompress_safe");
    library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library)
        *(void **)&zstd = dlsym(library, "ZSTD_decompress");
}

bool qg_image_unpack(enum qg_image_packing packing, const void *from, size_t size, void *to,
                     size_t room)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_libraries);
    if (size > INT_MAX || room > INT_MAX)
        return false;
    if (packing == QG_IMAGE_LZ4)
        return lz4 && lz4(from, to, (int)size, (int)room) == (int)room;
    /* an error is a number above any size */
    return packing == QG_IMAGE_ZSTD && zstd && zstd(to, room, from, size) == room;
}
