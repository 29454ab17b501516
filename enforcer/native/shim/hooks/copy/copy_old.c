/* SPDX-License-Identifier: Apache-2.0
 *
 * Hooks of copies and fills as programs of CUDA 3.1 and before were linked: 32-bit sizes and
 * addresses, legacy default stream.
 */
#include "hooks/copy/copy.h"

#define QG_PIECES 1
#define QG_ROUTE  QG_HOST_LINK

typedef CUdeviceptr_v1 Old;
typedef unsigned int Size;

#define SYNC(name, bytes, parameters, arguments)                                                   \
    COPY(name, NULL, false, true, bytes, parameters, arguments)
#define ASYNC(name, bytes, parameters, arguments)                                                  \
    COPY(name, s, false, false, bytes, parameters, arguments)

SYNC(cuMemcpyHtoD, n, (Old d, const void *h, Size n), (d, h, n))
SYNC(cuMemcpyDtoH, n, (void *h, Old d, Size n), (h, d, n))
SYNC(cuMemcpyHtoA, n, (CUarray a, Size o, const void *h, Size n), (a, o, h, n))
SYNC(cuMemcpyAtoH, n, (void *h, CUarray a, Size o, Size n), (h, a, o, n))
ASYNC(cuMemcpyHtoAAsync, n, (CUarray a, Size o, const void *h, Size n, CUstream s), (a, o, h, n, s))
ASYNC(cuMemcpyAtoHAsync, n, (void *h, CUarray a, Size o, Size n, CUstream s), (h, a, o, n, s))
ASYNC(cuMemcpyHtoDAsync, n, (Old d, const void *h, Size n, CUstream s), (d, h, n, s))
ASYNC(cuMemcpyDtoHAsync, n, (void *h, Old d, Size n, CUstream s), (h, d, n, s))

#undef QG_ROUTE
#define QG_ROUTE QG_EITHER

SYNC(cuMemcpy2D, AREA, (const CUDA_MEMCPY2D_v1 *c), (c))
SYNC(cuMemcpy2DUnaligned, AREA, (const CUDA_MEMCPY2D_v1 *c), (c))
SYNC(cuMemcpy3D, SPACE, (const CUDA_MEMCPY3D_v1 *c), (c))
ASYNC(cuMemcpy2DAsync, AREA, (const CUDA_MEMCPY2D_v1 *c, CUstream s), (c, s))
ASYNC(cuMemcpy3DAsync, SPACE, (const CUDA_MEMCPY3D_v1 *c, CUstream s), (c, s))

#undef QG_ROUTE
#define QG_ROUTE QG_ON_CARD

SYNC(cuMemcpyDtoD, n, (Old d, Old e, Size n), (d, e, n))
SYNC(cuMemcpyDtoA, n, (CUarray a, Size o, Old d, Size n), (a, o, d, n))
SYNC(cuMemcpyAtoD, n, (Old d, CUarray a, Size o, Size n), (d, a, o, n))
SYNC(cuMemcpyAtoA, n, (CUarray a, Size o, CUarray b, Size p, Size n), (a, o, b, p, n))
ASYNC(cuMemcpyDtoDAsync, n, (Old d, Old e, Size n, CUstream s), (d, e, n, s))
SYNC(cuMemsetD8, n, (Old d, unsigned char v, Size n), (d, v, n))
SYNC(cuMemsetD16, 2ull * n, (Old d, unsigned short v, Size n), (d, v, n))
SYNC(cuMemsetD32, 4ull * n, (Old d, unsigned int v, Size n), (d, v, n))
#define FILL2D(type) (Old d, Size p, type v, Size w, Size h)
SYNC(cuMemsetD2D8, 1ull * w * h, FILL2D(unsigned char), (d, p, v, w, h))
SYNC(cuMemsetD2D16, 2ull * w * h, FILL2D(unsigned short), (d, p, v, w, h))
SYNC(cuMemsetD2D32, 4ull * w * h, FILL2D(unsigned int), (d, p, v, w, h))
