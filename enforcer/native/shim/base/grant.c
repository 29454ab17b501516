/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the grant, which holds the limits of the job. A process may hand us any descriptor or path.
 * So a grant is believed only if root made it and no other user could change it. That is a memfd of
 * root with all seals, or a file of root that only root can write.
 */
#include "base/grant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "qg_root.h"

#define ALL_SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

static struct {
    int fd;
    dev_t dev;
    ino_t ino;
} inherited = {-1, 0, 0};

static const char *content_problem(const struct qg_grant *grant)
{
    if (grant->magic != QG_MAGIC)
        return "it does not start with QGPU";
    if (grant->version != QG_GRANT_VERSION)
        return "it has another version than this library";
    if (grant->size != sizeof(*grant))
        return "it has a wrong size";
    if (grant->state != QG_GRANT_ACTIVE)
        return grant->state == QG_GRANT_WHOLE
                   ? "it is of a job with whole cards, which gets no qgpu library"
                   : "it is not an active grant";
    if (grant->ncards == 0 || grant->ncards > QG_MAX_CARDS)
        return "its number of cards is out of range";
    return NULL;
}

/* Ends the strings of a checked grant with a zero: root wrote them, but the disk may be damaged. */
static void terminate(struct qg_grant *grant)
{
    grant->node[sizeof(grant->node) - 1] = 0;
    grant->run_dir[sizeof(grant->run_dir) - 1] = 0;
    grant->driver_path[sizeof(grant->driver_path) - 1] = 0;
    grant->shim_path[sizeof(grant->shim_path) - 1] = 0;
    grant->message[sizeof(grant->message) - 1] = 0;
    for (uint32_t i = 0; i < grant->ncards; i++)
        grant->cards[i].uuid[QG_UUID_LEN - 1] = grant->cards[i].home[QG_UUID_LEN - 1] = 0;
}

/* Root makes grants for many users, and a process may be handed any of them. This one must be of
 * its own user. The arbiter alone can tell its job, and leaves it without a page if the grant is
 * another job's. In a user namespace numbers of users mean nothing. */
static const char *owner_problem(const struct qg_grant *grant)
{
    static char text[96];
    uid_t root, user = getuid();

    if (!qg_root_here(&root) || root != 0 || user == 0 || user == grant->uid)
        return NULL;
    snprintf(text, sizeof(text), "it is of user %u, and this process runs as user %u", grant->uid,
             user);
    return text;
}

static const char *read_from(int fd, struct qg_grant *grant)
{
    ssize_t got;
    do {
        got = pread(fd, grant, sizeof(*grant), 0);
    } while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof(*grant))
        return "it is shorter than a grant";
    const char *problem = content_problem(grant);
    if (!problem)
        problem = owner_problem(grant);
    if (!problem)
        terminate(grant);
    return problem;
}

static const char *from_descriptor(int fd, struct qg_grant *grant)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return "the descriptor is closed";
    if (!qg_is_root(st.st_uid))
        return "root did not make it";
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & ALL_SEALS) != ALL_SEALS)
        return "it is not sealed";
    if (st.st_size != (off_t)sizeof(*grant))
        return "it has a wrong size";
    const char *problem = read_from(fd, grant);
    if (!problem) {
        inherited.fd = fd;
        inherited.dev = st.st_dev;
        inherited.ino = st.st_ino;
    }
    return problem;
}

static const char *from_file(const char *path, struct qg_grant *grant)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return strerror(errno);
    const char *problem = NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        problem = "it is not a regular file";
    else if (!qg_is_root(st.st_uid) || (st.st_mode & (S_IWGRP | S_IWOTH)))
        problem = "others than root can write it";
    else if (st.st_size != (off_t)sizeof(*grant))
        problem = "it has a wrong size";
    else
        problem = read_from(fd, grant);
    close(fd);
    return problem;
}

static int descriptor_number(const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return (errno || end == text || *end || value < 0 || value > 1 << 20) ? -1 : (int)value;
}

static bool any_qgpu_variable(void)
{
    extern char **environ;
    for (char **entry = environ; entry && *entry; entry++)
        if (!strncmp(*entry, "QGPU_GRANT", 10))
            return true;
    return false;
}

/* Injection by mount: root put the grant at a fixed place, so no environment is needed. A
 * descriptor that the environment names is only shown to the arbiter, and only if it is of the same
 * job. */
static bool from_task(struct qg_grant_info *info, const char *number)
{
    struct qg_grant shown;
    if (from_file(QG_TASK_GRANT, &info->grant))
        return false;
    if (number && !from_descriptor(descriptor_number(number), &shown) &&
        shown.job_id != info->grant.job_id)
        inherited.fd = -1;
    return true;
}

void qg_grant_read(struct qg_grant_info *info)
{
    /* secure_getenv: mounted, this library is also in set-user-id programs, which must not open
     * what a user names. */
    const char *number = secure_getenv(QG_ENV_GRANT_FD);
    const char *path = secure_getenv(QG_ENV_GRANT);
    const char *why = NULL;
    info->mode = QG_MODE_GOVERNED;
    if (from_task(info, number) ||
        (number && !(why = from_descriptor(descriptor_number(number), &info->grant))))
        return;
    if (path && *path && !(why = from_file(path, &info->grant)))
        return;
    info->mode = any_qgpu_variable() ? QG_MODE_BROKEN : QG_MODE_NONE;
    snprintf(info->problem, sizeof(info->problem), "%s%s: %s",
             path && *path ? "grant " : "grant descriptor ",
             path && *path ? path : (number ? number : "?"), why ? why : "nothing was named");
}

static const struct qg_grant_card *card_named(const struct qg_grant *grant, const char *name)
{
    for (uint32_t i = 0; i < grant->ncards; i++)
        if (!strcmp(qg_card_name(&grant->cards[i]), name))
            return &grant->cards[i];
    return NULL;
}

void qg_grant_refresh(struct qg_grant_info *info)
{
    char path[sizeof(info->grant.run_dir) + 64];
    struct qg_grant now;
    struct qg_grant_card cards[QG_MAX_CARDS];
    if (info->mode != QG_MODE_GOVERNED || info->grant.state != QG_GRANT_ACTIVE)
        return;
    snprintf(path, sizeof(path), "%s/%s/%llu.grant", info->grant.run_dir, QG_GRANTS_DIR,
             (unsigned long long)info->grant.job_id);
    if (from_file(path, &now) || now.job_id != info->grant.job_id || now.uid != info->grant.uid)
        return;
    for (uint32_t i = 0; i < info->grant.ncards; i++) {
        const struct qg_grant_card *card = card_named(&now, qg_card_name(&info->grant.cards[i]));
        if (!card)
            return; /* another promise for this job: ours stands or falls as it is */
        cards[i] = *card;
    }
    memcpy(info->grant.cards, cards, info->grant.ncards * sizeof(cards[0]));
}

int qg_grant_descriptor(void)
{
    struct stat st;
    if (inherited.fd < 0 || fstat(inherited.fd, &st) != 0)
        return -1;
    return st.st_dev == inherited.dev && st.st_ino == inherited.ino ? inherited.fd : -1;
}
