/* SPDX-License-Identifier: Apache-2.0
 *
 * Words in memory that a stream writes or waits for: cuStreamWriteValue, cuStreamWaitValue, and
 * batches of them.
 */
#include "cu_alloc.h"
#include "cu_stream.h"

static CUresult word_op(uint32_t op, CUstream stream, CUdeviceptr addr, cuuint64_t value,
                        unsigned flags)
{
    struct sim_cmd cmd = {.op = op, .b = value, .c = flags};
    unsigned size = op == SIM_OP_WRITE64 || op == SIM_OP_WAIT64 ? 8 : 4;
    if (addr % size)
        return CUDA_ERROR_INVALID_VALUE;
    CU_TRY(cu_memory_address(addr, size, &cmd.a));
    return cu_push(stream, &cmd, true, NULL);
}

static CUresult write_word(uint32_t op, CUstream stream, CUdeviceptr addr, cuuint64_t value,
                           unsigned flags)
{
    if (flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
        return CUDA_ERROR_INVALID_VALUE;
    return word_op(op, stream, addr, value, flags);
}

static CUresult wait_word(uint32_t op, CUstream stream, CUdeviceptr addr, cuuint64_t value,
                          unsigned flags)
{
    return flags & ~3u ? CUDA_ERROR_NOT_SUPPORTED : word_op(op, stream, addr, value, flags);
}

static CUresult write32(CUstream handle, CUdeviceptr addr, cuuint64_t value, unsigned flags,
                        bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return write_word(SIM_OP_WRITE32, stream, addr, value, flags);
}

static CUresult write64(CUstream handle, CUdeviceptr addr, cuuint64_t value, unsigned flags,
                        bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return write_word(SIM_OP_WRITE64, stream, addr, value, flags);
}

static CUresult wait32(CUstream handle, CUdeviceptr addr, cuuint64_t value, unsigned flags, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return wait_word(SIM_OP_WAIT32, stream, addr, value, flags);
}

static CUresult wait64(CUstream handle, CUdeviceptr addr, cuuint64_t value, unsigned flags, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    return wait_word(SIM_OP_WAIT64, stream, addr, value, flags);
}

#define WORD32 (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
#define WORD64 (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
CU_BOTH(cuStreamWriteValue32, cuStreamWriteValue32_ptsz, write32, WORD32, stream, addr, value,
        flags)
CU_BOTH(cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz, write32, WORD32, stream, addr, value,
        flags)
CU_BOTH(cuStreamWriteValue64, cuStreamWriteValue64_ptsz, write64, WORD64, stream, addr, value,
        flags)
CU_BOTH(cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz, write64, WORD64, stream, addr, value,
        flags)
CU_BOTH(cuStreamWaitValue32, cuStreamWaitValue32_ptsz, wait32, WORD32, stream, addr, value, flags)
CU_BOTH(cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz, wait32, WORD32, stream, addr, value,
        flags)
CU_BOTH(cuStreamWaitValue64, cuStreamWaitValue64_ptsz, wait64, WORD64, stream, addr, value, flags)
CU_BOTH(cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz, wait64, WORD64, stream, addr, value,
        flags)

static CUresult one_of_batch(CUstream stream, const CUstreamBatchMemOpParams *op)
{
    const struct CUstreamMemOpWaitValueParams_st *wait = &op->waitValue;
    const struct CUstreamMemOpWriteValueParams_st *write = &op->writeValue;
    switch (op->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return wait_word(SIM_OP_WAIT32, stream, wait->address, wait->value, wait->flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return wait_word(SIM_OP_WAIT64, stream, wait->address, wait->value64, wait->flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return write_word(SIM_OP_WRITE32, stream, write->address, write->value, write->flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return write_word(SIM_OP_WRITE64, stream, write->address, write->value64, write->flags);
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult batch(CUstream handle, unsigned count, CUstreamBatchMemOpParams *ops,
                      unsigned flags, bool pt)
{
    CUstream stream;
    CU_TRY(cu_stream_get(handle, pt, &stream));
    if (!count || !ops || flags || count > 256)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        CU_TRY(one_of_batch(stream, &ops[i]));
    return CUDA_SUCCESS;
}

#define BATCH                                                                                      \
    (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags)
CU_BOTH(cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz, batch, BATCH, stream, count, ops, flags)
CU_BOTH(cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz, batch, BATCH, stream, count, ops, flags)
