/* SPDX-License-Identifier: Apache-2.0
 *
 * What is known of memory nodes in graphs: hooks/memory/graph_nodes.c reads it, pools.c writes it
 * too.
 */
#include "memory/graph_memory.h"

struct qg_graph_memory qg_graph_memory = {.trims = 1};

void qg_graph_memory_exists(void)
{
    __atomic_store_n(&qg_graph_memory.exists, true, __ATOMIC_RELEASE);
}

void qg_graph_memory_after_fork(void)
{
    qg_graph_memory.exists = qg_graph_memory.several = false;
}

void qg_graph_memory_trimmed(void)
{
    __atomic_add_fetch(&qg_graph_memory.trims, 1, __ATOMIC_RELEASE);
}
