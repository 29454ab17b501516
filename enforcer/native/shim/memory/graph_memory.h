/* SPDX-License-Identifier: Apache-2.0
 *
 * What is known of memory nodes in graphs. All of it is atomic.
 */
#ifndef QG_GRAPH_MEMORY_H
#define QG_GRAPH_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

extern struct qg_graph_memory {
    bool exists;  /* some graph has a memory node */
    bool several; /* a graph had memory nodes on another card than the first one */
    uint32_t
        /* count of trims; an executable graph whose refs equal it was launched since the last trim,
         * so it has its memory */
        trims;
} qg_graph_memory;

/* A memory node was made (also by an allocation in a capture): from now on graphs are scanned. */
void qg_graph_memory_exists(void);

/* The driver took back what no graph was using: the next launch may need it again. */
void qg_graph_memory_trimmed(void);

void qg_graph_memory_after_fork(void);

#endif
