/* SPDX-License-Identifier: Apache-2.0
 *
 * A job that qgpud moved to another card of its node. Slurm knows nothing of that: it lets a new
 * step open the card that it booked, and no other. qgpud corrects the device cgroups of moved jobs
 * ten times a second. Until then a program of the step would not find its card. So the task waits,
 * as the user, after Slurm has put it into its cgroups.
 */
#include "spank_qgpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ms: a restart of qgpud takes 2 s; a program without its card would only fail. Chosen. */
#define WAIT_MS 5000
/* ms: qgpud corrects the cgroups each 100 ms, and access(2) costs some us. Chosen. */
#define POLL_MS 5

/* The card's device file. Simulated cards have theirs where slurmd's environment says. */
static bool device_of(const struct qg_grant_card *card, char *path, size_t size)
{
    const char *simulated = getenv("QGPU_SIM_DIR");
    int len = simulated ? snprintf(path, size, "%s/dev/qgpusim%u", simulated, card->index)
                        : snprintf(path, size, "/dev/nvidia%u", card->minor);

    return len > 0 && (size_t)len < size;
}

/* Does the device cgroup refuse it? The kernel asks the cgroup for access(2) too, and alone answers
 * EPERM. Nothing is opened, as that could start a driver. */
static bool refused(const char *path)
{
    return access(path, R_OK | W_OK) != 0 && errno == EPERM;
}

static long long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void wait_for(const char *path, uint32_t job_id, long long end)
{
    const struct timespec poll = {.tv_nsec = POLL_MS * 1000000L};

    slurm_info("qgpu: spank: job %u was moved to another card: its task waits for %s", job_id,
               path);
    while (refused(path) && now_ms() < end)
        nanosleep(&poll, NULL);
    if (refused(path))
        slurm_error("qgpu: job %u was moved to the card of %s, and its device cgroup does not "
                    "allow that after %d s; the program starts without it",
                    job_id, path, WAIT_MS / 1000);
}

void qg_moved_wait(const struct qg_grant *grant, uint32_t job_id)
{
    long long end = now_ms() + WAIT_MS; /* for all cards together */
    char path[PATH_MAX];

    for (uint32_t i = 0; i < grant->ncards; i++)
        if ((grant->cards[i].flags & QG_GRANT_CARD_MOVED) &&
            device_of(&grant->cards[i], path, sizeof(path)) && refused(path))
            wait_for(path, job_id, end);
}
