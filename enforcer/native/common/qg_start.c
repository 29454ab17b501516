/* SPDX-License-Identifier: Apache-2.0
 *
 * For programs that run in containers with an older glibc. The linker directs crt1.o's call of
 * __libc_start_main here (--wrap=__libc_start_main). This calls the version that every glibc has. A
 * newer crt1.o passes NULL as `init`. An older glibc then runs no constructors of the program, so
 * it must have none.
 */
#include "qg_glibc.h"

typedef int main_function(int argc, char **argv, char **environment);

int qg_libc_start_main(main_function *program, int argc, char **argv, void (*init)(void),
                       void (*fini)(void), void (*rtld_fini)(void), void *stack_end);
__asm__(".symver qg_libc_start_main,__libc_start_main@" QG_GLIBC_BASE);

int __wrap___libc_start_main(main_function *program, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end);

int __wrap___libc_start_main(main_function *program, int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    return qg_libc_start_main(program, argc, argv, init, fini, rtld_fini, stack_end);
}
