/* SPDX-License-Identifier: Apache-2.0
 *
 * Fatbins: a wrapper in the program's data points to a container; its entries are machine code and
 * PTX for several architectures, each compressed or not. One of them is chosen and read.
 */
#include "cu_image.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER   0x466243b1u
#define CONTAINER 0xba55ed50u

enum { ENTRY_PTX = 1, ENTRY_ELF = 2 };

#define ENTRY_LZ4      0x2000u
#define ENTRY_ZSTD     0x8000u
#define ENTRY_SPECIFIC 0x100000u /* sm_90a: runs on this architecture alone */
#define ENTRY_FAMILY   0x200000u /* sm_100f: on those of the same major version */

struct wrapper {
    uint32_t magic, version;
    const void *container, *more;
};

struct container {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size; /* of the entries, behind the header */
};

struct entry {
    uint16_t kind, version;
    uint32_t header;
    uint64_t size; /* of what follows the header, with its padding */
    uint32_t packed, options;
    uint16_t minor, major;
    uint32_t arch, name, name_size;
    uint64_t flags, reserved, unpacked;
};
_Static_assert(sizeof(struct container) == 16 && sizeof(struct entry) == 64, "as in the file");

/* ---- the lists of an image ---- */

/* Doubles at powers of two, so that the count says how much room there is. */
static void *one_more(void *list, uint32_t count, size_t item)
{
    if (count & (count - 1))
        return list;
    return count >= CU_IMAGE_ITEMS ? NULL : realloc(list, (count ? count * 2 : 1) * item);
}

static char *own_name(struct cu_image *image, const char *name, size_t len)
{
    if (!len || len > CU_IMAGE_NAME || len >= image->names_left)
        return NULL;
    image->names_left -= len + 1;
    return strndup(name, len);
}

struct cu_image_kernel *cu_image_add_kernel(struct cu_image *image, const char *name, size_t len)
{
    void *grown = one_more(image->kernels, image->nkernels, sizeof *image->kernels);
    if (!grown)
        return NULL;
    image->kernels = grown;
    char *own = own_name(image, name, len);
    if (!own)
        return NULL;
    struct cu_image_kernel *kernel = &image->kernels[image->nkernels++];
    *kernel = (struct cu_image_kernel){.name = own};
    return kernel;
}

struct cu_image_global *cu_image_add_global(struct cu_image *image, const char *name, size_t len)
{
    void *grown = one_more(image->globals, image->nglobals, sizeof *image->globals);
    if (!grown)
        return NULL;
    image->globals = grown;
    char *own = own_name(image, name, len);
    if (!own)
        return NULL;
    struct cu_image_global *global = &image->globals[image->nglobals++];
    *global = (struct cu_image_global){.name = own};
    return global;
}

uint8_t *cu_image_contents(struct cu_image *image, struct cu_image_global *global)
{
    if (global->init || !global->size || global->size > image->init_left)
        return global->init;
    image->init_left -= global->size;
    return global->init = calloc(1, global->size);
}

static void drop_kernel(struct cu_image_kernel *kernel)
{
    free(kernel->name);
    free(kernel->params);
}

static void drop_global(struct cu_image_global *global)
{
    free(global->name);
    free(global->init);
}

void cu_image_free(struct cu_image *image)
{
    for (uint32_t i = 0; i < image->nkernels; i++)
        drop_kernel(&image->kernels[i]);
    for (uint32_t i = 0; i < image->nglobals; i++)
        drop_global(&image->globals[i]);
    free(image->kernels);
    free(image->globals);
    memset(image, 0, sizeof *image);
}

static int by_kernel(const void *a, const void *b)
{
    return strcmp(((const struct cu_image_kernel *)a)->name,
                  ((const struct cu_image_kernel *)b)->name);
}

static int by_global(const void *a, const void *b)
{
    return strcmp(((const struct cu_image_global *)a)->name,
                  ((const struct cu_image_global *)b)->name);
}

