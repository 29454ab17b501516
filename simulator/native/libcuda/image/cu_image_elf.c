/* SPDX-License-Identifier: Apache-2.0
 *
 * Machine code (cubin): ELF of machine 190. Kernels are functions with a mark of NVIDIA's in
 * st_other, globals are objects in .nv.global, .nv.global.init and .nv.constant3. What is known of
 * a kernel stands in .nv.info, as records of an attribute, and in .nv.info.KERNEL and
 * .nv.shared.KERNEL, whose sh_info is the section of the kernel's code.
 */
#include "cu_image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE_CUDA  190
#define ABI_NEW       0x41 /* EI_OSABI since CUDA 13: another place for the architecture */
#define OTHER_ENTRY   0x10
#define OTHER_MANAGED 0x04
#define INFO_TYPE     0x70000000u
#define NO_KERNEL     UINT32_MAX
/* Of each block's shared memory the system takes this much from this architecture on, and the
 * section's size has it. */
#define RESERVED_SHARED 1024u
#define RESERVED_FROM   90u

enum { /* attributes of .nv.info; the first byte of a record is the form of its value */
       FORM_SHORT = 3,
       FORM_SIZED = 4,
       ATTR_MAX_THREADS = 0x05,
       ATTR_FRAME_SIZE = 0x11,
       ATTR_PARAM = 0x17,
       ATTR_PARAM_BYTES = 0x19,
       ATTR_REGISTERS = 0x2f,
       ATTR_PARAM_WIDE = 0x45
};

struct elf {
    const uint8_t *bytes;
    size_t size;
    Elf64_Ehdr head;
    uint32_t nsections, names;
    Elf64_Shdr symbols, strings;
    const uint8_t *far_index; /* section numbers of symbols that do not fit into 16 bits */
    uint32_t nsymbols;
    uint32_t *kernel_of_section, *kernel_of_symbol;
    size_t
        info_left; /* honest sections do not overlap, so that they are not longer than the file */
};

static bool inside(size_t size, uint64_t offset, uint64_t bytes)
{
    return offset <= size && bytes <= size - offset;
}

static Elf64_Shdr section(const struct elf *elf, uint32_t index)
{
    Elf64_Shdr out;
    memcpy(&out, elf->bytes + elf->head.e_shoff + (uint64_t)index * sizeof out, sizeof out);
    return out;
}

/* The bytes of a section; an empty one if it is not inside the file. */
static const uint8_t *contents(const struct elf *elf, const Elf64_Shdr *of, size_t *size)
{
    bool there = of->sh_type != SHT_NOBITS && inside(elf->size, of->sh_offset, of->sh_size);
    *size = there ? of->sh_size : 0;
    return elf->bytes + (there ? of->sh_offset : 0);
}

/* A text of a table of texts, with its end inside; NULL: it is not. */
static const char *text(const struct elf *elf, const Elf64_Shdr *table, uint64_t at, size_t *len)
{
    size_t size;
    const char *all = (const char *)contents(elf, table, &size);
    if (at >= size)
        return NULL;
    size_t most = size - at <= CU_IMAGE_NAME ? size - at : CU_IMAGE_NAME + 1;
    *len = strnlen(all + at, most);
    return *len < most ? all + at : NULL;
}

static bool open_head(struct elf *elf)
{
    if (elf->size < sizeof elf->head)
        return false;
    memcpy(&elf->head, elf->bytes, sizeof elf->head);
    const Elf64_Ehdr *head = &elf->head;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64 ||
        head->e_ident[EI_DATA] != ELFDATA2LSB || head->e_machine != MACHINE_CUDA ||
        head->e_shentsize != sizeof(Elf64_Shdr) || !head->e_shoff ||
        !inside(elf->size, head->e_shoff, sizeof(Elf64_Shdr)))
        return false;
    Elf64_Shdr first = section(elf, 0); /* has what is too large for the header's 16 bits */
    elf->nsections = head->e_shnum ? head->e_shnum : (uint32_t)first.sh_size;
    elf->names = head->e_shstrndx == SHN_XINDEX ? first.sh_link : head->e_shstrndx;
    if (!head->e_shnum && first.sh_size > UINT32_MAX)
        return false;
    return elf->names < elf->nsections &&
           inside(elf->size, head->e_shoff, (uint64_t)elf->nsections * sizeof(Elf64_Shdr));
}

