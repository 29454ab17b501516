/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader of modules by itself, for tests under sanitizers. From stdin: a length in 4 bytes and
 * an image, again and again; to stdout: what is in it, in lines, the last of which is ".". Each
 * image lies in memory of just its length, so that reading over its end is seen.
 */
#include "cu_image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show_kernel(const struct cu_image_kernel *kernel)
{
    printf("kernel %s %u %u %u %u %u", kernel->name, kernel->registers, kernel->shared,
           kernel->local, kernel->max_threads, kernel->param_bytes);
    for (uint32_t i = 0; i < kernel->nparams; i++)
        printf(" %u:%u", kernel->params[i].offset, kernel->params[i].size);
    printf("\n");
}

static void show_global(const struct cu_image_global *global)
{
    static const char *const spaces[] = {"device", "constant", "managed"};
    printf("global %s %s %llu", global->name, spaces[global->space],
           (unsigned long long)global->size);
    if (global->init)
        printf(" ");
    for (uint64_t i = 0; global->init && i < global->size && i < 64; i++)
        printf("%02x", global->init[i]);
    printf("\n");
}

static void show(const struct cu_image *image, CUresult status)
{
    printf("%d %u %s%s%s%s\n", (int)status, image->arch, image->from_code ? "code" : "ptx",
           image->any ? " any" : "", image->lacks ? " lacks " : "",
           image->lacks ? image->lacks : "");
    for (uint32_t i = 0; i < image->nkernels; i++) {
        show_kernel(&image->kernels[i]);
        if (cu_image_kernel(image, image->kernels[i].name) != &image->kernels[i])
            abort();
    }
    for (uint32_t i = 0; i < image->nglobals; i++) {
        show_global(&image->globals[i]);
        if (cu_image_global(image, image->globals[i].name) != &image->globals[i])
            abort();
    }
}

int main(void)
{
    uint32_t size;
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        struct cu_image image;
        size_t own = 0;
        uint8_t *bytes = malloc(size ? size : 1);
        if (!bytes || fread(bytes, 1, size, stdin) != size)
            return 1;
        if (cu_image_elf_size(bytes, size, &own) == CUDA_SUCCESS && own > size)
            abort();
        CUresult status = cu_image_read(bytes, size, 90, &image);
        show(&image, status);
        cu_image_free(&image);
        free(bytes);
        printf(".\n");
        fflush(stdout);
    }
    return 0;
}
