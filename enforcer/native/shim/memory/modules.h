/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the variables of modules. A module takes it when it is loaded; a library when a context
 * first uses it, once for each context, and once for its managed variables.
 */
#ifndef QG_MODULES_H
#define QG_MODULES_H

#include "base/image.h"
#include "memory/memory.h"

/* The driver takes memory of a card in pieces of this size. Fewer bytes share a piece with code and
 * other modules, which the image does not tell: NVML counts them with the context. */
#define QG_PIECE ((uint64_t)2 << 20)

/* What is charged for that many bytes; 0: they are too few. */
uint64_t qg_whole_pieces(uint64_t bytes);

/* The architecture as images name it, of a card; NULL: of the first one that the process sees. */
unsigned qg_card_arch(const struct qg_card *card);

/* A library was loaded. image: it stays where it is and is read at the first use; NULL: these are
 * the sizes. */
void qg_library_loaded(CUlibrary handle, const void *image, const struct qg_image *sizes);

/* A context (owner) begins to use a library: admits what that takes, unless it has it already.
 * False: refused. made: what qg_library_leave() takes back, if the driver's call fails. */
struct qg_library_use {
    uint64_t keys[2];
};
bool qg_library_enter(CUlibrary handle, uint64_t owner, struct qg_card *card,
                      struct qg_library_use *made);
void qg_library_leave(const struct qg_library_use *made);

/* A kernel was asked for. A kernel of a library with large variables may be launched in any
 * context without being asked for again, so each launch must ask: to what it belongs; NULL: to none
 * of those. */
extern bool qg_libraries_large; /* atomic: there is or was such a library */
void qg_library_kernel(CUlibrary handle, CUkernel kernel);
CUlibrary qg_library_of(CUkernel kernel);

/* Around the driver's call that unloads it, since another thread may be given its handle before
 * that returns. NULL: nothing is known of it. */
struct qg_library;
struct qg_library *qg_library_unloading(CUlibrary handle);
void qg_library_unloaded(struct qg_library *library, bool unloaded);

void qg_libraries_after_fork(void);

#endif