CUresult cu_image_elf_size(const uint8_t *bytes, size_t most, size_t *size)
{
    struct elf elf = {.bytes = bytes, .size = most};
    if (!open_head(&elf))
        return CUDA_ERROR_INVALID_IMAGE;
    uint64_t end = elf.head.e_shoff + (uint64_t)elf.nsections * sizeof(Elf64_Shdr);
    uint64_t segments = (uint64_t)elf.head.e_phnum * elf.head.e_phentsize;
    if (!inside(most, elf.head.e_phoff, segments))
        return CUDA_ERROR_INVALID_IMAGE;
    if (elf.head.e_phoff + segments > end)
        end = elf.head.e_phoff + segments;
    for (uint32_t i = 1; i < elf.nsections; i++) {
        Elf64_Shdr one = section(&elf, i);
        if (one.sh_type == SHT_NOBITS)
            continue;
        if (!inside(most, one.sh_offset, one.sh_size))
            return CUDA_ERROR_INVALID_IMAGE;
        if (one.sh_offset + one.sh_size > end)
            end = one.sh_offset + one.sh_size;
    }
    *size = end;
    return CUDA_SUCCESS;
}

static uint32_t arch_of(const Elf64_Ehdr *head)
{
    return head->e_ident[EI_OSABI] == ABI_NEW ? head->e_flags >> 8 & 0xfff : head->e_flags & 0xff;
}

/* ---- symbols ---- */

static Elf64_Sym symbol(const struct elf *elf, uint32_t index)
{
    Elf64_Sym out;
    memcpy(&out, elf->bytes + elf->symbols.sh_offset + (uint64_t)index * sizeof out, sizeof out);
    return out;
}

static uint32_t section_of(const struct elf *elf, const Elf64_Sym *of, uint32_t index)
{
    uint32_t far = of->st_shndx;
    if (far == SHN_XINDEX && elf->far_index)
        memcpy(&far, elf->far_index + (size_t)index * sizeof far, sizeof far);
    return far < elf->nsections ? far : 0;
}

static bool find_symbols(struct elf *elf)
{
    for (uint32_t i = 1; i < elf->nsections; i++) {
        Elf64_Shdr one = section(elf, i);
        if (one.sh_type == SHT_SYMTAB)
            elf->symbols = one;
    }
    if (elf->symbols.sh_type != SHT_SYMTAB)
        return true; /* a file without symbols has no kernels */
    if (!inside(elf->size, elf->symbols.sh_offset, elf->symbols.sh_size) ||
        elf->symbols.sh_link >= elf->nsections)
        return false;
    elf->strings = section(elf, elf->symbols.sh_link);
    elf->nsymbols = (uint32_t)(elf->symbols.sh_size / sizeof(Elf64_Sym));
    for (uint32_t i = 1; i < elf->nsections; i++) {
        Elf64_Shdr one = section(elf, i);
        size_t size;
        const uint8_t *all = contents(elf, &one, &size);
        if (one.sh_type == SHT_SYMTAB_SHNDX && size / sizeof(uint32_t) >= elf->nsymbols)
            elf->far_index = all;
    }
    return true;
}

static bool add_kernel(struct elf *elf, struct cu_image *image, const Elf64_Sym *sym,
                       uint32_t index)
{
    size_t len = 0;
    const char *name = text(elf, &elf->strings, sym->st_name, &len);
    uint32_t code = section_of(elf, sym, index);
    if (!code) /* declared here, defined elsewhere */
        return true;
    if (!name || !cu_image_add_kernel(image, name, len))
        return false;
    elf->kernel_of_symbol[index] = elf->kernel_of_section[code] = image->nkernels - 1;
    return true;
}

