/* SPDX-License-Identifier: Apache-2.0
 *
 * The pattern of load: bursts of requests with rests between them.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "workload.h"

#define MAX_LATENCIES (1u << 20)

static volatile sig_atomic_t stopping;

struct state {
    const struct driver *driver;
    const struct options *options;
    struct result *result;
    FILE *log;
    uint64_t done, unsynced; /* requests, also of the warm-up; since the last wait */
    uint64_t deadline, progress_ns, progress_kernels;
    uint64_t burst_start, random;
};

static void on_signal(int signal)
{
    (void)signal;
    stopping = 1;
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void rest(double seconds, uint64_t deadline)
{
    uint64_t until = now_ns() + (uint64_t)(seconds * 1e9);
    if (until > deadline)
        until = deadline;
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    while (!stopping && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static void keep_latency(struct state *state, uint64_t ns)
{
    struct result *result = state->result;
    result->seen++;
    if (result->nlatency < MAX_LATENCIES) {
        result->latency[result->nlatency++] = ns;
        return;
    }
    state->random = state->random * 6364136223846793005u + 1442695040888963407u;
    uint64_t at = (state->random >> 11) % result->seen;
    if (at < MAX_LATENCIES)
        result->latency[at] = ns;
}

static void progress(struct state *state, uint64_t now)
{
    if (!state->options->progress || now < state->progress_ns + 1000000000u)
        return;
    double seconds = (double)(now - state->progress_ns) / 1e9;
    printf("%d: %.0f kernels/s, %.1f %% of a card\n", (int)getpid(),
           (double)(state->result->kernels - state->progress_kernels) / seconds,
           (double)(state->result->kernels - state->progress_kernels) * state->options->kernel_us / seconds / 1e4);
    fflush(stdout);
    state->progress_ns = now;
    state->progress_kernels = state->result->kernels;
}

static void wait_all(struct state *state)
{
    unsigned n = state->options->streams;
    for (unsigned i = 0; i < n; i++)
        driver_check(state->driver, state->driver->p_cuStreamSynchronize(state->driver->streams[i]),
                     "waiting for the card");
    state->unsynced = 0;
}

/* Counted when it is complete, so that an asynchronous queue does not count what never ran. */
static void request(struct state *state)
{
    const struct options *options = state->options;
    CUstream stream = state->driver->streams[state->done % options->streams];
    uint64_t start = now_ns();
    if (!state->burst_start)
        state->burst_start = start;
    for (uint64_t i = 0; i < options->kernels; i++)
        driver_check(state->driver, driver_launch(state->driver, stream, state->result->iterations),
                     "launching a kernel");
    state->done++;
    state->unsynced++;
    if (options->sync_every == 1) {
        driver_check(state->driver, state->driver->p_cuStreamSynchronize(stream), "waiting for the card");
        state->unsynced = 0;
    } else if (state->unsynced >= options->sync_every) {
        wait_all(state);
    }
    if (state->done <= options->warmup)
        return;
    state->result->requests++;
    state->result->kernels += options->kernels;
    if (options->sync_every != 1)
        return;
    uint64_t latency = now_ns() - start;
    keep_latency(state, latency);
    if (state->log && options->log_requests)
        fprintf(state->log, "{\"pid\": %d, \"request\": %llu, \"start_ns\": %llu, \"latency_ns\": %llu}\n",
                (int)getpid(), (unsigned long long)state->done, (unsigned long long)start, (unsigned long long)latency);
}

static bool over(const struct state *state, uint64_t now)
{
    const struct options *options = state->options;
    return stopping || (options->has_requests ? state->result->requests >= options->requests : now >= state->deadline);
}

static void burst(struct state *state)
{
    struct result *result = state->result;
    uint64_t begin = now_ns(), before = result->requests;
    uint64_t until = state->options->idle_s > 0 ? begin + (uint64_t)(state->options->busy_s * 1e9) : UINT64_MAX;
    state->burst_start = 0;
    for (uint64_t now = begin; now < until && !over(state, now); now = now_ns()) {
        request(state);
        if (state->done == state->options->warmup) { /* measuring starts here */
            wait_all(state);
            result->start_ns = state->progress_ns = now_ns();
            state->deadline = result->start_ns + (uint64_t)(state->options->length_s * 1e9);
            result->busy_ns = 0;
            state->burst_start = 0;
        }
        progress(state, now);
    }
    if (state->unsynced)
        wait_all(state);
    if (!state->burst_start)
        return;
    uint64_t end = now_ns();
    result->bursts++;
    result->busy_ns += end - state->burst_start;
    if (state->log) {
        fprintf(state->log,
                "{\"pid\": %d, \"burst\": %llu, \"start_ns\": %llu, \"end_ns\": %llu, \"requests\": %llu}\n",
                (int)getpid(), (unsigned long long)result->bursts, (unsigned long long)state->burst_start,
                (unsigned long long)end, (unsigned long long)(result->requests - before));
        fflush(state->log);
    }
}

void run(const struct driver *driver, const struct options *options, struct result *result)
{
    struct state state = {.driver = driver, .options = options, .result = result, .random = 1};
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    result->latency = malloc(MAX_LATENCIES * sizeof *result->latency);
    state.log = options->log ? fopen(options->log, "ae") : NULL;
    if (!result->latency || (options->log && !state.log)) {
        fprintf(stderr, "qgpu-workload: --log %s: %s\n", options->log ? options->log : "", strerror(errno));
        exit(EXIT_USAGE);
    }
    result->start_ns = state.progress_ns = now_ns();
    if (state.log) { /* whoever watches the log learns the process before its first burst ends */
        fprintf(state.log, "{\"pid\": %d, \"started_ns\": %llu}\n", (int)getpid(),
                (unsigned long long)result->start_ns);
        fflush(state.log);
    }
    state.deadline = options->warmup || options->has_requests ? UINT64_MAX :
        result->start_ns + (uint64_t)(options->length_s * 1e9);
    while (!over(&state, now_ns())) {
        burst(&state);
        if (options->idle_s > 0 && !over(&state, now_ns()))
            rest(options->idle_s, state.deadline);
    }
    result->end_ns = now_ns();
    if (state.log)
        fclose(state.log);
}
