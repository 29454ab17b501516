/* SPDX-License-Identifier: Apache-2.0
 *
 * How many blocks and clusters of a function fit on the card at a time: by threads, registers and
 * shared memory, in the units in which compute capability 9.0 gives them out.
 */
#include "cu_context.h"
#include "cu_launch.h"

#define SUBPARTITIONS 4    /* of a multiprocessor; each has its part of the registers */
#define REGISTER_UNIT 256  /* registers are given to a warp in such units */
#define SHARED_UNIT   128u /* bytes */
#define PORTABLE      8u   /* blocks of a cluster that every card with clusters takes */
#define LARGEST       16u

/* Multiprocessors of each GPC: the blocks of a cluster are within one. */
static const unsigned gpcs[] = {16, 16, 16, 16, 16, 16, 18, 18};

static size_t static_shared(CUfunction f)
{
    int bytes = f->attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];
    return bytes > 0 ? (size_t)bytes : 0;
}

/* What a launch may ask for. Without cuFuncSetAttribute() static and dynamic share 48 KiB. */
static size_t dynamic_limit(CUfunction f)
{
    int set = f->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
    size_t own = static_shared(f);
    if (set > 0)
        return (size_t)set;
    return own < CU_BLOCK_SHARED ? CU_BLOCK_SHARED - own : 0;
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static unsigned by_registers(CUfunction f, unsigned warps)
{
    int each = f->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS];
    if (each <= 0)
        return CU_SM_BLOCKS;
    unsigned warp = ((unsigned)each * CU_WARP + REGISTER_UNIT - 1) / REGISTER_UNIT * REGISTER_UNIT;
    return CU_SM_REGISTERS / SUBPARTITIONS / warp * SUBPARTITIONS / warps;
}

static unsigned by_shared(CUfunction f, size_t dynamic)
{
    size_t block = static_shared(f) + dynamic + CU_BLOCK_RESERVED;
    block = (block + SHARED_UNIT - 1) / SHARED_UNIT * SHARED_UNIT;
    return (unsigned)(CU_SM_SHARED / block);
}

unsigned cu_blocks_per_sm(CUfunction f, uint64_t threads, size_t dynamic)
{
    int most = f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
    if (!threads || threads > CU_BLOCK_THREADS || (most > 0 && threads > (uint64_t)most) ||
        dynamic > dynamic_limit(f))
        return 0;
    unsigned warps = (unsigned)(threads + CU_WARP - 1) / CU_WARP;
    unsigned by_warps = CU_SM_THREADS / CU_WARP / warps;
    return least(least(by_warps, CU_SM_BLOCKS),
                 least(by_registers(f, warps), by_shared(f, dynamic)));
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f,
                                                                      int threads, size_t shared,
                                                                      unsigned int flags)
{
    CU_TRY(cu_ready());
    CU_TRY(cu_function_ok(f));
    if (!blocks || threads <= 0 || flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = (int)cu_blocks_per_sm(f, (uint64_t)threads, shared);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads,
                                                             size_t shared)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, 0);
}

/* The largest of the block sizes with the most threads on a multiprocessor. */
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f,
                                                           CUoccupancyB2DSize size, size_t shared,
                                                           int limit, unsigned int flags)
{
    unsigned best = 0, best_blocks = 0;
    CU_TRY(cu_ready());
    CU_TRY(cu_function_ok(f));
    if (!grid || !block || limit < 0 || flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned most = limit ? least((unsigned)limit, CU_BLOCK_THREADS) : CU_BLOCK_THREADS;
    for (unsigned threads = most; threads; threads = (threads - 1) / CU_WARP * CU_WARP) {
        unsigned blocks = cu_blocks_per_sm(f, threads, size ? size((int)threads) : shared);
        if (blocks * threads > best_blocks * best) {
            best = threads;
            best_blocks = blocks;
        }
    }
    *block = (int)best;
    *grid = (int)(best_blocks * CU_SM_COUNT);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f,
                                                  CUoccupancyB2DSize size, size_t shared, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, f, size, shared, limit, 0);
}

CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction f, int blocks,
                                                         int threads)
{
    CU_TRY(cu_ready());
    CU_TRY(cu_function_ok(f));
    if (!bytes || blocks <= 0 || threads <= 0 ||
        cu_blocks_per_sm(f, (uint64_t)threads, 0) < (unsigned)blocks)
        return CUDA_ERROR_INVALID_VALUE;
    size_t each = CU_SM_SHARED / (size_t)blocks / SHARED_UNIT * SHARED_UNIT;
    size_t taken = static_shared(f) + CU_BLOCK_RESERVED, limit = dynamic_limit(f);
    each = each > taken ? each - taken : 0;
    *bytes = each < limit ? each : limit;
    return CUDA_SUCCESS;
}

/* ---- clusters ---- */

/* Blocks of the cluster that the function was compiled for; 0: none. */
static uint64_t required_cluster(CUfunction f)
{
    int x = f->attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH];
    int y = f->attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT];
    int z = f->attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH];
    return x > 0 && y > 0 && z > 0 ? (uint64_t)x * (uint64_t)y * (uint64_t)z : 0;
}

static uint64_t asked_cluster(const CUlaunchConfig *config)
{
    uint64_t blocks = 0;
    for (unsigned i = 0; config->attrs && i < config->numAttrs; i++) {
        const CUlaunchAttributeValue *value = &config->attrs[i].value;
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            blocks = (uint64_t)value->clusterDim.x * value->clusterDim.y * value->clusterDim.z;
    }
    return blocks;
}

static unsigned largest_cluster(CUfunction f)
{
    return f->attributes[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] ? LARGEST : PORTABLE;
}

static unsigned blocks_with(CUfunction f, const CUlaunchConfig *config)
{
    uint64_t plane = (uint64_t)config->blockDimX * config->blockDimY;
    uint64_t threads = plane > CU_BLOCK_THREADS ? plane : plane * config->blockDimZ;
    return cu_blocks_per_sm(f, threads, config->sharedMemBytes);
}

CUresult CUDAAPI cuOccupancyMaxActiveClusters(int *clusters, CUfunction f,
                                              const CUlaunchConfig *config)
{
    CU_TRY(cu_ready());
    CU_TRY(cu_function_ok(f));
    if (!clusters || !config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t asked = asked_cluster(config), required = required_cluster(f);
    uint64_t size = asked ? asked : required;
    if (!size || size > largest_cluster(f) || (required && size != required))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    unsigned each = blocks_with(f, config), found = 0;
    for (size_t i = 0; i < sizeof gpcs / sizeof gpcs[0]; i++)
        found += gpcs[i] * each / (unsigned)size;
    *clusters = (int)found;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int *size, CUfunction f,
                                                    const CUlaunchConfig *config)
{
    CU_TRY(cu_ready());
    CU_TRY(cu_function_ok(f));
    if (!size || !config)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t required = required_cluster(f);
    if (required > LARGEST)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    unsigned largest = blocks_with(f, config) ? largest_cluster(f) : 0;
    *size = required ? (int)required : (int)largest;
    return CUDA_SUCCESS;
}
