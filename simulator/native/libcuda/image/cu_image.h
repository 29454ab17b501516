/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program loads as a module: a fatbin with machine code (ELF) and PTX, or one of the two by
 * itself. Read for what a driver says about it; code is never run. A pure function over bytes that
 * may be hostile: nothing is read outside of them, and what is allocated has limits.
 */
#ifndef QGPU_SIM_CU_IMAGE_H
#define QGPU_SIM_CU_IMAGE_H

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An image, an entry after decompression; contents of all globals; names. */
#define CU_IMAGE_MOST   ((size_t)1 << 30)
#define CU_IMAGE_INIT   ((size_t)256 << 20)
#define CU_IMAGE_NAMES  ((size_t)64 << 20)
#define CU_IMAGE_NAME   65536u
#define CU_IMAGE_ITEMS  65536u /* kernels, and globals */
#define CU_IMAGE_GLOBAL ((uint64_t)1 << 40)
#define CU_IMAGE_PARAMS 32764u /* bytes of one kernel's parameters, as PTX has it */

/* At module level of PTX: any kernel may be asked for. Written by our own linker, cu_link.c. */
#define CU_IMAGE_ANY "qgpu any name"

struct cu_image_param {
    uint32_t offset, size;
};

struct cu_image_kernel {
    char *name;
    struct cu_image_param *params;
    uint32_t nparams, param_bytes;
    uint32_t registers;   /* 0: not known, as of PTX */
    uint32_t shared;      /* bytes, static */
    uint32_t local;       /* bytes per thread */
    uint32_t max_threads; /* of a block, by the source's launch bounds; 0: none */
};

enum cu_image_space { CU_IMAGE_DEVICE, CU_IMAGE_CONSTANT, CU_IMAGE_MANAGED };

struct cu_image_global {
    char *name;
    uint64_t size;
    uint8_t *init;   /* its contents; NULL: zeros */
    uint64_t offset; /* for cu_globals.c: in the module's memory */
    enum cu_image_space space;
};

struct cu_image {
    struct cu_image_kernel *kernels; /* in the order of names, as globals are */
    struct cu_image_global *globals;
    uint32_t nkernels, nglobals;
    uint32_t arch;  /* 90: of compute capability 9.0 */
    bool from_code; /* machine code, else PTX */
    bool any;       /* names are not known: each is taken */
    /* why: a library that lacks; NULL: none does */
    const char *lacks;
    size_t names_left, init_left;
};

/* Where the bytes of an image are, of which only the address is known: behind the wrapper of a
 * fatbin, and as many as its own header says. What is at that address is not checked: a header that
 * lies about memory that is not there ends the program, as with the real driver. */
CUresult cu_image_locate(const void *image, const void **bytes, size_t *size);

/* Reads the part that fits the compute capability (90: 9.0). When none fits,
 * CUDA_ERROR_NO_BINARY_FOR_GPU, and the image has the names of a part that does not. Any other
 * error leaves it empty. */
CUresult cu_image_read(const void *bytes, size_t size, unsigned arch, struct cu_image *image);
void cu_image_free(struct cu_image *image);

const struct cu_image_kernel *cu_image_kernel(const struct cu_image *image, const char *name);
const struct cu_image_global *cu_image_global(const struct cu_image *image, const char *name);

/* ---- within the reader ---- */

/* cu_image.c: NULL: beyond a limit, or no memory. The name is copied. */
struct cu_image_kernel *cu_image_add_kernel(struct cu_image *image, const char *name, size_t len);
struct cu_image_global *cu_image_add_global(struct cu_image *image, const char *name, size_t len);
/* Room for the contents of a global, zeros. */
uint8_t *cu_image_contents(struct cu_image *image, struct cu_image_global *global);

/* cu_image_elf.c, cu_image_ptx.c */
CUresult cu_image_elf(const uint8_t *bytes, size_t size, struct cu_image *image);
CUresult cu_image_elf_size(const uint8_t *bytes, size_t most, size_t *size);
CUresult cu_image_ptx(const char *text, size_t size, struct cu_image *image);

/* cu_image_unpack.c. CUDA_ERROR_SHARED_OBJECT_INIT_FAILED: the library lacks, whose name is
 * given. */
enum cu_image_packing { CU_IMAGE_PLAIN, CU_IMAGE_LZ4, CU_IMAGE_ZSTD };
CUresult cu_image_unpack(enum cu_image_packing packing, const void *from, size_t size, void *to,
                         size_t room, const char **lacks);

#endif
