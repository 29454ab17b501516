/* SPDX-License-Identifier: Apache-2.0
 *
 * A hostile program of a job, for tests/security/test_hostile_live.py: `shim-evil ATTACK [PIECES]`.
 * It takes that many pieces of 64 MiB behind the shim's back, works on the card like any other
 * under the shim, and meanwhile abuses at full speed what every process of a job is handed: the job
 * page and the doorbell. It finds them as an attacker would, in /proc/self.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "qgpu_abi.h"
#include "submit.h"

static struct qg_job_page *job;
static struct qg_proc *mine;
static int bell = -1;
static uint64_t state = 88172645463325252ull;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static void find_page(void)
{
    char line[512], *end;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && fgets(line, sizeof(line), maps))
        if ((strstr(line, "qgpu-job") || strstr(line, "bpf-map")) && strstr(line, "rw-s")) {
            uintptr_t start = strtoull(line, &end, 16);
            /* the whole of it: single slots are mapped as well */
            if (strtoull(end + 1, NULL, 16) - start >= sizeof(*job))
                job = (struct qg_job_page *)start;
        }
    MUST(!job);
    fclose(maps);
    for (unsigned i = 0; i < QG_MAX_PROCS; i++)
        if (job->procs[i].pid == (uint32_t)getpid())
            mine = &job->procs[i];
    MUST(!mine);
}

static void find_bell(void)
{
    char path[32], target[64];
    for (int fd = 200; fd < 1024; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        if (n > 0 && (target[n] = 0, strstr(target, "eventfd")))
            bell = fd;
    }
    MUST(bell < 0);
}

static void random_bytes(void)
{
    uint64_t *at = (uint64_t *)job;
    for (size_t i = 0; i < sizeof(*job) / 8; i++)
        at[i] = draw();
}

static void all_ones(void)
{
    memset(job, 0xff, sizeof(*job));
}

static void all_zeros(void)
{
    memset(job, 0, sizeof(*job));
}

/* Work without end: markers that never arrive, threads that wait, launches that never happened. */
static void always_busy(void)
{
    mine->waiting = 65000;
    mine->unfenced = 1;
    mine->launches += 1u << 20;
    for (unsigned i = 0; i < QG_FENCES; i++)
        mine->fences[i].submitted = mine->fences[i].done + 1 + (uint32_t)draw() % 1000;
}

/* No work at all, whatever it really does. */
static void always_idle(void)
{
    mine->waiting = mine->unfenced = 0;
    mine->launches = 0;
    for (unsigned i = 0; i < QG_LANES; i++)
        mine->lanes[i].launches = 0;
    for (unsigned i = 0; i < QG_FENCES; i++)
        mine->fences[i].submitted = mine->fences[i].done;
}

/* Counters that run backwards, jump and overflow. */
static void counters(void)
{
    mine->launches -= draw() % 1000;
    for (unsigned i = 0; i < QG_LANES; i++)
        mine->lanes[i].launches = draw() >> (draw() % 64);
    mine->mem_denied = draw();
    mine->copy_bytes = draw();
    mine->mem_peak = draw();
    mine->mem_pending = draw();
}

static void ring(void)
{
    static const uint64_t one = 1;
    for (int i = 0; i < 1000; i++)
        if (write(bell, &one, sizeof(one)) < 0)
            break;
}

static void *drainer(void *arg)
{
    uint64_t seen;
    while (read(bell, &seen, sizeof(seen)) || true)
        ;
    return arg;
}

/* Everybody's description of the doorbell made blocking, filled to the brim, and drained. */
static void drain(void)
{
    static const uint64_t brim = UINT64_MAX - 1;
    static bool threads;
    pthread_t thread;
    for (int i = 0; !threads && i < 2; i++)
        MUST(pthread_create(&thread, NULL, drainer, NULL));
    threads = true;
    fcntl(bell, F_SETFL, draw() % 2 ? 0 : O_NONBLOCK);
    if (write(bell, &brim, sizeof(brim)) < 0)
        usleep(100);
}

static void hide_memory(void)
{
    mine->mem_used = mine->mem_pending = 0;
}

static const struct {
    const char *name;
    void (*step)(void);
} attacks[] = {{"random", random_bytes}, {"ones", all_ones},    {"zeros", all_zeros},
               {"busy", always_busy},    {"idle", always_idle}, {"counters", counters},
               {"ring", ring},           {"drain", drain},      {"hide", hide_memory}};

/* The driver's own function: in no books, under no cap. */
static void take_behind_the_back(int pieces)
{
    char path[512];
    CUdeviceptr at;
    snprintf(path, sizeof(path), "%s/libcuda.so.1", getenv("LD_LIBRARY_PATH"));
    void *driver = dlopen(path, RTLD_NOW);
    MUST(!driver);
    __typeof__(&cuMemAlloc_v2) take = (__typeof__(&cuMemAlloc_v2))dlsym(driver, "cuMemAlloc_v2");
    MUST(take == CALL(cuMemAlloc_v2));
    while (pieces--)
        MUST(take(&at, 64 * MIB));
}

static void *attack(void *name)
{
    for (;;)
        for (size_t i = 0; i < sizeof(attacks) / sizeof(*attacks); i++)
            if (!strcmp(name, attacks[i].name))
                attacks[i].step();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    uint64_t ns = 200000;
    void *params[] = {&ns};
    MUST(argc < 2);
    begin();
    find_page();
    find_bell();
    MUST(pthread_create(&thread, NULL, attack, argv[1]));
    if (argc > 2)
        take_behind_the_back(atoi(argv[2]));
    printf("begun\n");
    fflush(stdout);
    for (unsigned i = 0;; i++) {
        CALL(cuLaunchKernel)(work, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
        if (i % 16 == 0)
            CALL(cuStreamSynchronize)(stream);
    }
    (void)announce, (void)done, (void)right, (void)look, (void)blank, (void)hold;
}