static bool has_prefix(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static bool add_global(struct elf *elf, struct cu_image *image, const Elf64_Sym *sym,
                       uint32_t index)
{
    size_t len = 0, size = 0;
    uint32_t where = section_of(elf, sym, index);
    Elf64_Shdr part = section(elf, where), names = section(elf, elf->names);
    const char *name = text(elf, &elf->strings, sym->st_name, &len);
    const char *in = where ? text(elf, &names, part.sh_name, &size) : NULL;
    bool constant = in && strcmp(in, ".nv.constant3") == 0;
    if (!in || !(constant || strcmp(in, ".nv.global") == 0 || strcmp(in, ".nv.global.init") == 0))
        return true;
    if (!name || sym->st_size > CU_IMAGE_GLOBAL)
        return false;
    struct cu_image_global *global = cu_image_add_global(image, name, len);
    if (!global)
        return false;
    global->size = sym->st_size;
    global->space = constant                        ? CU_IMAGE_CONSTANT
                    : sym->st_other & OTHER_MANAGED ? CU_IMAGE_MANAGED
                                                    : CU_IMAGE_DEVICE;
    const uint8_t *all = contents(elf, &part, &size);
    if (!size)
        return true;
    if (!inside(size, sym->st_value, sym->st_size))
        return false;
    uint8_t *init = cu_image_contents(image, global);
    if (init)
        memcpy(init, all + sym->st_value, sym->st_size);
    return true;
}

static bool read_symbols(struct elf *elf, struct cu_image *image)
{
    for (uint32_t i = 0; i < elf->nsections; i++)
        elf->kernel_of_section[i] = NO_KERNEL;
    for (uint32_t i = 0; i < elf->nsymbols; i++) {
        Elf64_Sym sym = symbol(elf, i);
        unsigned type = ELF64_ST_TYPE(sym.st_info);
        elf->kernel_of_symbol[i] = NO_KERNEL;
        if (type == STT_FUNC && sym.st_other & OTHER_ENTRY && !add_kernel(elf, image, &sym, i))
            return false;
        if (type == STT_OBJECT && !add_global(elf, image, &sym, i))
            return false;
    }
    return true;
}

/* ---- what is known of kernels ---- */

static uint32_t word(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint16_t half(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

struct record {
    uint8_t form, attribute;
    uint16_t value; /* or the number of bytes at data */
    const uint8_t *data;
};

/* The next record; false: the end, or what is left is none. */
static bool next(const uint8_t **at, size_t *left, struct record *record)
{
    if (*left < 4)
        return false;
    *record = (struct record){(*at)[0], (*at)[1], half(*at + 2), *at + 4};
    size_t size = record->form == FORM_SIZED ? 4u + record->value : 4u;
    if (size > *left)
        return false;
    *at += size;
    *left -= size;
    return true;
}

static bool is_param(const struct record *record)
{
    return record->form == FORM_SIZED && record->value >= 12 &&
           (record->attribute == ATTR_PARAM || record->attribute == ATTR_PARAM_WIDE);
}

/* A parameter's number is below their count, or the file is wrong. */
static bool params(struct cu_image_kernel *kernel, const uint8_t *at, size_t left)
{
    struct record record;
    const uint8_t *from = at;
    size_t all = left;
    uint32_t count = 0;
    while (next(&at, &left, &record))
        count += is_param(&record);
    if (!count || kernel->params)
        return true;
    kernel->params = calloc(count, sizeof *kernel->params);
    if (!kernel->params)
        return false;
    kernel->nparams = count;
    while (next(&from, &all, &record)) {
        if (!is_param(&record))
            continue;
        uint32_t ordinal = half(record.data + 4), offset = half(record.data + 6);
        uint32_t size = record.attribute == ATTR_PARAM_WIDE ? half(record.data + 8)
                                                            : word(record.data + 8) >> 18;
        if (ordinal >= count || offset + size > CU_IMAGE_PARAMS)
            return false;
        kernel->params[ordinal] = (struct cu_image_param){offset, size};
        if (offset + size > kernel->param_bytes)
            kernel->param_bytes = offset + size;
    }
    return true;
}

static bool info_of_kernel(struct cu_image_kernel *kernel, const uint8_t *at, size_t left)
{
    struct record record;
    if (!params(kernel, at, left))
        return false;
    while (next(&at, &left, &record)) {
        if (record.form == FORM_SHORT && record.attribute == ATTR_PARAM_BYTES)
            kernel->param_bytes = record.value;
        if (record.form == FORM_SIZED && record.attribute == ATTR_MAX_THREADS &&
            record.value >= 12) {
            uint64_t x = word(record.data), y = word(record.data + 4), z = word(record.data + 8);
            bool sane = x && y && z && x <= 1024 && y <= 1024 && z <= 1024 && x * y * z <= 1024;
            kernel->max_threads = sane ? (uint32_t)(x * y * z) : 0;
        }
    }
    return true;
}

static void info_of_all(const struct elf *elf, struct cu_image *image, const uint8_t *at,
                        size_t left)
{
    struct record record;
    while (next(&at, &left, &record)) {
        if (record.form != FORM_SIZED || record.value < 8)
            continue;
        uint32_t index = word(record.data), value = word(record.data + 4);
        uint32_t which = index < elf->nsymbols ? elf->kernel_of_symbol[index] : NO_KERNEL;
        if (which == NO_KERNEL)
            continue;
        if (record.attribute == ATTR_REGISTERS)
            image->kernels[which].registers = value <= 255 ? value : 255;
        if (record.attribute == ATTR_FRAME_SIZE)
            image->kernels[which].local = value;
    }
}

static bool read_section(struct elf *elf, struct cu_image *image, const Elf64_Shdr *part,
                         const char *name)
{
    size_t size;
    const uint8_t *at = contents(elf, part, &size);
    uint32_t which =
        part->sh_info < elf->nsections ? elf->kernel_of_section[part->sh_info] : NO_KERNEL;
    struct cu_image_kernel *kernel = which == NO_KERNEL ? NULL : &image->kernels[which];
    if (part->sh_type == INFO_TYPE && has_prefix(name, ".nv.info")) {
        if (size > elf->info_left)
            return false;
        elf->info_left -= size;
        if (!name[8])
            info_of_all(elf, image, at, size);
        return !name[8] || !kernel || info_of_kernel(kernel, at, size);
    }
    if (kernel && has_prefix(name, ".nv.shared.")) {
        bool own = image->arch < RESERVED_FROM || part->sh_size < RESERVED_SHARED;
        uint64_t bytes = own ? part->sh_size : part->sh_size - RESERVED_SHARED;
        kernel->shared = bytes <= UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
    }
    return true;
}

static bool read_sections(struct elf *elf, struct cu_image *image)
{
    Elf64_Shdr names = section(elf, elf->names);
    for (uint32_t i = 1; i < elf->nsections; i++) {
        size_t len;
        Elf64_Shdr part = section(elf, i);
        const char *name = text(elf, &names, part.sh_name, &len);
        if (!name || !read_section(elf, image, &part, name))
            return false;
    }
    return true;
}

CUresult cu_image_elf(const uint8_t *bytes, size_t size, struct cu_image *image)
{
    struct elf elf = {.bytes = bytes, .size = size, .info_left = size};
    if (!open_head(&elf) || !find_symbols(&elf))
        return CUDA_ERROR_INVALID_IMAGE;
    image->arch = arch_of(&elf.head);
    elf.kernel_of_section = calloc(elf.nsections, sizeof(uint32_t));
    elf.kernel_of_symbol = calloc(elf.nsymbols + 1ull, sizeof(uint32_t));
    CUresult status = CUDA_ERROR_OUT_OF_MEMORY;
    if (elf.kernel_of_section && elf.kernel_of_symbol)
        status = read_symbols(&elf, image) && read_sections(&elf, image) ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_IMAGE;
    free(elf.kernel_of_section);
    free(elf.kernel_of_symbol);
    return status;
}
