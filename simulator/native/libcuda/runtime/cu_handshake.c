/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime's test of the driver: a keyed digest (RFC 2104 with MD2) over where and when it was
 * asked, and over all devices. docs/adr/0027 says where this is published. A build
 * with SIM_RUNTIME=0 leaves this file out; nothing but the simulated driver contains it.
 */
#include "cu_runtime.h"

#include <string.h>
#include <unistd.h>

/* The last digit of the version that was asked for; the first two have constant answers. */
enum { ASKED_FIRST, ASKED_SECOND };
static const uint64_t first[] = {0x3341181c03cb675cull, 0x8ed383aa1f4cd1e8ull},
                      second[] = {0x1841181c03cb675cull, 0x8ed383aa1f4cd1e8ull};
static const uint8_t key[CU_MD2_BYTES] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52,
                                          0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
#define INNER 0x36u
#define OUTER 0x5cu

struct asked { /* as it goes into the digest */
    uint32_t driver, version, process, thread;
    const void *runtime_table, *handshake_table, *function;
    uint64_t seconds;
};

struct device {
    CUuuid uuid;
    int32_t domain, bus, device;
};

static void add_key(struct cu_md2 *digest, uint8_t pad)
{
    uint8_t padded[CU_MD2_BYTES];
    for (unsigned i = 0; i < CU_MD2_BYTES; i++)
        padded[i] = key[i] ^ pad;
    cu_md2_add(digest, padded, sizeof padded);
}

static CUresult add_devices(struct cu_md2 *digest)
{
    for (CUdevice dev = 0; dev < cu.ndevices; dev++) {
        struct device one = {.domain = 0};
        CU_TRY(cuDeviceGetUuid(&one.uuid, dev));
        CU_TRY(cuDeviceGetAttribute(&one.domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, dev));
        CU_TRY(cuDeviceGetAttribute(&one.bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, dev));
        CU_TRY(cuDeviceGetAttribute(&one.device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, dev));
        cu_md2_add(digest, &one, sizeof one);
    }
    return CUDA_SUCCESS;
}

static CUresult digest_of(uint8_t answer[CU_HANDSHAKE_BYTES], const struct cu_handshake *ask)
{
    struct cu_md2 inner = {.used = 0}, outer = {.used = 0};
    struct asked asked = {.driver = CU_SIM_VERSION,
                          .version = ask->version,
                          .process = (uint32_t)getpid(),
                          .thread = (uint32_t)(uintptr_t)pthread_self(),
                          .runtime_table = ask->runtime_table,
                          .handshake_table = ask->handshake_table,
                          .function = ask->function,
                          .seconds = ask->seconds};
    add_key(&inner, INNER);
    cu_md2_add(&inner, &asked, sizeof asked);
    CU_TRY(add_devices(&inner));
    cu_md2_end(&inner, answer);
    add_key(&outer, OUTER);
    cu_md2_add(&outer, answer, CU_HANDSHAKE_BYTES);
    cu_md2_end(&outer, answer);
    return CUDA_SUCCESS;
}

CUresult cu_handshake(uint8_t answer[CU_HANDSHAKE_BYTES], const struct cu_handshake *ask)
{
    switch (ask->version % 10) {
    case ASKED_FIRST:
        memcpy(answer, first, sizeof first);
        return CUDA_SUCCESS;
    case ASKED_SECOND:
        memcpy(answer, second, sizeof second);
        return CUDA_SUCCESS;
    default:
        return digest_of(answer, ask);
    }
}
