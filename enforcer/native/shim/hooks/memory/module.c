/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of modules and libraries: their variables are memory of the card. The size is read from the
 * image before the driver is called, and charged when it has loaded it. What cannot be read (an
 * unknown form) passes: NVML reports it, and the arbiter adds it. So does code, which the driver
 * loads function by function.
 */
#include "hooks/memory/charge.h"
#include "hooks/memory/libraries.h"
#include "memory/modules.h"
#include "window/window.h"

/* ---- modules: loaded into the current context ---- */

static uint64_t pieces_of(bool read, const struct qg_image *sizes)
{
    return read ? qg_image_sum(qg_whole_pieces(sizes->variables - sizes->managed),
                               managed_free() ? 0 : qg_whole_pieces(sizes->managed))
                : 0;
}

static uint64_t in_image(const void *image)
{
    struct qg_image sizes;
    return pieces_of(qg_image_at(image, qg_card_arch(qg_card_current()), &sizes), &sizes);
}

static uint64_t in_file(const char *path)
{
    struct qg_image sizes;
    return pieces_of(qg_image_in_file(path, qg_card_arch(qg_card_current()), &sizes), &sizes);
}

/* Where nothing is charged nothing is asked: most modules have no large variables. Their code takes
 * memory, too. */
#define LOADS(name, source, bytes, parameters, arguments)                                          \
    CUresult name parameters                                                                       \
    {                                                                                              \
        bool ours = module && (source) && ruled();                                                 \
        uint64_t size = ours ? bytes(source) : 0;                                                  \
        if (!size)                                                                                 \
            return QG_ROOMY(ours ? qg_card_current() : NULL, 0, QG_REAL(name) arguments);          \
        CHARGED(size, QG_REAL(name) arguments, QG_KIND_MODULE, *module, size);                     \
    }

LOADS(cuModuleLoad, path, in_file, (CUmodule * module, const char *path), (module, path))
LOADS(cuModuleLoadData, image, in_image, (CUmodule * module, const void *image), (module, image))
LOADS(cuModuleLoadDataEx, image, in_image,
      (CUmodule * module, const void *image, unsigned int count, CUjit_option *options,
       void **values),
      (module, image, count, options, values))
LOADS(cuModuleLoadFatBinary, image, in_image, (CUmodule * module, const void *image),
      (module, image))

static CUresult unload(CUmodule module)
{
    FREED(QG_KIND_MODULE, module, QG_REAL(cuModuleUnload)(module));
}

/* A function of another module may get the address of one that is gone. The driver does not say
 * which functions a module had, so all estimates are forgotten. */
static CUresult forget(CUresult result)
{
    if (qg_governed && result == CUDA_SUCCESS)
        qg_window_forget(NULL);
    return result;
}

CUresult cuModuleUnload(CUmodule module)
{
    return forget(unload(module));
}

/* ---- libraries: loaded into no context, until one uses them ---- */

