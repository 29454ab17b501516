/* SPDX-License-Identifier: Apache-2.0
 *
 * The process qgpu-simgpu: its command line, its loop, its clients and their requests.
 */
#ifndef QGPU_SIM_SERVE_H
#define QGPU_SIM_SERVE_H

#include "gpu.h"
#include "rm.h"

/* gpu_options.c */
void gpu_parse(struct gpu *gpu, int argc, char **argv);

/* gpu_links.c: reads --nvlinks; complains to stderr */
bool gpu_links_read(struct gpu_config *config, const char *text);

/* gpu_conn.c */
void gpu_accept(struct gpu *gpu);
void gpu_conn_readable(struct gpu_conn *conn);
void gpu_conn_end(struct gpu_conn *conn, const char *why);
void gpu_reap_dead(struct gpu *gpu); /* ends every connection whose process is dead */
/* serves what waits at the control device */
void gpu_drain_control(struct gpu *gpu);
void gpu_bury(struct gpu *gpu);

/* gpu_request.c: text is empty where the request has none */
void gpu_request(struct gpu_conn *conn, const struct sim_req *req, const char *text);
void gpu_answer_file(struct gpu_conn *conn, int fd); /* of the control device; -1: there is none */

void gpu_answer_plain(struct gpu_conn *conn, int status, uint64_t a);

/* gpu_orders.c: what processes ask of others; may answer later. fd: the agent's end */
int gpu_agent_open(struct gpu_conn *conn, uint64_t tid, int *fd);
void gpu_agent_readable(struct gpu_conn *target);
void gpu_order_request(struct gpu_conn *caller, const struct sim_req *req);
bool gpu_is_ordered(const struct gpu_conn *conn, uint32_t what);
int gpu_unpark_as_ordered(struct gpu_conn *conn);
void gpu_orders_settle(struct gpu *gpu, uint64_t now);
uint64_t gpu_orders_next(const struct gpu *gpu); /* when the first of them is over its time */
void gpu_orders_forget(struct gpu_conn *conn);   /* it ends */

/* gpu_faults.c: one command in words; a CUresult, *reached: contexts or processes. complain: to
 * stderr */
int gpu_fault_command(struct gpu *gpu, const char *command, uint64_t *reached, bool complain);

/* gpu_node.c: the directory, device nodes and socket */
bool gpu_node_open(struct gpu *gpu);
bool gpu_node_tell_control(struct gpu *gpu); /* writes SIM_CONTROL */
void gpu_node_close(struct gpu *gpu);

#endif
