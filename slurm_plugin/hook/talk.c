/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends one question to qgpud and receives its answer, within a deadline. If qgpud is just being
 * restarted, it waits: it tries again after a refused connection, and after one that ended without
 * an answer. qgpud may get the same question twice without harm.
 */
#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../common/paths.h"
#include "qgpu_abi.h"

#define RETRY_NS 20000000 /* 20 ms between two attempts to connect; chosen, not measured */

enum outcome { ANSWERED, TRY_AGAIN, HOPELESS };

int64_t hook_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int remaining_ms(int64_t until_ns)
{
    int64_t left = until_ns - hook_now_ns();

    return left <= 0 ? 0 : (int)(left / 1000000) + 1;
}

/* The socket must be root's, in a directory that only root can change. Otherwise any user could
 * answer in the name of qgpud. */
static enum outcome check_socket(const struct hook *hook, char *why, size_t size)
{
    struct stat st;
    int dir = qg_open_trusted_dir(hook->run_dir, why, size);

    if (dir < 0)
        return errno == ENOENT ? TRY_AGAIN : HOPELESS;
    int rc = fstatat(dir, QG_SOCK_HOOK, &st, AT_SYMLINK_NOFOLLOW);
    int err = errno;
    close(dir);
    if (rc != 0) {
        snprintf(why, size, "%s/%s: %s", hook->run_dir, QG_SOCK_HOOK, strerror(err));
        return err == ENOENT ? TRY_AGAIN : HOPELESS;
    }
    if (!S_ISSOCK(st.st_mode) || st.st_uid != 0) {
        snprintf(why, size, "%s/%s is not a socket that root owns", hook->run_dir, QG_SOCK_HOOK);
        return HOPELESS;
    }
    return ANSWERED;
}

static enum outcome connect_to_daemon(const struct hook *hook, int *out, char *why, size_t size)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t len = sizeof(peer);
    enum outcome check = check_socket(hook, why, size);

    if (check != ANSWERED)
        return check;
    if ((size_t)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/%s", hook->run_dir,
                         QG_SOCK_HOOK) >= sizeof(addr.sun_path)) {
        snprintf(why, size, "the path %s/%s is too long for a socket (%zu bytes at most)",
                 hook->run_dir, QG_SOCK_HOOK, sizeof(addr.sun_path) - 1);
        return HOPELESS;
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
        snprintf(why, size, "%s: %s", addr.sun_path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return TRY_AGAIN; /* ECONNREFUSED: qgpud has not started yet; EAGAIN: its queue is full */
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 || peer.uid != 0) {
        snprintf(why, size, "%s is not served by root", addr.sun_path);
        close(fd);
        return HOPELESS;
    }
    *out = fd;
    return ANSWERED;
}

/* Parses "qgpu-hook/1 STATUS" NUL MESSAGE; MESSAGE need not end with a NUL. -1: not an answer. */
static int parse_answer(char *msg, size_t len, char *text, size_t size)
{
    static const char prefix[] = HOOK_PROTOCOL " ";
    char *head_end = memchr(msg, '\0', len);
    char *end = NULL;

    if (!head_end || strncmp(msg, prefix, sizeof(prefix) - 1) != 0)
        return -1;
    const char *digits = msg + sizeof(prefix) - 1;
    long status = strtol(digits, &end, 10);
    if (end == digits || *end != '\0' || *digits == '-' || *digits == '+' || status < 0 ||
        status > 255)
        return -1;
    size_t text_len = strnlen(head_end + 1, len - (size_t)(head_end + 1 - msg));
    if (text_len >= size)
        text_len = size - 1;
    memcpy(text, head_end + 1, text_len);
    text[text_len] = '\0';
    return (int)status;
}

static enum outcome exchange(const struct hook *hook, int fd, int *status, char *text, size_t size)
{
    static char buf[HOOK_MSG_MAX];
    size_t len = hook_pack_env(hook, buf, sizeof(buf));
    struct pollfd pfd = {.fd = fd, .events = POLLIN};

    if (send(fd, buf, len, MSG_NOSIGNAL) != (ssize_t)len) {
        snprintf(text, size, "the question could not be sent: %s", strerror(errno));
        return TRY_AGAIN;
    }
    for (;;) {
        int rc = poll(&pfd, 1, remaining_ms(hook->deadline_ns));
        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0) {
            snprintf(text, size, "no answer in time");
            return HOPELESS;
        }
        break;
    }
    ssize_t got = recv(fd, buf, sizeof(buf) - 1, 0);
    if (got <= 0) {
        snprintf(text, size, "the connection ended without an answer");
        return TRY_AGAIN;
    }
    *status = parse_answer(buf, (size_t)got, text, size);
    if (*status >= 0)
        return ANSWERED;
    snprintf(text, size, "an answer that is not %s: is another version installed?", HOOK_PROTOCOL);
    return HOPELESS;
}

int hook_ask(const struct hook *hook, char *text, size_t size)
{
    int64_t until = hook_now_ns() + hook->connect_ns;

    for (;;) {
        int fd = -1, status = -1;
        enum outcome outcome = connect_to_daemon(hook, &fd, text, size);
        bool connected = outcome == ANSWERED;

        if (connected) {
            outcome = exchange(hook, fd, &status, text, size);
            close(fd);
        }
        if (outcome == ANSWERED)
            return status;
        int64_t now = hook_now_ns();
        if (connected)
            until =
                now + hook->connect_ns; /* a qgpud that restarts gets as long as one that starts */
        if (outcome == HOPELESS || now + RETRY_NS >= hook->deadline_ns || now + RETRY_NS >= until)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
    }
}
