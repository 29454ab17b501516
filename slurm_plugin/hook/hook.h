/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-hook: what its files share. docs/specs/hook.md is the protocol in prose.
 */
#ifndef QGPU_HOOK_H
#define QGPU_HOOK_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOOK_PROTOCOL  "qgpu-hook/1"
#define HOOK_MSG_MAX   65536u /* bytes of one message, either way */
#define HOOK_VALUE_MAX 4096u  /* bytes of one variable's value */
#define HOOK_TEXT_MAX  2048u  /* bytes of a sentence for people */
#define HOOK_TRES_MAX  1024u  /* bytes of what Slurm allocated to a job */

enum hook_kind { HOOK_PROLOG, HOOK_EPILOG };

struct hook {
    enum hook_kind kind;
    char run_dir[PATH_MAX];
    const char *scontrol; /* NULL: do not drain with a reason of our own */
    const char *node;     /* may be NULL outside Slurm */
    const char *job_id;   /* digits only */
    int64_t deadline_ns;  /* CLOCK_MONOTONIC */
    int64_t connect_ns;   /* stop trying to connect at this time */
    /* of a job without a tag, by slurmctld: "cpu=1,gres/gpu=1"; "?": no answer */
    char allocated[HOOK_TRES_MAX];
};

int64_t hook_now_ns(void);

/* env.c: which variables travel. */
size_t hook_pack_env(const struct hook *hook, char *out, size_t size);

/* talk.c: one question, one answer. Returns the status that qgpud answered (0..255), or -1 with a
 * reason in text. On success text is the message to show, maybe empty. */
int hook_ask(const struct hook *hook, char *text, size_t size);

/* files.c: what stays on disk. */
bool hook_has_grant(const struct hook *hook);
bool hook_daemon_was_here(const struct hook *hook);
bool hook_leave_ended_marker(const struct hook *hook, char *why, size_t size);
void hook_write_last_failure(const struct hook *hook, const char *sentence);

/* command.c: runs a command of Slurm for five seconds at most; its output goes to out, which may be
 * NULL. False: it failed. look_up asks slurmctld what a job holds that has a card and no tag. */
bool hook_command(const char *program, char *const argv[], char *out, size_t size);
void hook_look_up(struct hook *hook);

/* drain.c */
void hook_drain(const struct hook *hook, const char *reason);

#endif
