/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-checkpoint moves the GPU memory of processes into their host memory, or back, by the
 * driver's cuCheckpointProcess* (docs/specs/checkpoint.md). qgpud runs it as a child for each
 * operation: a call of the driver may hang, and then only this process does. The processes of a
 * job go together. If one cannot, the others are taken back to where they were.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

enum {
    DONE = 0,   /* all processes are where they should be */
    FAILED = 1, /* some are not; what was done is undone */
    USELESS = 2 /* wrong words, or a driver that cannot do it */
};

enum {
    MAX_PIDS = 4096,   /* processes of one call */
    MAX_PAIRS = 16,    /* cards of a job: QG_MAX_CARDS */
    MAX_PID = 4194304, /* the largest of Linux */
    MAX_LOCK_MS = 3600000,
    ROUNDS = 3, /* over processes whose state moves by itself; chosen, not measured */
    /* Time for calls under way to return. Chosen, not measured. */
    LOCK_MS = 10000
};

static struct {
    CUresult (*init)(unsigned int);
    CUresult (*name)(CUresult, const char **);
    CUresult (*state)(int, CUprocessState *);
    CUresult (*lock)(int, CUcheckpointLockArgs *);
    CUresult (*checkpoint)(int, CUcheckpointCheckpointArgs *);
    CUresult (*restore)(int, CUcheckpointRestoreArgs *);
    CUresult (*unlock)(int, CUcheckpointUnlockArgs *);
} driver;

static const struct {
    const char *name;
    void *place;
} symbols[] = {{"cuInit", &driver.init},
               {"cuGetErrorName", &driver.name},
               {"cuCheckpointProcessGetState", &driver.state},
               {"cuCheckpointProcessLock", &driver.lock},
               {"cuCheckpointProcessCheckpoint", &driver.checkpoint},
               {"cuCheckpointProcessRestore", &driver.restore},
               {"cuCheckpointProcessUnlock", &driver.unlock}};

enum state { RUNNING, LOCKED, CHECKPOINTED, BROKEN, NONE };
static const char *const state_names[] = {"running", "locked", "checkpointed", "failed", "none"};

struct process {
    int pid;
    enum state state;
    bool there;       /* its memory was on the new card already */
    const char *step; /* the first that failed; NULL: none did */
    CUresult result;  /* of that step */
};

static struct {
    const char *path;
    unsigned int lock_ms;
    CUcheckpointGpuPair pairs[MAX_PAIRS];
    unsigned int npairs;
    int there[MAX_PIDS];
    int nthere;
} options = {.lock_ms = LOCK_MS};

/* What a process without CUDA answers, and one that has ended. */
static bool is_none(CUresult result)
{
    return result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_INITIALIZED;
}

static void look(struct process *p)
{
    CUprocessState state = CU_PROCESS_STATE_FAILED;
    CUresult result = driver.state(p->pid, &state);
    p->state = BROKEN;
    if (is_none(result))
        p->state = NONE;
    else if (result == CUDA_SUCCESS && state <= CU_PROCESS_STATE_CHECKPOINTED)
        p->state = (enum state)state;
    if (p->step)
        return;
    p->result = result;
    if (result != CUDA_SUCCESS && p->state == BROKEN)
        p->step = "state";
}

/* True: it was done, or needs nothing: the process has ended meanwhile. The same if its state moved
 * by itself: an order of a caller that was killed may still have been under way. */
static bool take(struct process *p, const char *step, CUresult result)
{
    enum state before = p->state;
    const char *failed = p->step;
    if (result != CUDA_SUCCESS && !p->step) {
        p->step = step;
        p->result = result;
    }
    look(p);
    bool moved = result == CUDA_ERROR_ILLEGAL_STATE && p->state != before && p->state != BROKEN;
    if (p->state == NONE || moved) {
        p->step = failed;
        look(p);
    }
    return result == CUDA_SUCCESS || p->state == NONE || moved;
}

static bool lock(struct process *p)
{
    CUcheckpointLockArgs args = {.timeoutMs = options.lock_ms};
    return p->state != RUNNING || take(p, "lock", driver.lock(p->pid, &args));
}

static bool checkpoint(struct process *p)
{
    CUcheckpointCheckpointArgs args = {0};
    return p->state != LOCKED || take(p, "checkpoint", driver.checkpoint(p->pid, &args));
}

