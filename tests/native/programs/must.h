/* SPDX-License-Identifier: Apache-2.0
 *
 * A call of a test's program that answers anything but 0 ends it, with a sentence and status 3.
 */
#ifndef QG_TEST_MUST_H
#define QG_TEST_MUST_H

#include <stdio.h>
#include <stdlib.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must = (int)(call);                                                                    \
        if (must) {                                                                                \
            fprintf(stderr, "%s:%d: %s answered %d\n", __FILE__, __LINE__, #call, must);           \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

#endif
