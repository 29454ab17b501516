/* SPDX-License-Identifier: Apache-2.0
 *
 * Compressed entries of fatbins. The libraries are opened when the first such entry is met: a node
 * without them needs none.
 */
#include "cu_image.h"

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

CUresult cu_image_unpack(enum cu_image_packing packing, const void *from, size_t size, void *to,
                         size_t room, const char **lacks)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    size_t got = 0;
    pthread_once(&once, open_libraries);
    if (packing == CU_IMAGE_LZ4 ? !lz4 : !zstd) {
        *lacks = packing == CU_IMAGE_LZ4 ? "liblz4.so.1" : "libzstd.so.1";
        return CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    }
    if (size > INT_MAX || room > INT_MAX)
        return CUDA_ERROR_INVALID_IMAGE;
    if (packing == CU_IMAGE_LZ4) {
        int done = lz4(from, to, (int)size, (int)room);
        got = done < 0 ? 0 : (size_t)done;
    } else {
        got = zstd(to, room, from, size); /* an error is a number above any size */
    }
    return got == room ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}