/* In the order of names, each once. */
static void sort(struct cu_image *image)
{
    uint32_t kept = 0;
    if (image->nkernels)
        qsort(image->kernels, image->nkernels, sizeof *image->kernels, by_kernel);
    for (uint32_t i = 0; i < image->nkernels; i++)
        if (kept && by_kernel(&image->kernels[kept - 1], &image->kernels[i]) == 0)
            drop_kernel(&image->kernels[i]);
        else
            image->kernels[kept++] = image->kernels[i];
    image->nkernels = kept;
    kept = 0;
    if (image->nglobals)
        qsort(image->globals, image->nglobals, sizeof *image->globals, by_global);
    for (uint32_t i = 0; i < image->nglobals; i++)
        if (kept && by_global(&image->globals[kept - 1], &image->globals[i]) == 0)
            drop_global(&image->globals[i]);
        else
            image->globals[kept++] = image->globals[i];
    image->nglobals = kept;
}

const struct cu_image_kernel *cu_image_kernel(const struct cu_image *image, const char *name)
{
    struct cu_image_kernel key = {.name = (char *)(uintptr_t)name};
    return image->nkernels ? bsearch(&key, image->kernels, image->nkernels, sizeof key, by_kernel)
                           : NULL;
}

const struct cu_image_global *cu_image_global(const struct cu_image *image, const char *name)
{
    struct cu_image_global key = {.name = (char *)(uintptr_t)name};
    return image->nglobals ? bsearch(&key, image->globals, image->nglobals, sizeof key, by_global)
                           : NULL;
}

/* ---- one entry ---- */

static bool is_elf(const uint8_t *bytes, size_t size)
{
    return size >= 4 && memcmp(bytes, "\177ELF", 4) == 0;
}

static bool is_text(const uint8_t *bytes, size_t size)
{
    size_t i = 0;
    while (i < 64 && i < size && bytes[i] && (isprint(bytes[i]) || isspace(bytes[i])))
        i++;
    return i == 64 || (i > 4 && (i == size || !bytes[i]));
}

static CUresult read_part(bool code, const uint8_t *bytes, size_t size, struct cu_image *image)
{
    const char *text = (const char *)bytes;
    return code ? cu_image_elf(bytes, size, image) : cu_image_ptx(text, strnlen(text, size), image);
}

/* Machine code runs on its major version from its minor version on, PTX on all that is not older.
 */
static bool fits(bool code, uint32_t of, uint64_t flags, unsigned arch)
{
    if (flags & ENTRY_SPECIFIC)
        return of == arch;
    return of <= arch && (of / 10 == arch / 10 || !(code || flags & ENTRY_FAMILY));
}

static CUresult read_entry(const struct entry *entry, const uint8_t *data, struct cu_image *image)
{
    bool code = entry->kind == ENTRY_ELF;
    enum cu_image_packing packing = entry->flags & ENTRY_ZSTD  ? CU_IMAGE_ZSTD
                                    : entry->flags & ENTRY_LZ4 ? CU_IMAGE_LZ4
                                                               : CU_IMAGE_PLAIN;
    if (packing == CU_IMAGE_PLAIN)
        return read_part(code, data, entry->size, image);
    size_t size = entry->packed ? entry->packed : entry->size;
    if (size > entry->size || !entry->unpacked || entry->unpacked > CU_IMAGE_MOST)
        return CUDA_ERROR_INVALID_IMAGE;
    uint8_t *plain = malloc(entry->unpacked);
    if (!plain)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult status = cu_image_unpack(packing, data, size, plain, entry->unpacked, &image->lacks);
    if (status == CUDA_SUCCESS)
        status = read_part(code, plain, entry->unpacked, image);
    free(plain);
    if (status != CUDA_ERROR_SHARED_OBJECT_INIT_FAILED)
        return status;
    image->any = true;
    return CUDA_SUCCESS;
}

/* ---- the container ---- */

struct choice {
    struct entry entry;
    const uint8_t *data;
    bool fits;
};

/* Machine code before PTX, newer before older, an architecture's own before the general one. */
static bool better(const struct choice *new, const struct choice *old)
{
    const struct entry *a = &new->entry, *b = &old->entry;
    if (!old->data || new->fits != old->fits)
        return !old->data || new->fits;
    if (a->kind != b->kind)
        return a->kind == ENTRY_ELF;
    return a->arch != b->arch ? a->arch > b->arch
                              : (a->flags & ENTRY_SPECIFIC) > (b->flags & ENTRY_SPECIFIC);
}

