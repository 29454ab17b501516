/* SPDX-License-Identifier: Apache-2.0
 *
 * Images of modules: where their bytes are, and the part of a container that a driver takes for a
 * card. A wrapper in the program's data points to a container; its entries are machine code and
 * PTX for several architectures.
 */
#include "base/image.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define WRAPPER   0x466243b1u
#define CONTAINER 0xba55ed50u
#define PAGE      4096u
/* Entries of a container that are read; a compiler writes one for each architecture. */
#define ENTRIES 4096u

enum { ENTRY_PTX = 1, ENTRY_ELF = 2 };

#define ENTRY_LZ4      0x2000u
#define ENTRY_ZSTD     0x8000u
#define ENTRY_SPECIFIC 0x100000u /* sm_90a: runs on this architecture alone */
#define ENTRY_FAMILY   0x200000u /* sm_100f: on those of the same major version */

struct wrapper {
    uint32_t magic, version;
    uint64_t container, more;
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
_Static_assert(sizeof(struct wrapper) == 24 && sizeof(struct container) == 16 &&
                   sizeof(struct entry) == 64,
               "as in the file");

/* ---- bytes ---- */

static bool read_file(int fd, uint64_t at, char *to, size_t size)
{
    while (size) {
        ssize_t got = pread(fd, to, size, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        to += got;
        at += (uint64_t)got;
        size -= (size_t)got;
    }
    return true;
}

static bool read_program(uint64_t at, void *to, size_t size)
{
    struct iovec mine = {to, size}, its = {(void *)(uintptr_t)at, size};
    return process_vm_readv(getpid(), &mine, 1, &its, 1, 0) == (ssize_t)size;
}

bool qg_image_read(const struct qg_image_source *source, uint64_t at, void *to, size_t size)
{
    if (at > source->size || size > source->size - at)
        return false;
    uint64_t from = source->at + at;
    if (source->place == QG_IMAGE_FILE)
        return read_file(source->fd, from, to, size);
    if (source->place == QG_IMAGE_PROGRAM)
        return read_program(from, to, size);
    memcpy(to, (const void *)(uintptr_t)from, size);
    return true;
}

uint8_t *qg_image_copy(const struct qg_image_source *source, uint64_t at, uint64_t size)
{
    if (at > source->size || size > source->size - at || size > QG_IMAGE_MOST)
        return NULL;
    uint8_t *copy = malloc(size ? size : 1);
    if (copy && !qg_image_read(source, at, copy, size)) {
        free(copy);
        return NULL;
    }
    return copy;
}

/* ---- one part ---- */

/* A text has no length of its own: page by page up to its zero. */
static char *copy_text(const struct qg_image_source *source, size_t *size)
{
    char *text = NULL;
    size_t room = 0;
    for (*size = 0; *size < source->size && *size < QG_IMAGE_MOST;) {
        uint64_t left = source->size - *size;
        size_t more = PAGE - (size_t)((source->at + *size) % PAGE);
        more = left < more ? (size_t)left : more;
        if (*size + more > room) {
            room = (*size + more) * 2;
            char *grown = realloc(text, room);
            if (!grown)
                break;
            text = grown;
        }
        if (!qg_image_read(source, *size, text + *size, more))
            break;
        const char *end = memchr(text + *size, 0, more);
        *size += end ? (size_t)(end - text) - *size : more;
        if (end)
            return text;
    }
    if (*size == source->size)
        return text; /* a file, or a part of a container, may end without */
    free(text);
    return NULL;
}

static bool is_text(const struct qg_image_source *source)
{
    unsigned char c;
    uint64_t i = 0;
    while (i < 64 && qg_image_read(source, i, &c, 1) && c && (isprint(c) || isspace(c)))
        i++;
    return i >= 8; /* as many as ".version" has */
}

static bool read_text(const struct qg_image_source *source, struct qg_image *out)
{
    size_t size;
    char *text = is_text(source) ? copy_text(source, &size) : NULL;
    if (text)
        qg_image_ptx(text, size, out);
    free(text);
    return text != NULL;
}

static bool read_packed(const struct qg_image_source *source, const struct entry *entry,
                        enum qg_image_packing packing, struct qg_image *out)
{
    uint64_t size = entry->packed ? entry->packed : entry->size;
    if (size > source->size || !entry->unpacked || entry->unpacked > QG_IMAGE_MOST)
        return false;
    uint8_t *packed = qg_image_copy(source, 0, size);
    uint8_t *plain = packed ? malloc(entry->unpacked) : NULL;
    struct qg_image_source own = {QG_IMAGE_OWN, -1, (uint64_t)(uintptr_t)plain, entry->unpacked};
    bool done = plain && qg_image_unpack(packing, packed, size, plain, entry->unpacked) &&
                (entry->kind == ENTRY_ELF ? qg_image_elf(&own, out) : read_text(&own, out));
    free(packed);
    free(plain);
    return done;
}

/* ---- the container ---- */

struct choice {
    struct entry entry;
    uint64_t data; /* where it begins; 0: nothing was chosen */
    bool fits;
};

/* Machine code runs on its major version from its minor version on, PTX on all that is not older.
 */
static bool fits(const struct entry *entry, unsigned arch)
{
    if (entry->flags & ENTRY_SPECIFIC)
        return entry->arch == arch;
    bool major = entry->kind == ENTRY_ELF || entry->flags & ENTRY_FAMILY;
    return entry->arch <= arch && (!major || entry->arch / 10 == arch / 10);
}

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

static struct choice choose(const struct qg_image_source *source, const struct container *head,
                            unsigned arch)
{
    struct choice best = {.data = 0};
    uint64_t at = head->header, left = head->size;
    for (unsigned n = 0; n < ENTRIES && left >= sizeof(struct entry); n++) {
        struct choice new;
        struct entry *entry = &new.entry;
        if (!qg_image_read(source, at, entry, sizeof(*entry)) || entry->header < sizeof(*entry) ||
            entry->header > left || entry->size > left - entry->header)
            break;
        new.data = at + entry->header;
        new.fits = fits(entry, arch);
        if ((entry->kind == ENTRY_ELF || entry->kind == ENTRY_PTX) && better(&new, &best))
            best = new;
        at += entry->header + entry->size;
        left -= entry->header + entry->size;
    }
    return best;
}

static bool read_container(const struct qg_image_source *source, unsigned arch,
                           struct qg_image *out)
{
    struct container head;
    if (!qg_image_read(source, 0, &head, sizeof(head)) || head.header < sizeof(head) ||
        head.header > source->size || head.size > source->size - head.header)
        return false;
    struct choice best = choose(source, &head, arch);
    if (!best.data)
        return false;
    struct qg_image_source part = *source;
    part.at += best.data;
    part.size = best.entry.size;
    if (best.entry.flags & (ENTRY_LZ4 | ENTRY_ZSTD))
        return read_packed(&part, &best.entry,
                           best.entry.flags & ENTRY_ZSTD ? QG_IMAGE_ZSTD : QG_IMAGE_LZ4, out);
    return best.entry.kind == ENTRY_ELF ? qg_image_elf(&part, out) : read_text(&part, out);
}

bool qg_image_sizes(const struct qg_image_source *source, unsigned arch, struct qg_image *out)
{
    uint32_t magic = 0;
    *out = (struct qg_image){0, 0};
    if (!qg_image_read(source, 0, &magic, sizeof(magic)))
        return false;
    if (magic == CONTAINER)
        return read_container(source, arch, out);
    return memcmp(&magic, "\177ELF", 4) == 0 ? qg_image_elf(source, out) : read_text(source, out);
}

static struct qg_image_source in_program(uint64_t at)
{
    return (struct qg_image_source){QG_IMAGE_PROGRAM, -1, at, UINT64_MAX - at};
}

bool qg_image_at(const void *image, unsigned arch, struct qg_image *out)
{
    struct qg_image_source source = in_program((uint64_t)(uintptr_t)image);
    struct wrapper wrapper;
    if (qg_image_read(&source, 0, &wrapper, sizeof(wrapper)) && wrapper.magic == WRAPPER)
        source = in_program(wrapper.container);
    return qg_image_sizes(&source, arch, out);
}

/* A pipe is left to the driver: what is read of it is gone. */
bool qg_image_in_file(const char *path, unsigned arch, struct qg_image *out)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool read = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (read) {
        struct qg_image_source source = {QG_IMAGE_FILE, fd, 0, (uint64_t)st.st_size};
        read = qg_image_sizes(&source, arch, out);
    }
    if (fd >= 0)
        close(fd);
    return read;
}
