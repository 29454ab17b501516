/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of NVIDIA's own CUDA runtime: opens the library named on the command line and makes its
 * first calls. Prints the driver's version as the runtime tells it, and the results. The runtime
 * finds the driver by itself.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int (*version_of)(int *), (*count_of)(int *), version = 0, count = -1;
    void *runtime = dlopen(argc > 1 ? argv[1] : "libcudart.so.13", RTLD_NOW);
    if (!runtime) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&version_of = dlsym(runtime, "cudaDriverGetVersion");
    *(void **)&count_of = dlsym(runtime, "cudaGetDeviceCount");
    int told = version_of(&version), counted = count_of(&count);
    printf("%d %d %d %d\n", told, version, counted, count);
    return 0;
}
