/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the calls of a locked process wait (cuCheckpointProcessLock).
 */
#include "cu.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

uint32_t cu_gate_word;
__thread unsigned cu_gate_exempt;
pthread_rwlock_t cu_gate_contexts = PTHREAD_RWLOCK_INITIALIZER;

void cu_gate_set(bool shut)
{
    __atomic_store_n(&cu_gate_word, shut, __ATOMIC_SEQ_CST);
    if (!shut)
        syscall(SYS_futex, &cu_gate_word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void cu_gate_wait(void)
{
    while (cu_gate_shut())
        syscall(SYS_futex, &cu_gate_word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
}

void cu_gate_lock(pthread_mutex_t *lock)
{
    pthread_mutex_lock(lock);
    while (cu_gate_shut()) {
        pthread_mutex_unlock(lock);
        cu_gate_wait();
        pthread_mutex_lock(lock);
    }
}

void cu_gate_begin(void)
{
    pthread_rwlock_rdlock(&cu_gate_contexts);
    while (cu_gate_shut()) {
        pthread_rwlock_unlock(&cu_gate_contexts);
        cu_gate_wait();
        pthread_rwlock_rdlock(&cu_gate_contexts);
    }
    cu_gate_exempt++;
}

void cu_gate_end(void)
{
    cu_gate_exempt--;
    pthread_rwlock_unlock(&cu_gate_contexts);
}
