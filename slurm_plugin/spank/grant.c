/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads and checks the grant file, and makes its sealed copy. The copy is made as root, so root
 * owns it. No other user can make such a descriptor. So the shim and the arbiter can trust it.
 */
#include "spank_qgpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/paths.h"

/* Lowest number of the grant's descriptor in a task. Some programs expect 3, 4 and 5 to be free.
 * Chosen, not measured. */
#define FIRST_FD 100

/* Does the text end inside its field? Is it an absolute path where it has to be? */
static bool text_ok(const char *field, size_t size, bool absolute_path)
{
    if (!memchr(field, '\0', size))
        return false;
    return !absolute_path || field[0] == '/';
}

static const char *card_fault(const struct qg_grant_card *card)
{
    if (!text_ok(card->uuid, sizeof(card->uuid), false) || !card->uuid[0])
        return "a card without a UUID";
    if (card->share < 1 || card->share > 100)
        return "a share outside 1..100";
    if (card->mem_cap == 0 || card->mem_cap > card->mem_total)
        return "a memory cap of zero or above the card";
    return NULL;
}

/* The first fault of the grant, or NULL. */
static const char *grant_fault(const struct qg_grant *g, uint32_t job_id, uid_t uid)
{
    if (g->magic != QG_MAGIC)
        return "it does not start with QGPU";
    if (g->version != QG_GRANT_VERSION)
        return "its version is another one: qgpud and this plugin are from different releases";
    if (g->size != sizeof(*g))
        return "its size field is wrong";
    if (g->job_id != job_id)
        return "it names another job";
    if (g->uid != uid)
        return "it names another user";
    if (!text_ok(g->message, sizeof(g->message), false))
        return "its message has no end";
    if (g->state == QG_GRANT_REFUSED || g->state == QG_GRANT_WHOLE)
        return NULL;
    if (g->state != QG_GRANT_ACTIVE)
        return "its state is unknown";
    if (g->job_class != QG_CLASS_ONLINE && g->job_class != QG_CLASS_OFFLINE)
        return "its class is unknown";
    if (g->injection > QG_INJECT_MOUNT)
        return "its way of injection is unknown: qgpud and this plugin are from different releases";
    if (g->ncards < 1 || g->ncards > QG_MAX_CARDS)
        return "its number of cards is out of range";
    if (!text_ok(g->run_dir, sizeof(g->run_dir), true) ||
        !text_ok(g->driver_path, sizeof(g->driver_path), true) ||
        !text_ok(g->shim_path, sizeof(g->shim_path), true) ||
        !text_ok(g->node, sizeof(g->node), false))
        return "one of its paths is not absolute";
    if (strpbrk(g->shim_path, ": "))
        return "the shim's path holds a colon or a blank, which LD_PRELOAD cannot carry";
    for (uint32_t i = 0; i < g->ncards; i++)
        if (card_fault(&g->cards[i]))
            return card_fault(&g->cards[i]);
    return NULL;
}

/* Reads the grant from a regular file of exactly its size. Root must own it, and no other user may
 * write it. Returns a fault, or NULL. */
static const char *file_fault(int fd, struct qg_grant *grant)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return strerror(errno);
    if (!S_ISREG(st.st_mode))
        return "it is not a regular file";
    if (st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)))
        return "it can be written by others than root";
    if (st.st_size != (off_t)sizeof(*grant))
        return "its length is not that of a grant";
    if (pread(fd, grant, sizeof(*grant), 0) != (ssize_t)sizeof(*grant))
        return "it could not be read in full";
    return NULL;
}

/* Has the job's grant ended? qgpud writes JOB.over then (gres/grant/store.py). The caller has
 * checked that only root can write into the directory. */
static bool is_over(int dir, uint32_t job_id)
{
    char name[32];
    struct stat st;

    snprintf(name, sizeof(name), "%u.over", job_id);
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
           st.st_uid == 0;
}

enum qg_read qg_grant_read(const char *run_dir, uint32_t job_id, uid_t uid, struct qg_grant *grant,
                           char *path, size_t path_size, char *why, size_t why_size)
{
    char dir_path[PATH_MAX], name[32];

    if ((size_t)snprintf(dir_path, sizeof(dir_path), "%s/%s", run_dir, QG_GRANTS_DIR) >=
            sizeof(dir_path) ||
        (size_t)snprintf(path, path_size, "%s/%s/%u.grant", run_dir, QG_GRANTS_DIR, job_id) >=
            path_size) {
        snprintf(why, why_size, "%s is too long a path", run_dir);
        return QG_READ_NO_DIR;
    }
    int dir = qg_open_trusted_dir(dir_path, why, why_size);
    if (dir < 0) /* ENOENT: qgpud never made a grant on this node */
        return errno == ENOENT ? QG_READ_NONE : QG_READ_NO_DIR;
    snprintf(name, sizeof(name), "%u.grant", job_id);
    /* With O_NONBLOCK a FIFO of this name cannot make slurmstepd hang. */
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int err = errno;
    bool over = fd < 0 && err == ENOENT && is_over(dir, job_id);
    close(dir);
    if (over) {
        snprintf(why, why_size,
                 "its grant on this node has ended, and Slurm started it again without its Prolog");
        return QG_READ_OVER;
    }
    if (fd < 0) {
        snprintf(why, why_size, "%s: %s", path, strerror(err));
        return err == ENOENT ? QG_READ_NONE : QG_READ_BROKEN;
    }
    const char *fault = file_fault(fd, grant);
    if (!fault)
        fault = grant_fault(grant, job_id, uid);
    close(fd);
    if (fault)
        snprintf(why, why_size, "%s: %s", path, fault);
    return fault ? QG_READ_BROKEN : QG_READ_OK;
}

bool qg_libraries_trusted(const struct qg_grant *grant, const char *nvml, char *why, size_t size)
{
    const char *paths[] = {grant->shim_path, nvml, grant->driver_path};

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (paths[i][0] && !qg_path_trusted(paths[i], why, size) && errno != ENOENT)
            return false;
    return true;
}

bool qg_grant_note_fetched(const char *run_dir, uint32_t job_id, char *why, size_t why_size)
{
    char path[PATH_MAX], name[32];

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", run_dir, QG_GRANTS_DIR) >= sizeof(path)) {
        snprintf(why, why_size, "%s is too long a path", run_dir);
        return false;
    }
    int dir = qg_open_trusted_dir(path, why, why_size);
    if (dir < 0)
        return false;
    snprintf(name, sizeof(name), "%u.fetched", job_id);
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0)
        snprintf(why, why_size, "%s/%s: %s", path, name, strerror(errno));
    else
        close(fd);
    close(dir);
    return fd >= 0;
}

int qg_grant_seal(const struct qg_grant *grant)
{
    int fd = memfd_create("qgpu-grant", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    int high = -1, err;

    if (fd < 0)
        return -1;
    if (write(fd, grant, sizeof(*grant)) == (ssize_t)sizeof(*grant) && fchmod(fd, 0444) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        high = fcntl(fd, F_DUPFD, FIRST_FD); /* not close-on-exec, so that the task inherits it */
    err = errno;
    close(fd);
    errno = err;
    return high;
}
