/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of the probe share.
 */
#ifndef QG_PROBE_H
#define QG_PROBE_H

#include <dlfcn.h>
#include <limits.h>

#include <cuda.h>

#define NOT_MINE INT_MIN /* the command is another part's */

extern void *cuda; /* handle of libcuda.so.1 */
struct stub_state;
extern struct stub_state *state; /* of the stub driver */
extern CUcontext contexts[];
extern CUstream streams[];

/* Calls a driver function through the handle that dlopen gave, as every framework does. */
#define CALL(name) ((__typeof__(&name))dlsym(cuda, #name))

long arg(char **words, int at);
int launch_on(CUstream stream, long function, long times);

/* probe_more.c */
int more_command(char **words);

/* probe_room.c */
int room_command(char **words);

#endif
