/* SPDX-License-Identifier: Apache-2.0
 *
 * A child has its parent's memory but neither its threads nor a usable CUDA: it starts from
 * nothing. Each part of the shim forgets what it knows, in the order of the folders.
 */
#include "boot/boot.h"
#include "groups/rm.h"
#include "hooks/context/contexts.h"
#include "link/link.h"
#include "memory/graph_memory.h"
#include "memory/memory.h"
#include "memory/modules.h"
#include "process/pages.h"
#include "track/streams.h"
#include "track/waiters.h"
#include "track/wants.h"
#include "window/window.h"

void qg_after_fork(void)
{
    qg_start_after_fork();
    qg_depth = 0;
    qg_lanes_after_fork();
    qg_waiters_after_fork();
    qg_wants_after_fork();
    qg_link_after_fork();
    qg_pages_after_fork();
    qg_rm_after_fork();
    qg_primaries_after_fork();
    qg_graph_memory_after_fork();
    qg_memory_after_fork();
    qg_libraries_after_fork();
    qg_streams_after_fork();
    qg_window_after_fork();
    qg_cards_forget();
}
