/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor maps: arguments are checked as cuda.h says. The 128 bytes hold the arguments in an order
 * of our own; the card's is not public, and no kernel reads them here.
 */
#include "cu.h"

#include <string.h>

#define DIMENSIONS 5u
#define MAGIC      0x50414d5154u /* TQMAP */

struct map { /* in the place of CUtensorMap */
    uint64_t magic, address;
    uint32_t type, rank, interleave, swizzle, promotion, fill;
    uint32_t size[DIMENSIONS], box[DIMENSIONS]; /* im2col: channels, pixels, corners */
    uint64_t stride_sum;                        /* so that maps that differ do so here */
    uint32_t step[DIMENSIONS];
};
_Static_assert(sizeof(struct map) <= sizeof(CUtensorMap), "a map does not fit");

/* Bits of an element; 0: no such type. */
static unsigned bits_of(CUtensorMapDataType type)
{
    switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
        return 8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
        return 16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
        return 32;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
        return 64;
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B:
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B:
        return 4;
    case CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B:
        return 6;
    default:
        return 0;
    }
}

static bool is_float(CUtensorMapDataType type)
{
    return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

/* Packed with gaps: 16 bytes in shared memory for fewer in global memory. */
static bool has_gaps(CUtensorMapDataType type)
{
    return type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B ||
           type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
}

static unsigned swizzle_span(CUtensorMapSwizzle swizzle)
{
    return swizzle == CU_TENSOR_MAP_SWIZZLE_32B   ? 32
           : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                  : 128;
}

static bool modes_ok(const struct map *map)
{
    CUtensorMapDataType type = (CUtensorMapDataType)map->type;
    bool wide = map->interleave == CU_TENSOR_MAP_INTERLEAVE_32B;
    if (map->interleave > CU_TENSOR_MAP_INTERLEAVE_32B ||
        map->swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B ||
        map->promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
        map->fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
        return false;
    if (map->fill && !is_float(type))
        return false;
    if (wide && map->swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
        return false;
    if (type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B && map->interleave)
        return false;
    bool few = map->swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ||
               map->swizzle == CU_TENSOR_MAP_SWIZZLE_128B ||
               map->swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B ||
               (map->swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B &&
                type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B);
    return few || !has_gaps(type);
}

/* What address and strides are multiples of. */
static unsigned alignment(const struct map *map)
{
    return map->interleave == CU_TENSOR_MAP_INTERLEAVE_32B ||
                   has_gaps((CUtensorMapDataType)map->type)
               ? 32
               : 16;
}

static bool region_ok(struct map *map, const cuuint64_t *size, const cuuint64_t *strides,
                      const cuuint32_t *steps)
{
    CUtensorMapDataType type = (CUtensorMapDataType)map->type;
    if (map->address % alignment(map))
        return false;
    if ((has_gaps(type) && size[0] % 128) ||
        (type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B && size[0] % 2))
        return false;
    for (unsigned i = 0; i < map->rank; i++) {
        bool ignored = i == 0 && map->interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
        if (!size[i] || size[i] > 1ull << 31 || (!ignored && (!steps[i] || steps[i] > 8)))
            return false;
        map->size[i] = (uint32_t)(size[i] - 1);
        map->step[i] = ignored ? 1 : steps[i];
    }
    for (unsigned i = 0; i + 1 < map->rank; i++) {
        if (strides[i] % alignment(map) || strides[i] >= 1ull << 40)
            return false;
        map->stride_sum = map->stride_sum * 31 + strides[i];
    }
    return true;
}

/* The inner dimension of what is moved at a time. */
static bool inner_ok(const struct map *map, uint32_t elements)
{
    uint64_t bits = (uint64_t)elements * bits_of((CUtensorMapDataType)map->type);
    if (has_gaps((CUtensorMapDataType)map->type))
        return elements == 128;
    if (map->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
        return true;
    return bits % 128 == 0 && (map->swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ||
                               bits <= 8ull * swizzle_span((CUtensorMapSwizzle)map->swizzle));
}

static CUresult begin(const CUtensorMap *out, const struct map *map, unsigned least_rank,
                      const void *const *needed, size_t n)
{
    CU_TRY(cu_ready());
    for (size_t i = 0; i < n; i++)
        if (!needed[i])
            return CUDA_ERROR_INVALID_VALUE;
    bool ok = out && (uintptr_t)out % 64 == 0 && map->rank >= least_rank &&
              map->rank <= DIMENSIONS && bits_of((CUtensorMapDataType)map->type) && modes_ok(map);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult end(CUtensorMap *out, const struct map *map)
{
    memset(out, 0, sizeof *out);
    memcpy(out, map, sizeof *map);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank,
                                        void *address, const cuuint64_t *size,
                                        const cuuint64_t *strides, const cuuint32_t *box,
                                        const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle,
                                        CUtensorMapL2promotion promotion,
                                        CUtensorMapFloatOOBfill fill)
{
    struct map map = {
        MAGIC, (uint64_t)address, type, rank, interleave, swizzle, promotion, fill, {0}, {0}, 0,
        {0}};
    const void *needed[] = {address, size, box, steps, rank > 1 ? strides : size};
    unsigned least_rank = interleave == CU_TENSOR_MAP_INTERLEAVE_NONE ? 1 : 3;
    CU_TRY(begin(out, &map, least_rank, needed, sizeof needed / sizeof needed[0]));
    if (!region_ok(&map, size, strides, steps) || !inner_ok(&map, box[0]))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < rank; i++) {
        if (!box[i] || box[i] > 256)
            return CUDA_ERROR_INVALID_VALUE;
        map.box[i] = box[i];
    }
    return end(out, &map);
}

CUresult CUDAAPI cuTensorMapEncodeIm2col(CUtensorMap *out, CUtensorMapDataType type,
                                         cuuint32_t rank, void *address, const cuuint64_t *size,
                                         const cuuint64_t *strides, const int *lower,
                                         const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                         const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                         CUtensorMapSwizzle swizzle,
                                         CUtensorMapL2promotion promotion,
                                         CUtensorMapFloatOOBfill fill)
{
    struct map map = {
        MAGIC, (uint64_t)address, type, rank, interleave, swizzle, promotion, fill, {0}, {0}, 0,
        {0}};
    const void *needed[] = {address, size, strides, lower, upper, steps};
    CU_TRY(begin(out, &map, 3, needed, sizeof needed / sizeof needed[0]));
    if (!region_ok(&map, size, strides, steps) || !inner_ok(&map, channels) || !channels ||
        channels > 256 || !pixels || pixels > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    const int reach = rank == 3 ? 32768 : rank == 4 ? 128 : 16;
    for (unsigned i = 0; i + 2 < rank; i++) {
        if (lower[i] < -reach || lower[i] >= reach || upper[i] < -reach || upper[i] >= reach)
            return CUDA_ERROR_INVALID_VALUE;
        map.box[2 + i] = (uint32_t)lower[i] << 16 | (uint16_t)upper[i];
    }
    map.box[0] = channels;
    map.box[1] = pixels;
    return end(out, &map);
}

CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap *out, void *address)
{
    struct map map;
    CU_TRY(cu_ready());
    if (!out || !address || (uintptr_t)out % 64)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&map, out, sizeof map);
    map.address = (uint64_t)address;
    if (map.magic != MAGIC || map.address % alignment(&map))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(out, &map, sizeof map);
    return CUDA_SUCCESS;
}