static bool restore(struct process *p)
{
    CUcheckpointRestoreArgs args = {0};
    if (options.npairs && !p->there) {
        args.gpuPairs = options.pairs;
        args.gpuPairsCount = options.npairs;
    }
    return p->state != CHECKPOINTED || take(p, "restore", driver.restore(p->pid, &args));
}

static bool unlock(struct process *p)
{
    CUcheckpointUnlockArgs args = {0};
    return p->state != LOCKED || take(p, "unlock", driver.unlock(p->pid, &args));
}

static bool is_whole(struct process *p)
{
    return p->state != BROKEN || take(p, "state", CUDA_ERROR_ILLEGAL_STATE);
}

/* One step of all. It ends at the first process that cannot. */
static bool each(struct process *p, int count, bool (*step)(struct process *))
{
    for (int i = 0; i < count; i++) {
        if (!step(&p[i]))
            return false;
    }
    return true;
}

/* The same, and the others are tried all the same. */
static bool every(struct process *p, int count, bool (*step)(struct process *))
{
    bool all = true;
    for (int i = 0; i < count; i++)
        all &= step(&p[i]);
    return all;
}

/* All are there, or have ended. What is elsewhere without an error is told. */
static bool all_at(struct process *p, int count, enum state goal, bool last)
{
    bool all = true;
    for (int i = 0; i < count; i++) {
        bool there = p[i].state == goal || p[i].state == NONE;
        all &= there;
        if (!there && last && !p[i].step) {
            p[i].step = "state";
            p[i].result = CUDA_ERROR_ILLEGAL_STATE;
        }
    }
    return all;
}

/* Two steps of all towards a goal. Again, if states moved by themselves. */
static bool towards(struct process *p, int count, enum state goal, bool (*first)(struct process *),
                    bool (*second)(struct process *))
{
    for (int round = 0; round < ROUNDS; round++) {
        if (!each(p, count, is_whole) || !each(p, count, first) || !each(p, count, second))
            return false;
        if (all_at(p, count, goal, round == ROUNDS - 1))
            return true;
    }
    return false;
}

static bool leave(struct process *p, int count)
{
    if (towards(p, count, CHECKPOINTED, lock, checkpoint))
        return true;
    options.npairs = 0; /* back to where they were */
    for (int round = 0; round < ROUNDS; round++) {
        every(p, count, restore);
        every(p, count, unlock);
    }
    return false;
}

/* A process that was locked before has its memory on the card: it is only unlocked. Once all have
 * their memory, none leaves again. */
static bool come_back(struct process *p, int count)
{
    static bool was_away[MAX_PIDS];
    for (int i = 0; i < count; i++)
        was_away[i] = p[i].state == CHECKPOINTED;
    if (towards(p, count, RUNNING, restore, unlock))
        return true;
    bool some = false;
    for (int i = 0; i < count; i++)
        some |= p[i].state == CHECKPOINTED || p[i].state == BROKEN;
    for (int i = 0; i < count; i++) {
        if (some && was_away[i])
            checkpoint(&p[i]);
        else if (!some)
            unlock(&p[i]);
    }
    return false;
}

static bool stay(struct process *p, int count)
{
    (void)p, (void)count;
    return true;
}

static const struct {
    const char *name;
    bool (*act)(struct process *, int);
} actions[] = {{"state", stay}, {"leave", leave}, {"return", come_back}};

static void print(const struct process *p)
{
    const char *name = NULL;
    if (driver.name(p->result, &name) != CUDA_SUCCESS || !name)
        name = "-";
    printf("%d %s %s %d %s\n", p->pid, state_names[p->state], p->step ? p->step : "-", p->result,
           name);
}

static bool open_driver(void)
{
    void *library = dlopen(options.path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "qgpu-checkpoint: cannot load the driver: %s\n", dlerror());
        return false;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found) {
            fprintf(stderr,
                    "qgpu-checkpoint: the driver %s has no %s: moving memory takes driver 570 or "
                    "later\n",
                    options.path, symbols[i].name);
            return false;
        }
        memcpy(symbols[i].place, &found, sizeof(found));
    }
    /* without persistence mode a restore wants a driver that is initialised */
    CUresult result = driver.init(0);
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "qgpu-checkpoint: cuInit failed with %d\n", result);
    return result == CUDA_SUCCESS;
}

static bool number(const char *text, long most, int *value)
{
    char *end;
    long found = strtol(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || found < 1 || found > most)
        return false;
    *value = (int)found;
    return true;
}

static int hex(char c)
{
    const char *digits = "0123456789abcdef",
               *at = c ? strchr(digits, tolower((unsigned char)c)) : 0;
    return at ? (int)(at - digits) : -1;
}

