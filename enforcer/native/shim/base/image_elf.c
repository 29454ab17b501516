/* SPDX-License-Identifier: Apache-2.0
 *
 * Machine code: ELF of machine 190. Variables lie in the sections .nv.global (without contents) and
 * .nv.global.init, constants in .nv.constant3. A mark in st_other says which of them are managed.
 */
#include "base/image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE_CUDA  190
#define OTHER_MANAGED 0x04

static bool is_variables(const uint8_t *names, uint64_t size, uint32_t at)
{
    static const char *const known[] = {".nv.global", ".nv.global.init", ".nv.constant3"};
    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        uint64_t length = strlen(known[i]) + 1;
        if (at < size && length <= size - at && memcmp(names + at, known[i], length) == 0)
            return true;
    }
    return false;
}

static uint64_t managed(const struct qg_image_source *source, const Elf64_Shdr *symbols)
{
    uint64_t sum = 0, count = symbols->sh_size / sizeof(Elf64_Sym);
    uint8_t *all = qg_image_copy(source, symbols->sh_offset, count * sizeof(Elf64_Sym));
    for (uint64_t i = 0; all && i < count; i++) {
        Elf64_Sym one;
        memcpy(&one, all + i * sizeof(one), sizeof(one));
        if (ELF64_ST_TYPE(one.st_info) == STT_OBJECT && one.st_other & OTHER_MANAGED &&
            one.st_shndx != SHN_UNDEF)
            sum = qg_image_sum(sum, one.st_size);
    }
    free(all);
    return sum;
}

static void sum_up(const struct qg_image_source *source, const uint8_t *table, uint64_t count,
                   const uint8_t *names, uint64_t size, struct qg_image *out)
{
    Elf64_Shdr one, symbols = {.sh_type = SHT_NULL};
    for (uint64_t i = 1; i < count; i++) {
        memcpy(&one, table + i * sizeof(one), sizeof(one));
        if (is_variables(names, size, one.sh_name))
            out->variables = qg_image_sum(out->variables, one.sh_size);
        else if (one.sh_type == SHT_SYMTAB)
            symbols = one;
    }
    if (out->variables && symbols.sh_type == SHT_SYMTAB)
        out->managed = managed(source, &symbols);
    if (out->managed > out->variables)
        out->managed = out->variables;
}

bool qg_image_elf(const struct qg_image_source *source, struct qg_image *out)
{
    Elf64_Ehdr head;
    Elf64_Shdr first, strings;
    if (!qg_image_read(source, 0, &head, sizeof(head)) ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64 ||
        head.e_ident[EI_DATA] != ELFDATA2LSB || head.e_machine != MACHINE_CUDA ||
        head.e_shentsize != sizeof(first) ||
        !qg_image_read(source, head.e_shoff, &first, sizeof(first)))
        return false;
    /* the first section has what is too large for the 16 bits of the header */
    uint64_t count = head.e_shnum ? head.e_shnum : first.sh_size;
    uint64_t at = head.e_shstrndx == SHN_XINDEX ? first.sh_link : head.e_shstrndx;
    if (count > QG_IMAGE_MOST / sizeof(first) || at >= count)
        return false;
    uint8_t *table = qg_image_copy(source, head.e_shoff, count * sizeof(first));
    uint8_t *names = NULL;
    if (table) {
        memcpy(&strings, table + at * sizeof(strings), sizeof(strings));
        names = qg_image_copy(source, strings.sh_offset, strings.sh_size);
    }
    if (names)
        sum_up(source, table, count, names, strings.sh_size, out);
    free(table);
    free(names);
    return names != NULL;
}
