/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs Slurm's own commands. A Prolog should not, as each of them asks slurmctld, but two cases are
 * rare. A node that is broken is drained with a reason (drain.c). For a job that holds a card
 * without a tag, squeue is asked what it holds. Such a job may have whole cards, from a time before
 * qgpu was installed. Nothing on the node shows that (docs/adr/0024).
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common/paths.h"

/* A command of Slurm gets 5 s; a Prolog should end soon. Chosen, not measured. */
#define LIMIT_NS 5000000000LL
/* Characters that squeue prints of a job's allocation. A longer one is not used. Chosen, not
 * measured. */
#define FIELD_MAX 1000u
/* Bytes of squeue's output. It has a line of about 1 KiB for each running task of a job array. This
 * is room for some 4000 of them. Chosen, not measured. */
#define LINES_MAX (4u << 20)

static void exec_command(const char *program, char *const argv[], int out)
{
    static char conf[PATH_MAX + 16];
    char *env[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL, NULL};
    const char *slurm_conf = getenv("SLURM_CONF");
    int null = open("/dev/null", O_RDWR);

    if (slurm_conf && snprintf(conf, sizeof(conf), "SLURM_CONF=%s", slurm_conf) < (int)sizeof(conf))
        env[1] = conf;
    if (null >= 0) {
        dup2(null, 0);
        dup2(out >= 0 ? out : null, 1);
    }
    setpgid(0, 0);
    execve(program, argv, env);
    fprintf(stderr, "qgpu-hook: %s cannot be run\n", program);
    _exit(127);
}

static int wait_limited(pid_t pid, int64_t until)
{
    int status = 0;

    while (hook_now_ns() < until) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        /* 5 ms until the next check; chosen, not measured */
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return status;
}

/* Reads fd until its end, the time `until`, or a full buffer. */
static void read_all(int fd, char *out, size_t size, int64_t until)
{
    size_t used = 0;

    while (used + 1 < size && hook_now_ns() < until) {
        struct pollfd pfd = {.fd = fd, .events = POLLIN};
        int left = (int)((until - hook_now_ns()) / 1000000) + 1;

        if (poll(&pfd, 1, left) <= 0)
            continue;
        ssize_t got = read(fd, out + used, size - 1 - used);
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        used += got > 0 ? (size_t)got : 0;
    }
    out[used] = '\0';
}

bool hook_command(const char *program, char *const argv[], char *out, size_t size)
{
    char why[HOOK_TEXT_MAX];
    int ends[2] = {-1, -1};
    int64_t until = hook_now_ns() + LIMIT_NS;

    if (!qg_path_trusted(program, why, sizeof(why))) {
        fprintf(stderr, "qgpu-hook: %s is not run: %s\n", program, why);
        return false;
    }
    if (out && pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        exec_command(program, argv, ends[1]);
    if (out)
        close(ends[1]);
    if (out && pid > 0)
        read_all(ends[0], out, size, until);
    if (out)
        close(ends[0]);
    if (pid < 0)
        return false;
    int status = wait_limited(pid, until);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool is_tag(const char *field)
{
    return field && strncmp(field + strspn(field, " \t\n\r\v\f"), "qgpu/", 5) == 0;
}

static bool untagged_card(void)
{
    const char *gpus = getenv("SLURM_JOB_GPUS"), *native = getenv("QGPU_NATIVE_SHARE");

    return gpus && *gpus && !(native && *native) && !is_tag(getenv("SLURM_JOB_COMMENT")) &&
           !is_tag(getenv("SLURM_JOB_EXTRA"));
}

/* The second word of the job's line, such as "4711   cpu=1,gres/gpu=1". For the first job of an
 * array squeue prints the lines of the other tasks as well. */
static void read_allocation(const char *text, const char *job_id, char *out, size_t size)
{
    size_t len = strlen(job_id);

    for (const char *line = text; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *word = line + strspn(line, " ");

        if (strncmp(word, job_id, len) != 0 || word[len] != ' ')
            continue;
        word += len + strspn(word + len, " ");
        size_t field_len = strcspn(word, " \n");
        /* squeue cuts a field that is too long. The missing part could be a share: use none. */
        snprintf(out, size, "%.*s", field_len < FIELD_MAX ? (int)field_len : 0, word);
        return;
    }
}

void hook_query_allocation(struct hook *hook)
{
    static char text[LINES_MAX];
    char program[PATH_MAX], fields[32];
    char *argv[] = {"squeue", "-h", "-j", (char *)hook->job_id, "-O", fields, NULL};
    const char *slash = hook->scontrol ? strrchr(hook->scontrol, '/') : NULL;

    hook->allocated[0] = '\0';
    if (!slash || !untagged_card())
        return;
    snprintf(fields, sizeof(fields), "JobID:20,tres-alloc:%u", FIELD_MAX);
    snprintf(program, sizeof(program), "%.*s/squeue", (int)(slash - hook->scontrol),
             hook->scontrol);
    int64_t began = hook_now_ns();
    if (hook_command(program, argv, text, sizeof(text)))
        read_allocation(text, hook->job_id, hook->allocated, sizeof(hook->allocated));
    if (!hook->allocated[0]) {
        snprintf(hook->allocated, sizeof(hook->allocated), "?");
        fprintf(stderr, "qgpu-hook: %s did not say what job %s holds\n", program, hook->job_id);
    }
    /* The time that squeue took is not taken from the time for qgpud's answer. */
    hook->deadline_ns += hook_now_ns() - began;
}
