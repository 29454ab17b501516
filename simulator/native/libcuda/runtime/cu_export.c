/* SPDX-License-Identifier: Apache-2.0
 *
 * cuGetExportTable: the tables that NVIDIA's runtime, cuBLASLt and cuFFT ask for. A slot is an
 * 8-byte word; the first one is the table's size in bytes, but for the storage table. What is not
 * served refuses, so that a new library shows at once what it wants.
 */
#include "cu_launch.h"
#include "cu_runtime.h"

#include <stdio.h>
#include <string.h>

#define UUID_BYTES 16u
#define SERVED     3u

struct table {
    const char *name; /* the first bytes of its UUID */
    uint8_t uuid[UUID_BYTES];
    unsigned words;
    bool no_size;
    struct {
        unsigned slot;
        const void *function;
    } served[SERVED];
};

static const void *words[CU_TABLES][CU_SLOTS];

/* ---- the functions ---- */

static CUresult primary_handle(CUcontext *out, CUdevice dev)
{
    return out ? cu_primary_handle(dev, out) : CUDA_ERROR_INVALID_VALUE;
}

/* The compilers of the driver: nothing is compiled here. */
static CUresult load_compilers(void)
{
    return CUDA_SUCCESS;
}

/* Flags of tools that want to be called back; none does. */
static void hooks(void **out, size_t *count)
{
    static uint32_t flags[1024];
    *out = flags;
    *count = sizeof flags / sizeof flags[0];
}

static void more_hooks(void **out, size_t *count)
{
    static uint32_t flags[14];
    *out = flags;
    *count = sizeof flags / sizeof flags[0];
}

static CUresult no_tool(void **out)
{
    if (out)
        *out = NULL;
    return CUDA_SUCCESS;
}

static CUresult check_context(CUcontext ctx, uint32_t *result, const void **more)
{
    (void)ctx, (void)more;
    if (result)
        *result = 0;
    return CUDA_SUCCESS;
}

static uint32_t check(void)
{
    return 0;
}

static CUresult context_number(CUcontext ctx, uint64_t *out)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = cu_handle_ok(CU_CTX, ctx) ? ctx->id : 0;
    return CUDA_SUCCESS;
}

/* What cuBLASLt wants to know here is in no public source; it goes on when nothing is written. */
static CUresult nothing_to_tell(void)
{
    return CUDA_SUCCESS;
}

/* cuFFT finds the kernels of a module that it loaded by a walk through them. 1 is its good answer;
 * what its function answers, and what may be told last, is in no public source. */
static int walk_kernels(CUcontext ctx, CUmodule module,
                        int (*visit)(void *user, CUfunction f, void *unknown), void *user)
{
    CUfunction f;
    (void)ctx;
    if (!visit || !cu_handle_ok(CU_MODULE, module))
        return 0;
    for (uint32_t i = 0; i < module->image.nkernels; i++) {
        if (cu_module_find(&f, module, module->image.kernels[i].name) != CUDA_SUCCESS)
            return 0;
        visit(user, f, NULL);
    }
    return 1;
}

#ifdef SIM_NO_ANSWER
static CUresult handshake(uint32_t version, uint64_t seconds, uint8_t answer[CU_HANDSHAKE_BYTES])
{
    (void)version, (void)seconds, (void)answer;
    sim_debug("built with SIM_RUNTIME=0: NVIDIA's runtime is refused");
    return CUDA_ERROR_NOT_SUPPORTED;
}
#else
static CUresult handshake(uint32_t version, uint64_t seconds, uint8_t answer[CU_HANDSHAKE_BYTES])
{
    struct cu_handshake ask = {words[CU_TABLE_RUNTIME], words[CU_TABLE_HANDSHAKE],
                               (const void *)handshake, seconds, version};
    return answer ? cu_handshake(answer, &ask) : CUDA_ERROR_INVALID_VALUE;
}
#endif

/* ---- the tables ---- */

static const struct table tables[CU_TABLES] = {
    [CU_TABLE_RUNTIME] = {"6bd5fb6c",
                          {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39,
                           0x12, 0xfd, 0x9d, 0xf9},
                          13,
                          false,
                          {{2, (const void *)primary_handle}, {12, (const void *)load_compilers}}},
    [CU_TABLE_HOOKS] = {"a094798c",
                        {0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00,
                         0x20, 0x0c, 0x0a, 0x66},
                        7,
                        false,
                        {{2, (const void *)hooks}, {6, (const void *)more_hooks}}},
    [CU_TABLE_TOOLS] = {"42d85a81",
                        {0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7,
                         0x8a, 0x3a, 0xec, 0xdc},
                        4,
                        false,
                        {{2, (const void *)no_tool}}},
    [CU_TABLE_STORAGE] = {"c693336e",
                          {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3,
                           0x55, 0xd8, 0x95, 0x93},
                          4,
                          true,
                          {{0, (const void *)cu_storage_put},
                           {1, (const void *)cu_storage_delete},
                           {2, (const void *)cu_storage_get}}},
    [CU_TABLE_CHECKS] = {"263e8860",
                         {0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5,
                          0x00, 0x6d, 0xfa, 0x7e},
                         4,
                         false,
                         {{2, (const void *)check_context}, {3, (const void *)check}}},
    [CU_TABLE_HANDSHAKE] = {"d4082055",
                            {0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12,
                             0x3c, 0x66, 0xe1, 0xf2},
                            3,
                            false,
                            {{1, (const void *)handshake}}},
    [CU_TABLE_CONTEXTS] = {"21318c60",
                           {0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff,
                            0x73, 0x24, 0xc8, 0xf2},
                           95,
                           false,
                           {{4, (const void *)context_number},
                            {39, (const void *)nothing_to_tell},
                            {51, (const void *)nothing_to_tell}}},
    [CU_TABLE_MODULES] = {"6e163fbe",
                          {0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82,
                           0xaf, 0xf1, 0x99, 0x1e},
                          64,
                          false,
                          {{7, (const void *)walk_kernels}}},
    [CU_TABLE_BLAS] = {"1734dc26",
                       {0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1,
                        0xe7, 0xdd, 0x8b, 0xca},
                       64,
                       false,
                       {{4, (const void *)nothing_to_tell}}},
};

static void fill(void)
{
    for (unsigned t = 0; t < CU_TABLES; t++) {
        const struct table *table = &tables[t];
        memcpy(words[t], cu_slots[t], table->words * sizeof words[t][0]);
        if (!table->no_size)
            words[t][0] = (const void *)(table->words * sizeof words[t][0]);
        for (unsigned i = 0; i < SERVED; i++)
            if (table->served[i].function)
                words[t][table->served[i].slot] = table->served[i].function;
    }
}

CUresult cu_unserved(enum cu_table table, unsigned slot)
{
    sim_debug("slot %u of export table %s is not served", slot, tables[table].name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult unknown(const uint8_t *uuid)
{
    char text[2 * UUID_BYTES + 1];
    for (unsigned i = 0; i < UUID_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", uuid[i]);
    sim_debug("export table %s is not known", text);
    return CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *id)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_once(&once, fill);
    *table = NULL;
    for (unsigned t = 0; t < CU_TABLES && !*table; t++)
        if (memcmp(tables[t].uuid, id->bytes, UUID_BYTES) == 0)
            *table = words[t];
    return *table ? CUDA_SUCCESS : unknown((const uint8_t *)id->bytes);
}