/* False: refused. */
static bool enters(CUlibrary library, struct qg_library_use *made, struct qg_room *room)
{
    CUcontext context = NULL;
    *made = (struct qg_library_use){{0, 0}};
    if (!ruled() || QG_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
        return true;
    struct qg_card *card;
    if (qg_card_here(&card) != CUDA_SUCCESS)
        return true; /* the context is dead: the driver says so */
    qg_room_look(room, card, 0);
    return qg_library_enter(library, owner_of(context), card, made);
}

static bool eager(void)
{
    CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
    return QG_HAVE(cuModuleGetLoadingMode) &&
           DIRECT(QG_REAL(cuModuleGetLoadingMode)(&mode)) == CUDA_SUCCESS &&
           mode == CU_MODULE_EAGER_LOADING;
}

/* With eager loading the current context has it now; others are charged at their first use. */
static CUresult loaded(CUlibrary library)
{
    struct qg_library_use made;
    struct qg_room room = {0};
    if (!eager() || enters(library, &made, &room))
        return CUDA_SUCCESS;
    DIRECT(QG_REAL(cuLibraryUnload)(library));
    qg_library_unloaded(qg_library_unloading(library), true);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The program leaves the image where it is: true for what a compiler put into the program. */
static bool preserved(const CUlibraryOption *options, void *const *values, unsigned int count)
{
    bool stays = false;
    for (unsigned int i = 0; options && values && i < count; i++)
        if (options[i] == CU_LIBRARY_BINARY_IS_PRESERVED)
            stays = values[i] != NULL;
    return stays;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit,
                           void **jit_values, unsigned int njit, CUlibraryOption *options,
                           void **values, unsigned int count)
{
    struct qg_image sizes = {0, 0};
    bool ours = ruled() && library && image;
    bool late = ours && preserved(options, values, count);
    if (ours && !late && !qg_image_at(image, qg_card_arch(NULL), &sizes))
        sizes = (struct qg_image){0, 0};
    CUresult result = QG_ROOMY(ours ? qg_card_current() : NULL, 0,
                               DIRECT(QG_REAL(cuLibraryLoadData)(library, image, jit, jit_values,
                                                                 njit, options, values, count)));
    if (result != CUDA_SUCCESS || !ours)
        return result;
    qg_library_loaded(*library, late ? image : NULL, &sizes);
    return loaded(*library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit,
                               void **jit_values, unsigned int njit, CUlibraryOption *options,
                               void **values, unsigned int count)
{
    struct qg_image sizes = {0, 0};
    bool ours = ruled() && library && path;
    if (ours && !qg_image_in_file(path, qg_card_arch(NULL), &sizes))
        sizes = (struct qg_image){0, 0};
    CUresult result = QG_ROOMY(ours ? qg_card_current() : NULL, 0,
                               DIRECT(QG_REAL(cuLibraryLoadFromFile)(
                                   library, path, jit, jit_values, njit, options, values, count)));
    if (result != CUDA_SUCCESS || !ours)
        return result;
    qg_library_loaded(*library, NULL, &sizes);
    return loaded(*library);
}

CUresult cuLibraryUnload(CUlibrary handle)
{
    if (!ruled())
        return forget(QG_REAL(cuLibraryUnload)(handle));
    struct qg_library *library = qg_library_unloading(handle);
    CUresult result = DIRECT(QG_REAL(cuLibraryUnload)(handle));
    qg_library_unloaded(library, result == CUDA_SUCCESS);
    return forget(result);
}

/* Who asks for something of a library in a context will use it there. */
#define USES(name, of, parameters, arguments)                                                      \
    CUresult name parameters                                                                       \
    {                                                                                              \
        struct qg_room room = {0};                                                                 \
        CUresult result;                                                                           \
        do {                                                                                       \
            struct qg_library_use made;                                                            \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                                     \
            if (!enters(of, &made, &room)) {                                                       \
                room.last = true;                                                                  \
                continue;                                                                          \
            }                                                                                      \
            result = QG_REAL(name) arguments;                                                      \
            if (result != CUDA_SUCCESS)                                                            \
                qg_library_leave(&made);                                                           \
        } while (qg_room_again(&room, result));                                                    \
        return result;                                                                             \
    }

USES(cuLibraryGetModule, library, (CUmodule * module, CUlibrary library), (module, library))
USES(cuLibraryGetUnifiedFunction, library, (void **function, CUlibrary library, const char *name),
     (function, library, name))
USES(cuLibraryGetGlobal, library,
     (CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name),
     (pointer, bytes, library, name))
USES(cuLibraryGetManaged, library,
     (CUdeviceptr * pointer, size_t *bytes, CUlibrary library, const char *name),
     (pointer, bytes, library, name))

/* ---- kernels: launched in any context, once they are known ---- */

static CUresult kernel_named(CUkernel *kernel, CUlibrary library, const char *name,
                             struct qg_room *room)
{
    struct qg_library_use made;
    if (!enters(library, &made, room))
        return qg_room_refused(room);
    CUresult result = DIRECT(QG_REAL(cuLibraryGetKernel)(kernel, library, name));
    if (result == CUDA_SUCCESS)
        qg_library_kernel(library, *kernel);
    else
        qg_library_leave(&made);
    return result;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return ruled() ? QG_ROOMY(NULL, 0, kernel_named(kernel, library, name, &qg_room))
                   : QG_REAL(cuLibraryGetKernel)(kernel, library, name);
}

/* The driver writes as many as there are, and not more than there is room for. */
static CUresult kernels_listed(CUkernel *kernels, unsigned int most, CUlibrary library,
                               struct qg_room *room)
{
    struct qg_library_use made;
    unsigned int all = 0;
    if (!enters(library, &made, room))
        return qg_room_refused(room);
    CUresult result = DIRECT(QG_REAL(cuLibraryEnumerateKernels)(kernels, most, library));
    if (result != CUDA_SUCCESS) {
        qg_library_leave(&made);
        return result;
    }
    if (DIRECT(QG_REAL(cuLibraryGetKernelCount)(&all, library)) == CUDA_SUCCESS)
        for (unsigned int i = 0; i < all && i < most; i++)
            qg_library_kernel(library, kernels[i]);
    return result;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int most, CUlibrary library)
{
    return ruled() ? QG_ROOMY(NULL, 0, kernels_listed(kernels, most, library, &qg_room))
                   : QG_REAL(cuLibraryEnumerateKernels)(kernels, most, library);
}

bool qg_function_enter(CUfunction function)
{
    struct qg_library_use made;
    struct qg_room room = {0};
    CUlibrary library = ruled() ? qg_library_of((CUkernel)function) : NULL;
    return !library || enters(library, &made, &room);
}

USES(cuKernelGetFunction, qg_library_of(kernel), (CUfunction * function, CUkernel kernel),
     (function, kernel))
