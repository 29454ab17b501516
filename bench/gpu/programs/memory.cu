/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes memory of one kind in equal steps until it is refused (or --until bytes are held, so that a missing cap does no harm), says
 * with which error, frees all, and takes half of it again.
 * usage: memory malloc|pitch|array|async|vmm|managed STEP UNTIL [HOLD_SECONDS]
 */
#include "common.cuh"

#include <cuda.h>
#include <unistd.h>

struct Piece {
    void *p = nullptr;
    cudaArray_t array = nullptr;
    CUmemGenericAllocationHandle handle = 0;
};

static size_t step;
static decltype(&cuMemCreate) create;
static decltype(&cuMemRelease) release;

static int take_vmm(Piece *piece)
{
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return (int)create(&piece->handle, step, &prop, 0);
}

static int take(const char *kind, Piece *piece)
{
    size_t pitch;
    cudaError_t status;
    if (!strcmp(kind, "vmm"))
        return take_vmm(piece);
    if (!strcmp(kind, "pitch"))
        status = cudaMallocPitch(&piece->p, &pitch, 4096, step / 4096);
    else if (!strcmp(kind, "array")) {
        cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
        status = cudaMallocArray(&piece->array, &format, 16384, step / 65536);
    } else if (!strcmp(kind, "async")) {
        status = cudaMallocAsync(&piece->p, step, 0);
        if (status == cudaSuccess)
            status = cudaStreamSynchronize(0);
    } else if (!strcmp(kind, "managed"))
        status = cudaMallocManaged(&piece->p, step);
    else
        status = cudaMalloc(&piece->p, step);
    cudaGetLastError(); /* an error of an allocation is not sticky; forget it */
    return (int)status;
}

static void give(const char *kind, Piece *piece)
{
    if (piece->handle)
        release(piece->handle);
    else if (piece->array)
        CHECK(cudaFreeArray(piece->array));
    else if (!strcmp(kind, "async"))
        CHECK(cudaFreeAsync(piece->p, 0));
    else
        CHECK(cudaFree(piece->p));
}

static size_t fill(const char *kind, std::vector<Piece> &held, size_t until, int *error)
{
    Piece piece;
    while (held.size() * step < until && (*error = take(kind, &piece)) == 0) {
        held.push_back(piece);
        piece = Piece();
    }
    return held.size() * step;
}

static void drain(const char *kind, std::vector<Piece> &held)
{
    for (Piece &piece : held)
        give(kind, &piece);
    held.clear();
    CHECK(cudaDeviceSynchronize());
    if (!strcmp(kind, "async")) { /* a pool keeps what was freed; hand it back so that the second half is new */
        cudaMemPool_t pool;
        CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
        CHECK(cudaMemPoolTrimTo(pool, 0));
    }
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: memory malloc|pitch|array|async|vmm|managed STEP UNTIL [HOLD_SECONDS]\n");
        return 2;
    }
    const char *kind = argv[1];
    size_t until = strtoull(argv[3], nullptr, 10), free_before, total;
    step = strtoull(argv[2], nullptr, 10);
    std::vector<Piece> held;
    int first = 0, second = 0;
    CHECK(cudaFree(0));
    if (!strcmp(kind, "vmm")) {
        cudaDriverEntryPointQueryResult found;
        CHECK(cudaGetDriverEntryPointByVersion("cuMemCreate", (void **)&create, 10020, cudaEnableDefault, &found));
        CHECK(cudaGetDriverEntryPointByVersion("cuMemRelease", (void **)&release, 10020, cudaEnableDefault, &found));
    }
    CHECK(cudaMemGetInfo(&free_before, &total));
    size_t bytes = fill(kind, held, until, &first);
    printf("{\"holding\": %zu}\n", bytes);
    fflush(stdout);
    if (argc > 4)
        usleep((useconds_t)(atof(argv[4]) * 1e6));
    drain(kind, held);
    size_t again = fill(kind, held, bytes / 2, &second);
    drain(kind, held);
    printf("{\"kind\": \"%s\", \"bytes\": %zu, \"code\": %d, \"error\": \"%s\", \"again\": %zu, \"total\": %zu, \"free\": %zu}\n",
           kind, bytes, first, cudaGetErrorName((cudaError_t)first), again, total, free_before);
    return 0;
}
