/* SPDX-License-Identifier: Apache-2.0
 *
 * What NVIDIA's CUDA runtime and its libraries ask of a driver beside the public functions: tables
 * of functions by UUID. They are in no documentation; docs/adr/0027 says where the facts are from.
 */
#ifndef QGPU_SIM_CU_RUNTIME_H
#define QGPU_SIM_CU_RUNTIME_H

#include "cu_context.h"

#define CU_HANDSHAKE_BYTES 16u

/* What the answer to the runtime's test of the driver is made of: addresses of two tables and of
 * the function that answers, and what the runtime asked with. */
struct cu_handshake {
    const void *runtime_table, *handshake_table, *function;
    uint64_t seconds;
    uint32_t version;
};

/* cu_handshake.c; a build with SIM_RUNTIME=0 has none, and the runtime refuses this driver */
CUresult cu_handshake(uint8_t answer[CU_HANDSHAKE_BYTES], const struct cu_handshake *ask);

/* cu_md2.c: the message digest of RFC 1319; begin with zeros */
#define CU_MD2_BYTES 16u
struct cu_md2 {
    uint8_t state[3 * CU_MD2_BYTES], checksum[CU_MD2_BYTES], block[CU_MD2_BYTES];
    unsigned used; /* bytes of the block */
};
void cu_md2_add(struct cu_md2 *digest, const void *data, size_t size);
void cu_md2_end(struct cu_md2 *digest, uint8_t out[CU_MD2_BYTES]);

enum cu_table {
    CU_TABLE_RUNTIME,
    CU_TABLE_HOOKS,
    CU_TABLE_TOOLS,
    CU_TABLE_STORAGE,
    CU_TABLE_CHECKS,
    CU_TABLE_HANDSHAKE,
    CU_TABLE_CONTEXTS,
    CU_TABLE_MODULES,
    CU_TABLE_BLAS,
    CU_TABLES
};
#define CU_SLOTS 96u

/* cu_slots.c: of each table and slot the function that refuses */
extern const void *const cu_slots[CU_TABLES][CU_SLOTS];

/* cu_export.c: what those functions answer */
CUresult cu_unserved(enum cu_table table, unsigned slot);

#endif
