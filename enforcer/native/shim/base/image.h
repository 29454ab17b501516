/* SPDX-License-Identifier: Apache-2.0
 *
 * How much memory of a card the variables of a module will take, as its image says: machine code
 * (ELF), PTX, or a container with both, packed or not. Only sizes are read. The bytes may be
 * hostile: every read has bounds, so has what is allocated, and memory of the program is read
 * through the kernel, so that a false header ends no process.
 */
#ifndef QG_IMAGE_H
#define QG_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of an image that we hold at most: of a part after unpacking, of a text, of a table. Chosen,
 * not measured: the largest libraries have some 100 MiB for one architecture. */
#define QG_IMAGE_MOST ((uint64_t)1 << 29)

struct qg_image_source {
    enum qg_image_place { QG_IMAGE_FILE, QG_IMAGE_PROGRAM, QG_IMAGE_OWN } place;
    int fd;      /* of a file */
    uint64_t at; /* its first byte: an offset in the file, or an address */
    uint64_t size;
};

/* Bytes of its variables, and of those the managed ones. More than 64 bits hold: UINT64_MAX. */
struct qg_image {
    uint64_t variables, managed;
};

/* Reads the part for an architecture (90: compute capability 9.0). False: it cannot be read, so
 * nothing is known. */
bool qg_image_at(const void *image, unsigned arch, struct qg_image *out);
bool qg_image_in_file(const char *path, unsigned arch, struct qg_image *out);
bool qg_image_sizes(const struct qg_image_source *source, unsigned arch, struct qg_image *out);

/* ---- within the reader ---- */

/* False: not all of these bytes are there. */
bool qg_image_read(const struct qg_image_source *source, uint64_t at, void *to, size_t size);
/* The same into memory of malloc(); NULL: also if they are more than QG_IMAGE_MOST. */
uint8_t *qg_image_copy(const struct qg_image_source *source, uint64_t at, uint64_t size);

bool qg_image_elf(const struct qg_image_source *source, struct qg_image *out);
void qg_image_ptx(const char *text, size_t size, struct qg_image *out);

/* Unpacks all of it; false: it is damaged, or the library that could do it is not there. */
enum qg_image_packing { QG_IMAGE_PLAIN, QG_IMAGE_LZ4, QG_IMAGE_ZSTD };
bool qg_image_unpack(enum qg_image_packing packing, const void *from, size_t size, void *to,
                     size_t room);

static inline uint64_t qg_image_sum(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

#endif
