/* SPDX-License-Identifier: Apache-2.0
 *
 * Which job a process belongs to, by the slurmstepds that are recorded in run_dir/steps. Only root
 * makes these records. docs/specs/identity.md has the rule; enforcer/daemon/audit/steps.py is the
 * same in Python. Names of cgroups prove nothing here: a directory counts because a recorded
 * slurmstepd is in it.
 */
#include "qg_steps.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    BUCKETS = 256,             /* lists of records, by their pids; chosen, not measured */
    MAX_TEXT = 8192,           /* bytes of a cgroup file that are read */
    SETTLED_NS = 100 * 1000000 /* age of a directory's date: file systems have coarse clocks */
};

struct step {
    struct step *next;
    ino_t inode; /* of its file */
    struct step_daemon daemon;
    bool seen;  /* its file was there at the last look */
    char *dirs; /* lines of its cgroup file, each cut to the job's directory; may be empty */
};

static struct {
    struct step *of[BUCKETS];
    struct timespec date; /* of the directory, at the last look; 0 = look again */
} known;

#define FOR_EACH_STEP(s)                                                                           \
    for (unsigned int bucket = 0; bucket < BUCKETS; bucket++)                                      \
        for (struct step *s = known.of[bucket]; s; s = s->next)

static struct step **bucket_of(pid_t pid)
{
    return &known.of[(unsigned int)pid % BUCKETS];
}

ssize_t slurp(pid_t pid, const char *name, char *buf, size_t cap)
{
    char path[64];
    size_t len = 0;
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    while (len < cap - 1) {
        ssize_t got = read(fd, buf + len, cap - 1 - len);
        if (got <= 0)
            break;
        len += (size_t)got;
    }
    close(fd);
    buf[len] = 0;
    return (ssize_t)len;
}

uint64_t start_of(pid_t pid)
{
    char buf[1024];
    if (slurp(pid, "stat", buf, sizeof(buf)) <= 0)
        return 0;
    char *at = strrchr(buf, ')'); /* the last one: the program's name may contain others */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

pid_t parent_of(pid_t pid)
{
    char buf[4096];
    int parent = 0;
    const char *at = slurp(pid, "status", buf, sizeof(buf)) > 0 ? strstr(buf, "\nPPid:") : NULL;
    return at && sscanf(at, " PPid: %d", &parent) == 1 ? parent : 0;
}

size_t steps_job_dir(const char *path, size_t len)
{
    size_t last = 0, before = 0; /* where the last two names begin, with their slashes */
    for (size_t i = len; i-- > 0;) {
        if (path[i] != '/')
            continue;
        if (i > 0 && len - i >= 6 && strncmp(path + i, "/step_", 6) == 0)
            return i;
        if (!last) {
            last = i;
        } else if (!before) {
            before = i;
        }
    }
    return last && strncmp(path + before, "/uid_", 5) == 0 ? len : 0;
}

/* Where the path of a line of a cgroup file begins. The line is "NUMBER:CONTROLLERS:PATH". */
static size_t path_at(const char *line, size_t len)
{
    const char *colon = memchr(line, ':', len);
    colon = colon ? memchr(colon + 1, ':', len - (size_t)(colon + 1 - line)) : NULL;
    return colon ? (size_t)(colon + 1 - line) : len;
}

char *steps_job_dirs(const char *text)
{
    char *out = calloc(1, strlen(text) + 2), *end = out;
    for (const char *line = text; out && *line;) {
        size_t len = strcspn(line, "\n"), at = path_at(line, len);
        size_t dir = steps_job_dir(line + at, len - at);
        if (dir) {
            memcpy(end, line, at + dir);
            end += at + dir;
            *end++ = '\n';
        }
        line += len + (line[len] != 0);
    }
    return out;
}

size_t steps_inside(const char *text, const char *dirs)
{
    for (const char *dir = dirs; *dir;) {
        size_t len = strcspn(dir, "\n");
        for (const char *line = text; *line;) {
            size_t whole = strcspn(line, "\n");
            bool below = whole >= len && strncmp(line, dir, len) == 0;
            if (below && (whole == len || line[len] == '/'))
                return len;
            line += whole + (line[whole] != 0);
        }
        dir += len + (dir[len] != 0);
    }
    return 0;
}

bool steps_read(int dir, const char *name, uid_t owner, char *buf, size_t cap, ino_t *inode)
{
    struct stat st;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool ours =
        fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == owner && !(st.st_mode & 022);
    ssize_t got = ours ? read(fd, buf, cap - 1) : -1;
    close(fd);
    if (got <= 0)
        return false;
    buf[got] = 0;
    if (inode)
        *inode = st.st_ino;
    return true;
}

/* Reads one record. */
static bool record(int dir, const char *name, uid_t owner, struct step_daemon *d, ino_t *inode)
{
    char buf[256];
    return steps_read(dir, name, owner, buf, sizeof(buf), inode) &&
           sscanf(buf, " { \"job\" : %" SCNu64 " , \"pid\" : %d , \"start\" : %" SCNu64, &d->job,
                  &d->pid, &d->start) == 3 &&
           d->job && d->pid > 1 && d->pid == atoi(name) && d->start;
}

/* A record counts if its slurmstepd lives. */
static struct step *step_new(uid_t owner, int dir, const char *name)
{
    char text[MAX_TEXT];
    struct step_daemon d;
    ino_t inode;
    if (!record(dir, name, owner, &d, &inode) || start_of(d.pid) != d.start)
        return NULL;
    struct step *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->dirs = steps_job_dirs(slurp(d.pid, "cgroup", text, sizeof(text)) > 0 ? text : "");
    s->inode = inode;
    s->daemon = d;
    if (s->dirs)
        return s;
    free(s);
    return NULL;
}

static void keep_or_add(uid_t owner, int dir, const struct dirent *entry)
{
    if (!isdigit((unsigned char)entry->d_name[0]))
        return;
    pid_t pid = atoi(entry->d_name);
    struct step **first = bucket_of(pid);
    for (struct step *s = *first; s; s = s->next)
        if (s->daemon.pid == pid && s->inode == entry->d_ino) {
            s->seen = true;
            return;
        }
    struct step *s = step_new(owner, dir, entry->d_name);
    if (!s)
        return;
    s->seen = true;
    s->next = *first;
    *first = s;
}

static void forget_unseen(struct step **at)
{
    while (*at) {
        struct step *s = *at;
        if (s->seen) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        free(s->dirs);
        free(s);
    }
}

unsigned int steps_others(int dir, uid_t owner, uint64_t job)
{
    unsigned int living = 0;
    int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = own >= 0 ? fdopendir(own) : NULL;
    if (!list && own >= 0)
        close(own);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        struct step_daemon d;
        if (!isdigit((unsigned char)entry->d_name[0]) ||
            !record(dir, entry->d_name, owner, &d, NULL))
            continue;
        if (start_of(d.pid) != d.start)
            unlinkat(dir, entry->d_name, 0);
        else if (d.job == job && d.pid != getpid())
            living++;
    }
    if (list)
        closedir(list);
    return living;
}