static CUresult choose(const uint8_t *bytes, size_t size, unsigned arch, struct choice *best)
{
    struct container head;
    if (size < sizeof head)
        return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&head, bytes, sizeof head);
    if (head.header < sizeof head || head.header > size || head.size > size - head.header)
        return CUDA_ERROR_INVALID_IMAGE;
    const uint8_t *at = bytes + head.header;
    for (uint64_t left = head.size; left;) {
        struct choice new = {.data = NULL};
        struct entry *entry = &new.entry;
        if (left < sizeof *entry)
            return CUDA_ERROR_INVALID_IMAGE;
        memcpy(entry, at, sizeof *entry);
        if (entry->header < sizeof *entry || entry->header > left ||
            entry->size > left - entry->header)
            return CUDA_ERROR_INVALID_IMAGE;
        new.data = at + entry->header;
        new.fits = fits(entry->kind == ENTRY_ELF, entry->arch, entry->flags, arch);
        if ((entry->kind == ENTRY_ELF || entry->kind == ENTRY_PTX) && better(&new, best))
            *best = new;
        at += entry->header + entry->size;
        left -= entry->header + entry->size;
    }
    return CUDA_SUCCESS;
}

static uint32_t magic_of(const uint8_t *bytes, size_t size)
{
    uint32_t magic = 0;
    if (size >= sizeof magic)
        memcpy(&magic, bytes, sizeof magic);
    return magic;
}

CUresult cu_image_read(const void *bytes, size_t size, unsigned arch, struct cu_image *image)
{
    bool fit;
    CUresult status;
    *image = (struct cu_image){.names_left = CU_IMAGE_NAMES, .init_left = CU_IMAGE_INIT};
    if (magic_of(bytes, size) == CONTAINER) {
        struct choice best = {.data = NULL};
        status = choose(bytes, size, arch, &best);
        if (status == CUDA_SUCCESS && !best.data)
            return CUDA_ERROR_NO_BINARY_FOR_GPU;
        if (status == CUDA_SUCCESS)
            status = read_entry(&best.entry, best.data, image);
        image->arch = best.entry.arch;
        image->from_code = best.entry.kind == ENTRY_ELF;
        fit = best.fits;
    } else {
        image->from_code = is_elf(bytes, size);
        status = image->from_code || is_text(bytes, size)
                     ? read_part(image->from_code, bytes, size, image)
                     : CUDA_ERROR_INVALID_IMAGE;
        fit = fits(image->from_code, image->arch, 0, arch);
    }
    if (status != CUDA_SUCCESS) {
        cu_image_free(image);
        return status;
    }
    sort(image);
    return fit ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult cu_image_locate(const void *image, const void **bytes, size_t *size)
{
    struct wrapper wrapper;
    struct container head;
    const uint8_t *at = image;
    static const uint8_t magic[2][4] = {{0xb1, 0x43, 0x62, 0x46}, {0x50, 0xed, 0x55, 0xba}};
    size_t same[2] = {0, 0};
    for (int i = 0; i < 2; i++) /* byte for byte: a short text may end sooner */
        while (same[i] < 4 && at[same[i]] == magic[i][same[i]])
            same[i]++;
    if (same[0] == 4) {
        memcpy(&wrapper, image, sizeof wrapper);
        if (!wrapper.container || magic_of(wrapper.container, 4) != CONTAINER)
            return CUDA_ERROR_INVALID_IMAGE;
        at = wrapper.container;
        same[1] = 4;
    }
    *bytes = at;
    if (same[1] == 4) {
        memcpy(&head, at, sizeof head);
        *size = head.header + head.size;
        return head.size > CU_IMAGE_MOST ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
    }
    if (at[0] == 0x7f && at[1] == 'E' && at[2] == 'L' && at[3] == 'F')
        return cu_image_elf_size(at, CU_IMAGE_MOST, size);
    *size = strnlen(image, CU_IMAGE_MOST);
    return is_text(image, *size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}
