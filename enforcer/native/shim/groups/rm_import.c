/* SPDX-License-Identifier: Apache-2.0
 *
 * If the shim is preloaded, our ioctl() comes before libc's for all libraries. If it is loaded by
 * dlopen (mounted over the driver's file), it does not. Then the driver's own reference in its
 * import table is changed to ours, and only that one.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "groups/rm.h"

struct imports {
    const ElfW(Sym) * symbols;
    const char *names;
    const ElfW(Rela) * relocations[2]; /* of the PLT; the others */
    size_t count[2];
};

static void read_imports(const struct link_map *map, struct imports *at)
{
    size_t bytes[2] = {0, 0};
    memset(at, 0, sizeof(*at));
    for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++) {
        const void *pointer = (const void *)d->d_un.d_ptr; /* glibc has made them absolute */
        switch (d->d_tag) {
        case DT_SYMTAB:
            at->symbols = pointer;
            break;
        case DT_STRTAB:
            at->names = pointer;
            break;
        case DT_JMPREL:
            at->relocations[0] = pointer;
            break;
        case DT_PLTRELSZ:
            bytes[0] = d->d_un.d_val;
            break;
        case DT_RELA:
            at->relocations[1] = pointer;
            break;
        case DT_RELASZ:
            bytes[1] = d->d_un.d_val;
            break;
        default:
            break;
        }
    }
    for (int i = 0; i < 2; i++)
        at->count[i] = at->relocations[i] ? bytes[i] / sizeof(ElfW(Rela)) : 0;
}

/* The part that the loader made read-only after it had filled it in. */
struct readonly {
    ElfW(Addr) base, from, to;
};

static int find_readonly(struct dl_phdr_info *info, size_t size, void *into)
{
    struct readonly *r = into;
    (void)size;
    if (info->dlpi_addr != r->base)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO) {
            r->from = r->base + info->dlpi_phdr[i].p_vaddr;
            r->to = r->from + info->dlpi_phdr[i].p_memsz;
        }
    return 1;
}

static void turn(ElfW(Addr) base, void **slot, void *to)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)slot & ~(page - 1);
    struct readonly r = {.base = base};
    dl_iterate_phdr(find_readonly, &r);
    bool closed = (uintptr_t)slot >= r.from && (uintptr_t)slot < r.to;
    if (closed && mprotect((void *)at, page, PROT_READ | PROT_WRITE) != 0)
        return; /* a hardened kernel: its calls stay unseen, and gating alone remains */
    __atomic_store_n(slot, to, __ATOMIC_RELEASE);
    if (closed)
        mprotect((void *)at, page, PROT_READ);
}

void qg_rm_driver_opened(void *library)
{
    struct link_map *map = NULL;
    struct imports at;
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD),
         *theirs = libc ? dlsym(libc, "ioctl") : NULL;
    if (!library || !theirs || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || !map)
        return;
    read_imports(map, &at);
    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < at.count[kind] && at.symbols && at.names; i++) {
            const ElfW(Rela) *r = &at.relocations[kind][i];
            const ElfW(Sym) *symbol = &at.symbols[ELF64_R_SYM(r->r_info)];
            void **slot = (void **)(map->l_addr + r->r_offset);
            /* Another ioctl() before libc's, of the program or our own, stays as it is. */
            if (ELF64_R_SYM(r->r_info) && ELF64_R_TYPE(r->r_info) != R_X86_64_COPY &&
                !strcmp(at.names + symbol->st_name, "ioctl") && *slot == theirs)
                turn(map->l_addr, slot, (void *)(uintptr_t)&ioctl);
        }
    dlclose(libc);
}
