/* SPDX-License-Identifier: Apache-2.0
 *
 * The job's pages. In a process that uses CUDA, qgpu's libcuda.so.1 has them and is asked; in one
 * that does not (a monitor), this library registers by itself, when it is first asked about a card.
 * The slot that this takes holds nothing.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/grant.h"
#include "process/job_sum.h"
#include "nvml_grant.h"
#include "nvml_shim.h"
#include "qg_map.h"
#include "qg_msg.h"

/* ms that a registration waits for its answer. Chosen, not measured: a monitor should not hang
 * longer. */
#define ANSWER_MS 500
/* ns between two attempts to register. Chosen, not measured. */
#define AGAIN_NS 1000000000u
/* Descriptors of an answer: gate page, job page, doorbell. */
#define NFDS 3

static struct qg_grant_info info;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct qg_pages pages;
    uint64_t tried_ns;
    bool there;
} cards[QG_MAX_CARDS];

static void read_grant(void)
{
    qg_grant_read(&info);
}

const struct qg_grant *qg_nvml_grant(void)
{
    pthread_once(&once, read_grant);
    return info.mode == QG_MODE_GOVERNED && info.grant.state == QG_GRANT_ACTIVE ? &info.grant
                                                                                : NULL;
}

/* ---- registration ---- */

static int connect_arbiter(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t length = sizeof(peer);
    if (snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", info.grant.run_dir,
                 QG_SOCK_REGISTER) >= (int)sizeof(address.sun_path))
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 &&
        (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
         getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || !qg_is_root(peer.uid))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The answer, and its descriptors: exactly three where it is a yes. Its status; EPROTO also where
 * there is no answer. */
static int receive(int sock, struct qg_registered *answer, int fds[NFDS])
{
    union {
        char space[CMSG_SPACE(sizeof(int) * NFDS)];
        struct cmsghdr align;
    } control;
    struct iovec data = {answer, sizeof(*answer)};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof(control.space)};
    struct pollfd ready = {.fd = sock, .events = POLLIN};
    if (poll(&ready, 1, ANSWER_MS) != 1)
        return ETIMEDOUT;
    ssize_t got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *part = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    int count = part && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS
                    ? (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int))
                    : 0;
    if (count)
        memcpy(fds, CMSG_DATA(part), sizeof(int) * (size_t)count);
    if (got <= 0 || !qg_msg_is(answer, (size_t)got, QG_MSG_REGISTERED, sizeof(*answer)))
        return EPROTO;
    return answer->status ? answer->status : count == NFDS ? 0 : EBADMSG;
}

/* The pages of an arbiter that is gone stay mapped: few, and another thread may be reading them. */
static bool take(const struct qg_registered *answer, const int fds[NFDS], struct qg_pages *pages)
{
    const struct qg_gate_page *gate =
        qg_map_page(fds[0], sizeof(*gate), QG_SEALS_FIXED | F_SEAL_FUTURE_WRITE, PROT_READ);
    const struct qg_job_page *job = qg_map_page(fds[1], sizeof(*job), QG_SEALS_FIXED, PROT_READ);
    bool good = gate && job && gate->magic == QG_MAGIC && job->magic == QG_MAGIC &&
                answer->slot < QG_MAX_PROCS && gate->version == QG_ABI_VERSION &&
                gate->job_id == info.grant.job_id;
    if (good)
        *pages = (struct qg_pages){
            .gate = gate, .job = (struct qg_job_page *)(uintptr_t)job, .slot = answer->slot};
    return good;
}

/* On a connection of its own. */
static bool enter(const struct qg_grant_card *card, struct qg_pages *pages)
{
    struct qg_register ask = {.job_id = info.grant.job_id};
    struct qg_registered answer = {0};
    int fds[NFDS] = {-1, -1, -1}, grant = qg_grant_descriptor(), sock = connect_arbiter(),
        status = EPROTO;
    if (sock < 0)
        return false;
    memcpy(ask.uuid, qg_card_name(card), sizeof(ask.uuid));
    qg_msg_head_init(&ask.head, QG_MSG_REGISTER, sizeof(ask));
    if (qg_msg_send(sock, &ask, sizeof(ask), &grant, grant >= 0) == 0)
        status = receive(sock, &answer, fds);
    bool entered = !status && take(&answer, fds, pages);
    for (int i = 0; i < NFDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    close(sock);
    return entered;
}

static bool alive(const struct qg_gate_page *gate)
{
    uint64_t beat = __atomic_load_n(&gate->heartbeat_ns, __ATOMIC_RELAXED);
    return beat != QG_BEAT_LEFT && qg_now_ns() < beat + 3 * (uint64_t)gate->lease_ms * 1000000u;
}

/* ---- the view ---- */

static bool view_of_ours(unsigned index, struct qgpu_view *out)
{
    struct qg_pages *pages = &cards[index].pages;
    uint64_t now = qg_now_ns(), pending;
    if ((!cards[index].there || !alive(pages->gate)) &&
        (!cards[index].tried_ns || now - cards[index].tried_ns > AGAIN_NS)) {
        cards[index].tried_ns = now;
        cards[index].there |= enter(&info.grant.cards[index], pages);
    }
    *out = (struct qgpu_view){
        .cap = qg_job_cap(&info.grant.cards[index], cards[index].there ? pages : NULL)};
    if (cards[index].there) {
        qg_job_sums(pages, &out->used, &pending);
        out->used += qg_job_extra(pages);
        out->job = pages->job;
    }
    return true;
}

static int index_of(const char *uuid)
{
    for (uint32_t i = 0; i < info.grant.ncards; i++)
        if (!strcmp(info.grant.cards[i].uuid, uuid))
            return (int)i;
    return -1;
}

/* The card's name, under which it stays known while the job moves; false: not a card of the job.
 * What NVML shows is the card itself, so a job that was moved is found on the new one. */
static bool our_card(const char *uuid, unsigned *index, char name[QG_UUID_LEN])
{
    pthread_mutex_lock(&lock);
    qg_grant_refresh(&info); /* each time: the job may have moved since the last call */
    int found = index_of(uuid);
    if (found >= 0)
        snprintf(name, QG_UUID_LEN, "%s", qg_card_name(&info.grant.cards[found]));
    pthread_mutex_unlock(&lock);
    *index = found < 0 ? 0 : (unsigned)found;
    return found >= 0;
}

bool qg_nvml_view(nvmlDevice_t device, struct qgpu_view *out)
{
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "", name[QG_UUID_LEN];
    bool (*ask)(const char *, struct qgpu_view *) = NULL;
    unsigned index;
    if (!qg_nvml_grant() ||
        QG_REAL(nvmlDeviceGetUUID)(device, uuid, sizeof(uuid)) != NVML_SUCCESS ||
        !our_card(uuid, &index, name))
        return false;
    *(void **)&ask = dlsym(RTLD_DEFAULT, "qgpu_job_view");
    if (ask && ask(name, out))
        return true;
    pthread_mutex_lock(&lock);
    bool good = view_of_ours(index, out);
    pthread_mutex_unlock(&lock);
    return good;
}

bool qg_nvml_ours(const struct qgpu_view *view, unsigned int pid)
{
    if (!view->job)
        return pid == (unsigned int)getpid();
    for (uint32_t i = 0; i < QG_MAX_PROCS; i++)
        if (pid && __atomic_load_n(&view->job->procs[i].pid, __ATOMIC_RELAXED) == pid)
            return true;
    return false;
}
