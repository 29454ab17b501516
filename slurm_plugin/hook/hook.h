/* SPDX-License-Identifier: Apache-2.0
 *
 * What the sources of qgpu-hook share. docs/specs/hook.md describes the protocol.
 */
#ifndef QGPU_HOOK_H
#define QGPU_HOOK_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOOK_PROTOCOL "qgpu-hook/1"
/* In bytes. The first two are in the protocol (docs/specs/hook.md). */
#define HOOK_MSG_MAX   65536u /* of one message in either direction */
#define HOOK_VALUE_MAX 4096u  /* of one variable's value */
#define HOOK_TEXT_MAX  2048u  /* of a sentence for people; chosen, not measured */
#define HOOK_TRES_MAX  1024u  /* of a job's allocation; more than FIELD_MAX in command.c */

enum hook_kind { HOOK_PROLOG, HOOK_EPILOG };

struct hook {
    enum hook_kind kind;
    char run_dir[PATH_MAX];
    const char *scontrol; /* NULL: do not drain with a reason of our own */
    const char *node;     /* may be NULL outside Slurm */
    const char *job_id;   /* digits only */
    int64_t deadline_ns;  /* CLOCK_MONOTONIC */
    int64_t connect_ns;   /* how long it tries to connect */
    /* What slurmctld says that a job without a tag holds: "cpu=1,gres/gpu=1"; "?": no answer. */
    char allocated[HOOK_TRES_MAX];
};

int64_t hook_now_ns(void);

/* env.c: the message to qgpud, with the job's variables. Returns its length. */
size_t hook_pack_env(const struct hook *hook, char *out, size_t size);

/* talk.c: one question and its answer. Returns the status that qgpud answered (0..255), with its
 * message in text, which may be empty; or -1 with a reason in text. */
int hook_ask(const struct hook *hook, char *text, size_t size);

/* files.c: what is on disk. */
bool hook_has_grant(const struct hook *hook);
bool hook_daemon_was_here(const struct hook *hook);
bool hook_leave_ended_marker(const struct hook *hook, char *why, size_t size);
void hook_write_last_failure(const struct hook *hook, const char *sentence);

/* command.c: runs a command of Slurm for five seconds at most; its output goes to out, which may be
 * NULL. False: it failed. hook_query_allocation asks slurmctld what the job holds, if it has a card
 * but no tag. */
bool hook_command(const char *program, char *const argv[], char *out, size_t size);
void hook_query_allocation(struct hook *hook);

/* drain.c */
void hook_drain(const struct hook *hook, const char *reason);

#endif