static int64_t ns_of(const struct timespec *at)
{
    return at->tv_sec * (int64_t)1000000000 + at->tv_nsec;
}

/* Looks at the directory if it changed since the last time. */
static void look(const char *run_dir, uid_t owner)
{
    char path[512];
    struct stat st;
    struct timespec now;
    snprintf(path, sizeof(path), "%s/steps", run_dir);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool ours = fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == owner && !(st.st_mode & 022);
    if (ours && known.date.tv_sec && ns_of(&known.date) == ns_of(&st.st_mtim)) {
        close(fd);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    FOR_EACH_STEP(s)
    s->seen = false;
    DIR *list = ours ? fdopendir(fd) : NULL;
    if (!list && fd >= 0)
        close(fd);
    for (struct dirent *entry; list && (entry = readdir(list));)
        keep_or_add(owner, dirfd(list), entry);
    if (list)
        closedir(list);
    for (unsigned int i = 0; i < BUCKETS; i++)
        forget_unseen(&known.of[i]);
    known.date = (struct timespec){0};
    if (list && ns_of(&now) - ns_of(&st.st_mtim) > SETTLED_NS)
        known.date = st.st_mtim;
}

/* The job of the deepest recorded directory that the process is in. Two jobs with the same
 * directory (slurmstepds that their cgroup plugin left where slurmd is) prove nothing. */
static uint64_t by_cgroup(pid_t pid)
{
    char text[MAX_TEXT];
    size_t deepest = 0;
    uint64_t job = 0;
    if (slurp(pid, "cgroup", text, sizeof(text)) <= 0)
        return 0;
    FOR_EACH_STEP(s)
    {
        size_t depth = steps_inside(text, s->dirs);
        if (depth < deepest || depth == 0 || (depth == deepest && job == s->daemon.job) ||
            start_of(s->daemon.pid) != s->daemon.start)
            continue;
        job = depth == deepest ? 0 : s->daemon.job;
        deepest = depth;
    }
    return job;
}

uint64_t steps_job_of(const char *run_dir, uid_t owner, pid_t pid)
{
    look(run_dir, owner);
    uint64_t job = by_cgroup(pid);
    for (int i = 0; !job && i < MAX_ANCESTORS && pid > 1; i++) {
        for (struct step *s = *bucket_of(pid); s && i > 0; s = s->next)
            if (s->daemon.pid == pid && start_of(pid) == s->daemon.start)
                return s->daemon.job;
        pid = parent_of(pid);
    }
    return job;
}
