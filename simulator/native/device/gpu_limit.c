/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory limits of cgroups, as NVML of driver generation 615 sets them: a hard limit is enforced at
 * allocation, over all processes at or below the directory; a process whose own cgroup has a limit
 * sees it as the size of the card. The soft limit is stored and reported, there is no eviction
 * here. A limit ends with its directory.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gpu.h"

enum place { ELSEWHERE, BELOW, HERE };

/* "N:controllers:path" of /proc/PID/cgroup, as directories below /sys/fs/cgroup. NVIDIA's driver
 * knows cgroup v2 alone; on a machine with version 1 hierarchies one of those serves here as well.
 */
static enum place place_in_line(char *line, const char *dir)
{
    static const char *const unified[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL, full[4200];
    enum place best = ELSEWHERE;
    if (!path)
        return ELSEWHERE;
    path[strcspn(path, "\n")] = 0;
    *path++ = 0;
    names++;
    for (unsigned i = 0; i < 2; i++) {
        if (*names && i)
            break;
        if (*names)
            snprintf(full, sizeof full, "/sys/fs/cgroup/%s%s",
                     strncmp(names, "name=", 5) ? names : names + 5, path);
        else
            snprintf(full, sizeof full, "%s%s", unified[i], path);
        size_t len = strlen(full);
        while (len && full[len - 1] == '/')
            full[--len] = 0;
        if (strcmp(full, dir) == 0)
            return HERE;
        if (strncmp(full, dir, strlen(dir)) == 0 && full[strlen(dir)] == '/')
            best = BELOW;
    }
    return best;
}

static enum place place_of(const struct gpu_conn *conn, const char *dir)
{
    char name[64], line[4200];
    enum place best = ELSEWHERE;
    snprintf(name, sizeof name, "/proc/%d/cgroup", (int)conn->pid);
    FILE *file = fopen(name, "re");
    while (file && best != HERE && fgets(line, sizeof line, file)) {
        enum place here = place_in_line(line, dir);
        best = here > best ? here : best;
    }
    if (file)
        fclose(file);
    return best;
}

static uint64_t used_by(const struct gpu *gpu, const struct gpu_card *card, const char *dir)
{
    uint64_t sum = 0;
    for (const struct gpu_conn *conn = gpu->conns; conn; conn = conn->next)
        if (conn->ctxs && place_of(conn, dir) != ELSEWHERE)
            sum += gpu_conn_memory(conn, card);
    return sum;
}

static bool is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static void drop(struct gpu_limit **link)
{
    struct gpu_limit *dead = *link;
    *link = dead->next;
    free(dead);
}

static void drop_removed(struct gpu *gpu)
{
    for (struct gpu_limit **link = &gpu->limits; *link;)
        if (is_dir((*link)->dir))
            link = &(*link)->next;
        else
            drop(link);
}

static struct gpu_limit **find(struct gpu *gpu, uint32_t card, const char *dir)
{
    struct gpu_limit **link = &gpu->limits;
    while (*link && ((*link)->card != card || strcmp((*link)->dir, dir) != 0))
        link = &(*link)->next;
    return link;
}

/* A directory below /sys/fs/cgroup without a slash at the end. */
static int check(const struct gpu *gpu, const struct sim_req *req, const char *dir, char *clean)
{
    size_t len = strlen(dir);
    if (req->a >= gpu->config.cards)
        return CUDA_ERROR_INVALID_DEVICE;
    while (len > 1 && dir[len - 1] == '/')
        len--;
    snprintf(clean, SIM_TEXT, "%.*s", (int)len, dir);
    if (strncmp(clean, "/sys/fs/cgroup", 14) != 0 || strstr(clean, "/../") || !is_dir(clean))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

int gpu_limit_set(struct gpu *gpu, const struct sim_req *req, const char *dir)
{
    char clean[SIM_TEXT];
    int status = check(gpu, req, dir, clean);
    if (status == CUDA_SUCCESS && req->b > req->c)
        status = CUDA_ERROR_INVALID_VALUE;
    if (status != CUDA_SUCCESS)
        return status;
    struct gpu_limit **link = find(gpu, (uint32_t)req->a, clean), *limit = *link;
    if (req->b == 0 && req->c == UINT64_MAX) {
        if (limit)
            drop(link);
        return CUDA_SUCCESS;
    }
    if (!limit) {
        limit = *link = calloc(1, sizeof *limit);
        if (!limit)
            return CUDA_ERROR_OUT_OF_MEMORY;
        limit->card = (uint32_t)req->a;
        memcpy(limit->dir, clean, sizeof clean);
    }
    limit->soft = req->b;
    limit->hard = req->c;
    return CUDA_SUCCESS;
}

int gpu_limit_get(struct gpu *gpu, const struct sim_req *req, const char *dir, struct sim_rep *rep)
{
    char clean[SIM_TEXT];
    int status = check(gpu, req, dir, clean);
    if (status != CUDA_SUCCESS)
        return status;
    const struct gpu_limit *limit = *find(gpu, (uint32_t)req->a, clean);
    rep->a = limit ? limit->soft : 0;
    rep->b = limit ? limit->hard : UINT64_MAX;
    rep->c = used_by(gpu, &gpu->cards[req->a], clean);
    return CUDA_SUCCESS;
}

uint64_t gpu_limit_room(struct gpu_conn *conn, const struct gpu_card *card, uint64_t *total,
                        uint64_t *used)
{
    struct gpu *gpu = card->gpu;
    *total = card->mem_total;
    *used = card->mem_used;
    uint64_t room = *total - *used;
    drop_removed(gpu);
    for (const struct gpu_limit *limit = gpu->limits; limit; limit = limit->next) {
        enum place place = limit->card == card->index ? place_of(conn, limit->dir) : ELSEWHERE;
        if (place == ELSEWHERE || limit->hard >= card->mem_total)
            continue;
        uint64_t have = used_by(gpu, card, limit->dir),
                 left = have < limit->hard ? limit->hard - have : 0;
        room = left < room ? left : room;
        if (place == HERE) {
            *total = limit->hard;
            *used = have < limit->hard ? have : limit->hard;
        }
    }
    return room;
}