/* GPU-8-4-4-4-12 hexadecimal digits, as NVML writes it; `end` is the character behind it. */
static bool uuid(const char *text, char end, CUuuid *value)
{
    static const char form[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    size_t digits = 0;
    for (size_t i = 0; i < sizeof(form) - 1; i++) {
        int digit = form[i] == 'x' ? hex(text[i]) : 0;
        if (digit < 0 || (form[i] != 'x' && text[i] != form[i]))
            return false;
        if (form[i] != 'x')
            continue;
        unsigned char *byte = (unsigned char *)value->bytes + digits / 2;
        *byte = (unsigned char)(*byte << 4 | digit);
        digits++;
    }
    return text[sizeof(form) - 1] == end;
}

static bool map(const char *text)
{
    CUcheckpointGpuPair *pair = &options.pairs[options.npairs];
    const char *sign = strchr(text, '=');
    if (options.npairs == MAX_PAIRS || !sign || !uuid(text, '=', &pair->oldUuid) ||
        !uuid(sign + 1, 0, &pair->newUuid))
        return false;
    options.npairs++;
    return true;
}

static int usage(FILE *out, int status)
{
    fputs("usage: qgpu-checkpoint --driver PATH [--lock-ms N] state|leave|return\n"
          "                       [--map OLD=NEW]... [--there PID]... PID...\n"
          "       qgpu-checkpoint --version\n",
          out);
    return status;
}

static int reject(const char *what, const char *value)
{
    fprintf(stderr, "qgpu-checkpoint: '%s' is not %s\n", value, what);
    return USELESS;
}

/* Returns -1, or the status to end with. */
static int parse(int argc, char **argv)
{
    static const struct option longs[] = {{"driver", 1, NULL, 'd'}, {"lock-ms", 1, NULL, 'l'},
                                          {"map", 1, NULL, 'm'},    {"there", 1, NULL, 't'},
                                          {"help", 0, NULL, 'h'},   {"version", 0, NULL, 'v'},
                                          {NULL, 0, NULL, 0}};
    int c, value = 0;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'd':
            options.path = optarg;
            break;
        case 'l':
            if (!number(optarg, MAX_LOCK_MS, &value))
                return reject("a time from 1 to 3600000 ms", optarg);
            options.lock_ms = (unsigned int)value;
            break;
        case 'm':
            if (!map(optarg))
                return reject("one of at most 16 pairs GPU-UUID=GPU-UUID", optarg);
            break;
        case 't':
            if (options.nthere == MAX_PIDS || !number(optarg, MAX_PID, &value))
                return reject("one of at most 4096 numbers of processes", optarg);
            options.there[options.nthere++] = value;
            break;
        case 'h':
            return usage(stdout, DONE);
        case 'v':
            puts("qgpu-checkpoint " QG_VERSION);
            return DONE;
        default:
            return usage(stderr, USELESS);
        }
    }
    return options.path && argc - optind >= 2 ? -1 : usage(stderr, USELESS);
}

/* A number that is named twice is one process. -1: one is no number of a process. */
static int processes(char **words, int count, struct process *found)
{
    int n = 0;
    for (int i = 0; i < count; i++) {
        struct process one = {.result = CUDA_SUCCESS};
        if (n == MAX_PIDS || !number(words[i], MAX_PID, &one.pid)) {
            reject("one of at most 4096 numbers of processes", words[i]);
            return -1;
        }
        int k = 0;
        while (k < n && found[k].pid != one.pid)
            k++;
        for (int m = 0; m < options.nthere; m++)
            one.there |= options.there[m] == one.pid;
        if (k == n)
            found[n++] = one;
    }
    return n;
}

int main(int argc, char **argv)
{
    static struct process all[MAX_PIDS];
    int status = parse(argc, argv);
    if (status >= 0)
        return status;
    size_t action = 0, known = sizeof(actions) / sizeof(actions[0]);
    while (action < known && strcmp(actions[action].name, argv[optind]) != 0)
        action++;
    if (action == known)
        return reject("one of state, leave, return", argv[optind]);
    int count = processes(argv + optind + 1, argc - optind - 1, all);
    if (count < 0 || !open_driver())
        return USELESS;
    for (int i = 0; i < count; i++)
        look(&all[i]);
    bool done = actions[action].act(all, count);
    for (int i = 0; i < count; i++)
        print(&all[i]);
    return fflush(stdout) || !done ? FAILED : DONE;
}
