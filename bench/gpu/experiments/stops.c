/* SPDX-License-Identifier: Apache-2.0
 *
 * What stopping does to a kernel that runs (README of docs/measurements): the process takes its own
 * groups off the card and lets them go on. Its kernel notes each pause with the card's clock, and a
 * second process of its own asks for the card meanwhile. One JSON line per trial. Every stop is
 * followed by its continue, also on SIGTERM and at the end; kill -9 leaves it to the driver, which
 * is one experiment.
 * usage: stops latency METHOD COUNT [MODE] | spin METHOD MS | checksum METHOD COUNT | slices US US
 * SECONDS | hold METHOD SECONDS
 *        | cost COUNT        METHOD: schedule disable disable-scheduling timeslice timeslice0
 *                            preempt; MODE: 0 WFI, 1 CTA, 2 CILP
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "card.h"
#include "rm_own.h"

#define ENDLESS(card) ((card)->model ? 120000000000u : UINT64_MAX / 2)
#define MAX_TRIALS    1000u
/* a command that takes longer waits for the kernel's end: it is told to end, and that was the
 * last trial */
#define STUCK_S 3

static struct card card;
static volatile sig_atomic_t asked_to_end;

struct reply { /* of the second process */
    uint64_t submit, start, done;
};
struct trial {
    uint64_t stop, stopped, resume, resumed;
    uint32_t status, status_resume;
    struct reply online;
};

static void nap_us(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static void end(int signal)
{
    asked_to_end = signal;
}

static void stuck(int signal)
{
    asked_to_end = signal;
    if (card.board)
        card.board->leave = 1;
}

static uint32_t stop(enum own_method method)
{
    alarm(STUCK_S);
    uint32_t status = own_stop(method);
    alarm(0);
    return status;
}

static enum own_method method_of(const char *name)
{
    for (int i = 0; i < OWN_METHODS; i++)
        if (strcmp(own_method_names[i], name) == 0)
            return (enum own_method)i;
    die("no such method", 0);
}

/* The second process: each byte asks for one small kernel on a context of its own. */
static void online(int ask, int answer)
{
    volatile uint64_t *told;
    char byte;
    card_open(&card);
    check(driver.cuMemHostAlloc((void **)&told, sizeof *told, CU_MEMHOSTALLOC_DEVICEMAP),
          "host memory");
    struct reply ready = {0, 0, (uint64_t)getpid()};
    for (struct reply r = ready;; r = (struct reply){0, 0, 0}) {
        if (r.done == 0) {
            *told = 0;
            r.submit = own_now();
            card_launch(&card, card.first, 1, 1, (void *[]){&told});
            check(driver.cuStreamSynchronize(card.stream), "the online kernel");
            r.done = own_now();
            r.start = *told;
        }
        if (write(answer, &r, sizeof r) != (ssize_t)sizeof r || read(ask, &byte, 1) != 1)
            _exit(0);
    }
}

static pid_t start_online(int *ask, int *answer)
{
    int to[2], from[2];
    struct reply ready;
    if (pipe(to) || pipe(from))
        die("a pipe", errno);
    pid_t child = fork(); /* before the card is opened: it must inherit nothing of it */
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(to[1]);
        close(from[0]);
        online(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    *ask = to[1];
    *answer = from[0];
    if (child < 0 || read(*answer, &ready, sizeof ready) != (ssize_t)sizeof ready)
        die("the second process", errno);
    return child;
}

/* When the last block made its last progress before the middle of the stop; 0 where one went on
 * through it. */
static uint64_t last_progress(const struct block *blocks, const struct gap *gaps, uint64_t middle)
{
    uint64_t last = 0;
    for (unsigned b = 0; b < card.blocks; b++) {
        bool found = false;
        for (unsigned g = 0; g < blocks[b].gaps && !found; g++) {
            const struct gap *gap = &gaps[(size_t)b * CHUNK_ROOM + g];
            found = gap->before <= middle && gap->after >= middle;
            if (found && gap->before > last)
                last = gap->before;
        }
        if (!found)
            return 0;
    }
    return last;
}

static void tell(const struct trial *t, unsigned count, struct clock_pair a, struct clock_pair b,
                 pid_t other)
{
    struct block *blocks = calloc(card.blocks, sizeof *blocks);
    struct gap *gaps = calloc((size_t)card.blocks * CHUNK_ROOM, sizeof *gaps);
    double rate = b.card > a.card ? (double)(b.host - a.host) / (double)(b.card - a.card) : 1;
    if (!blocks || !gaps)
        die("memory", 0);
    if (!card.model)
        card_told(&card, blocks, gaps, NULL);
    for (unsigned i = 0; i < count; i++, t++) {
        uint64_t half = t->stopped + (t->resume - t->stopped) / 2;
        uint64_t middle = a.card + (uint64_t)((double)(int64_t)(half - a.host) / rate);
        uint64_t last = card.model ? 0 : last_progress(blocks, gaps, middle);
        double last_us =
            last ? ((double)(int64_t)(last - a.card) * rate + (double)(int64_t)(a.host - t->stop)) /
                       1e3
                 : 0;
        double first_us = ((double)(int64_t)(t->online.start - a.card) * rate +
                           (double)(int64_t)(a.host - t->stop)) /
                          1e3;
        printf("{\"pid\": %d, \"online_pid\": %d, \"status\": \"0x%x\", \"status_continue\": "
               "\"0x%x\", \"stop_ns\": %llu, "
               "\"stopped_ns\": %llu, \"continue_ns\": %llu, \"continued_ns\": %llu, "
               "\"online_submit_ns\": %llu, \"online_done_ns\": %llu",
               (int)getpid(), (int)other, t->status, t->status_resume, (unsigned long long)t->stop,
               (unsigned long long)t->stopped, (unsigned long long)t->resume,
               (unsigned long long)t->resumed, (unsigned long long)t->online.submit,
               (unsigned long long)t->online.done);
        if (!card.model && last)
            printf(", \"last_progress_us\": %.2f", last_us);
        if (!card.model)
            printf(", \"online_start_us\": %.2f, \"clock_doubt_us\": %.2f", first_us,
                   (double)(a.doubt > b.doubt ? a.doubt : b.doubt) / 1e3);
        printf("}\n");
    }
    free(blocks);
    free(gaps);
}

static void latency(enum own_method method, unsigned count, int mode)
{
    static struct trial trials[MAX_TRIALS];
    int ask, answer;
    unsigned done = 0;
    pid_t other = start_online(&ask, &answer);
    card_open(&card);
    if (mode >= 0)
        printf("{\"preemption_mode\": %d, \"status\": \"0x%x\"}\n", mode,
               own_preemption_mode((uint32_t)mode));
    struct clock_pair before = card_clocks(&card);
    card_beat(&card, ENDLESS(&card));
    nap_us(20000);
    for (; done < count && !asked_to_end; done++) {
        struct trial *t = &trials[done];
        nap_us(1000 + rand() % 2000);
        t->stop = own_now();
        t->status = stop(method);
        t->stopped = own_now();
        if (asked_to_end) {
            t->resume = own_now();
            t->status_resume = own_continue(method);
            t->resumed = own_now();
            continue;
        }
        if (write(ask, "", 1) != 1 ||
            read(answer, &t->online, sizeof t->online) != (ssize_t)sizeof t->online)
            t->online = (struct reply){0, 0, 0};
        nap_us(1000);
        t->resume = own_now();
        t->status_resume = own_continue(method);
        t->resumed = own_now();
    }
    card.board->leave = 1;
    if (!card.model)
        check(driver.cuStreamSynchronize(card.stream), "the end of the kernel");
    close(ask);
    kill(other, SIGKILL); /* ours; it may wait for a card that it does not get */
    waitpid(other, NULL, 0);
    struct clock_pair after = card_clocks(&card);
    tell(trials, done, before, after, other);
}

/* A stop without other work on the card: does the kernel really stand still? */
static void spin(enum own_method method, unsigned ms)
{
    struct trial t = {0};
    unsigned moved = 0;
    card_open(&card);
    struct clock_pair before = card_clocks(&card);
    card_beat(&card, ENDLESS(&card));
    nap_us(50000);
    t.stop = own_now();
    t.status = stop(method);
    t.stopped = own_now();
    nap_us(5000);
    for (unsigned i = 0; i < ms; i++) {
        uint64_t beat = card.board->beat;
        nap_us(1000);
        moved += card.board->beat != beat;
    }
    t.resume = own_now();
    t.status_resume = own_continue(method);
    t.resumed = own_now();
    uint64_t beat = card.board->beat;
    nap_us(100000);
    printf("{\"looks\": %u, \"moved\": %u, \"moves_again\": %s}\n", ms, moved,
           card.model || card.board->beat != beat ? "true" : "false");
    card.board->leave = 1;
    if (!card.model)
        check(driver.cuStreamSynchronize(card.stream), "the end of the kernel");
    tell(&t, 1, before, card_clocks(&card), 0);
}

/* How many chunks take about 20 ms. */
static uint64_t calibrated(void)
{
    const uint64_t few = 2000;
    if (card.model)
        return 20000000;
    card_beat(&card, few);
    check(driver.cuStreamSynchronize(card.stream), "a kernel");
    uint64_t start = own_now();
    card_beat(&card, few);
    check(driver.cuStreamSynchronize(card.stream), "a kernel");
    return few * 20000000u / (own_now() - start) + 1;
}

static void checksum(enum own_method method, unsigned count)
{
    uint64_t reference = 0, sum = 0;
    unsigned stops = 0, kernels = 0, wrong = 0, failures = 0;
    card_open(&card);
    uint64_t chunks = calibrated();
    card_beat(&card, chunks);
    card_told(&card, NULL, NULL, card.model ? NULL : &reference);
    uint64_t start = own_now();
    while (stops < count && !asked_to_end) {
        card_beat(&card, chunks);
        while (stops < count && !asked_to_end &&
               driver.cuStreamQuery(card.stream) == CUDA_ERROR_NOT_READY) {
            failures += stop(method) != 0;
            nap_us(500 + rand() % 1000);
            failures += own_continue(method) != 0;
            nap_us(500 + rand() % 1500);
            stops++;
        }
        card_told(&card, NULL, NULL, card.model ? NULL : &sum);
        kernels++;
        wrong += sum != reference;
    }
    printf("{\"pid\": %d, \"stops\": %u, \"kernels\": %u, \"wrong\": %u, \"failures\": %u, "
           "\"start_ns\": %llu, \"work_ns\": %llu, "
           "\"sum\": \"0x%llx\"}\n",
           (int)getpid(), stops, kernels, wrong, failures, (unsigned long long)start,
           (unsigned long long)(card.model ? chunks : 0), (unsigned long long)reference);
}

static void weighted(const char *who, uint64_t us, double seconds, int ready, int go)
{
    struct block *blocks;
    char byte = 0;
    uint32_t status = 0;
    card_open(&card);
    blocks = calloc(card.blocks, sizeof *blocks);
    if (us)
        status = own_slice(us);
    if (!blocks || write(ready, "", 1) != 1 || read(go, &byte, 1) != 1)
        die("the other process", errno);
    uint64_t start = own_now(), chunks = 0;
    card_beat(&card, card.model ? (uint64_t)(seconds * 2e9) : ENDLESS(&card));
    nap_us((long)(seconds * 1e6));
    card.board->leave = 1;
    uint64_t stop = own_now();
    if (!card.model)
        card_told(&card, blocks, NULL, NULL);
    for (unsigned b = 0; b < card.blocks; b++)
        chunks += blocks[b].chunks;
    if (us)
        own_continue(OWN_TIMESLICE_1);
    printf("{\"who\": \"%s\", \"pid\": %d, \"us\": %llu, \"status\": \"0x%x\", \"start_ns\": %llu, "
           "\"end_ns\": %llu, \"chunks\": %llu}\n",
           who, (int)getpid(), (unsigned long long)us, status, (unsigned long long)start,
           (unsigned long long)stop, (unsigned long long)chunks);
    fflush(stdout);
    _exit(0);
}

/* Two processes with these slices side by side. */
static void slices(const uint64_t us[2], double seconds)
{
    int ready[2], go[2];
    char bytes[2];
    if (pipe(ready) || pipe(go))
        die("a pipe", errno);
    for (int i = 0; i < 2; i++)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(go[1]);
            weighted(i ? "b" : "a", us[i], seconds, ready[1], go[0]);
        }
    close(ready[1]);
    for (int i = 0; i < 2; i++)
        if (read(ready[0], bytes, 1) != 1)
            die("a process did not come so far", 0);
    if (write(go[1], "ab", 2) != 2)
        die("a pipe", errno);
    while (wait(NULL) > 0) {
    }
}

/* One line per second: a reader knows how far it came when this process is killed. */
static void hold(enum own_method method, unsigned seconds)
{
    unsigned moved = 0, s = 0;
    card_open(&card);
    card_beat(&card, ENDLESS(&card));
    nap_us(50000);
    uint32_t status = stop(method);
    nap_us(5000);
    uint64_t beat = card.board->beat, start = own_now();
    for (; s < seconds && !asked_to_end; s++) {
        nap_us(1000000);
        moved += card.board->beat != beat;
        beat = card.board->beat;
        printf("{\"pid\": %d, \"status\": \"0x%x\", \"start_ns\": %llu, \"held_s\": %u, \"moved\": "
               "%u}\n",
               (int)getpid(), status, (unsigned long long)start, s + 1, moved);
        fflush(stdout);
    }
    uint64_t end_ns = own_now();
    uint32_t status_continue = own_continue(method);
    nap_us(200000);
    bool again = card.model || card.board->beat != beat;
    card.board->leave = 1;
    if (!card.model)
        check(driver.cuStreamSynchronize(card.stream), "the end of the kernel");
    printf("{\"pid\": %d, \"ended\": true, \"held_s\": %u, \"moved\": %u, \"end_ns\": %llu, "
           "\"status_continue\": \"0x%x\", \"moves_again\": %s}\n",
           (int)getpid(), s, moved, (unsigned long long)end_ns, status_continue,
           again ? "true" : "false");
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void quantiles(const char *what, uint64_t *ns, unsigned count)
{
    qsort(ns, count, sizeof *ns, by_value);
    printf(
        "{\"what\": \"%s\", \"p50_ns\": %llu, \"p99_ns\": %llu, \"max_ns\": %llu, \"count\": %u}\n",
        what, (unsigned long long)ns[count / 2], (unsigned long long)ns[count * 99 / 100],
        (unsigned long long)ns[count - 1], count);
}

static void cost(unsigned count)
{
    static uint64_t ns[4][MAX_TRIALS];
    struct handle *group[64];
    volatile uint64_t *told;
    CUdeviceptr word;
    card_open(&card);
    check(driver.cuMemHostAlloc((void **)&told, sizeof *told, CU_MEMHOSTALLOC_DEVICEMAP),
          "host memory");
    check(driver.cuMemAlloc(&word, sizeof(uint32_t)), "memory");
    int n = own_groups(group, 64);
    for (unsigned i = 0; i < count; i++) {
        struct rm_timeslice slice;
        uint64_t t0 = own_now();
        card_launch(&card, card.first, 1, 1, (void *[]){&told});
        uint64_t t1 = own_now();
        check(driver.cuEventRecord(card.event, card.stream), "cuEventRecord");
        uint64_t t2 = own_now();
        check(driver.cuStreamWriteValue32(card.stream, word, i, 0), "cuStreamWriteValue32");
        uint64_t t3 = own_now();
        if (n && own_control(group[0]->fd, group[0]->client, group[0]->object,
                             RM_GROUP_GET_TIMESLICE, &slice, sizeof slice, NULL))
            n = 0;
        uint64_t t4 = own_now();
        ns[0][i] = t1 - t0, ns[1][i] = t2 - t1, ns[2][i] = t3 - t2, ns[3][i] = t4 - t3;
        if (i % 100 == 99)
            check(driver.cuStreamSynchronize(card.stream), "the kernels");
    }
    const char *const what[] = {"launch", "event_record", "stream_write_value", "get_timeslice"};
    for (int i = 0; i < (n ? 4 : 3); i++)
        quantiles(what[i], ns[i], count);
}

static int usage(void)
{
    fprintf(stderr, "usage: stops latency METHOD COUNT [MODE] | spin METHOD MS | checksum METHOD "
                    "COUNT | slices US US SECONDS | "
                    "hold METHOD SECONDS | cost COUNT\n");
    return 2;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    unsigned number = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    /* without SA_RESTART */
    struct sigaction on_end = {.sa_handler = end}, on_alarm = {.sa_handler = stuck};
    sigaction(SIGTERM, &on_end, NULL);
    sigaction(SIGINT, &on_end, NULL);
    sigaction(SIGALRM, &on_alarm, NULL);
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    if (!strcmp(what, "latency") && argc >= 4 && number >= 1 && number <= MAX_TRIALS)
        latency(method_of(argv[2]), number, argc > 4 ? atoi(argv[4]) : -1);
    else if (!strcmp(what, "spin") && argc == 4 && number >= 1 && number <= 20000)
        spin(method_of(argv[2]), number);
    else if (!strcmp(what, "checksum") && argc == 4 && number >= 1)
        checksum(method_of(argv[2]), number);
    else if (!strcmp(what, "slices") && argc == 5)
        slices((uint64_t[]){strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10)},
               atof(argv[4]));
    else if (!strcmp(what, "hold") && argc == 4 && number >= 1 && number <= 600)
        hold(method_of(argv[2]), number);
    else if (!strcmp(what, "cost") && argc == 3 && atoi(argv[2]) >= 1 &&
             atoi(argv[2]) <= (int)MAX_TRIALS)
        cost((unsigned)atoi(argv[2]));
    else
        return usage();
    fflush(stdout);
    _exit(0); /* a model's kernel still runs: its end is the end of the process */
}
