/* SPDX-License-Identifier: Apache-2.0
 *
 * The pattern of load: bursts of requests with rests between them, or requests at random times.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "workload.h"

#define MAX_LATENCIES (1u << 20)
#define NS            1000000000u

static volatile sig_atomic_t stopping;

struct state {
    struct driver *driver;
    const struct options *options;
    struct result *result;
    FILE *log;
    uint64_t done, unsynced; /* requests, also of the warm-up; since the last wait */
    uint64_t launched;       /* kernels, also of the warm-up */
    uint64_t deadline, progress_ns;
    double progress_us, graph_us;
    uint64_t burst_start;
    struct draw draw, sample; /* of the load; of the latencies that are kept */
};

static void on_signal(int signal)
{
    (void)signal;
    stopping = 1;
}

void catch_stops(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
}

static void rest_until(uint64_t until, uint64_t deadline)
{
    if (until > deadline)
        until = deadline;
    struct timespec t = {(time_t)(until / NS), (long)(until % NS)};
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
    uint64_t at = draw_u64(&state->sample) % result->seen;
    if (at < MAX_LATENCIES)
        result->latency[at] = ns;
}

static void progress(struct state *state, uint64_t now)
{
    if (!state->options->progress || now < state->progress_ns + NS)
        return;
    double seconds = (double)(now - state->progress_ns) / 1e9,
           us = state->result->kernel_us - state->progress_us;
    printf("%d: %.0f kernels/s, %.1f %% of a card\n", (int)getpid(),
           us / state->options->kernel_us / seconds, us / seconds / 1e4);
    fflush(stdout);
    state->progress_ns = now;
    state->progress_us = state->result->kernel_us;
}

static void wait_all(struct state *state)
{
    unsigned n = state->options->streams;
    for (unsigned i = 0; i < n; i++)
        driver_check(state->driver, state->driver->p_cuStreamSynchronize(state->driver->streams[i]),
                     "waiting for the card");
    for (unsigned i = 0; state->options->copy && i < 2; i++)
        driver_check(state->driver,
                     state->driver->p_cuStreamSynchronize(state->driver->copies[i].stream),
                     "waiting for a copy");
    state->unsynced = 0;
}

static void launch(struct state *state, CUstream stream, double kernel_us)
{
    const struct driver *driver = state->driver;
    uint64_t bound = state->options->in_flight;
    CUevent event = bound ? driver->in_flight[state->launched % bound] : NULL;
    if (bound && state->launched >= bound)
        driver_check(driver, driver->p_cuEventSynchronize(event), "waiting for a kernel");
    driver_check(
        driver,
        driver_launch(driver, stream, kernel_iterations(state->options, state->result, kernel_us)),
        "launching a kernel");
    if (bound)
        driver_check(driver, driver->p_cuEventRecord(event, stream), "cuEventRecord");
    state->launched++;
}

/* The kernels of one request; their length in microseconds. */
static double submit(struct state *state, CUstream stream)
{
    double sum = 0;
    if (state->options->graph) {
        driver_check(state->driver, state->driver->p_cuGraphLaunch(state->driver->graph, stream),
                     "launching the graph");
        return state->graph_us;
    }
    for (uint64_t i = 0; i < state->options->kernels; i++) {
        double us = draw_kernel(&state->draw, state->options);
        launch(state, stream, us);
        sum += us;
    }
    return sum;
}

/* Counted when it is complete, so that an asynchronous queue does not count what never ran. */
static void request(struct state *state, uint64_t due)
{
    const struct options *options = state->options;
    CUstream stream = state->driver->streams[state->done % options->streams];
    uint64_t start = now_ns();
    if (!state->burst_start)
        state->burst_start = start;
    if (options->copy)
        driver_copy(state->driver, options->copy);
    double us = submit(state, stream);
    state->done++;
    state->unsynced++;
    if (options->sync_every == 1) {
        driver_check(state->driver, state->driver->p_cuStreamSynchronize(stream),
                     "waiting for the card");
        state->unsynced = 0;
    } else if (state->unsynced >= options->sync_every) {
        wait_all(state);
    }
    if (state->done <= options->warmup)
        return;
    state->result->requests++;
    state->result->kernels += options->kernels;
    state->result->kernel_us += us;
    if (options->sync_every != 1)
        return;
    uint64_t end = now_ns(), latency = end - (due ? due : start);
    keep_latency(state, latency);
    if (state->log && options->log_requests)
        fprintf(state->log,
                "{\"pid\": %d, \"request\": %llu, \"due_ns\": %llu, \"start_ns\": %llu, "
                "\"latency_ns\": %llu}\n",
                (int)getpid(), (unsigned long long)state->done,
                (unsigned long long)(due ? due : start), (unsigned long long)start,
                (unsigned long long)latency);
}

static bool over(const struct state *state, uint64_t now)
{
    const struct options *options = state->options;
    return stopping || (options->has_requests ? state->result->requests >= options->requests
                                              : now >= state->deadline);
}

/* Measuring starts behind the warm-up. */
static void measure_from_here(struct state *state)
{
    if (state->done != state->options->warmup)
        return;
    wait_all(state);
    state->result->start_ns = state->progress_ns = now_ns();
    state->deadline = state->result->start_ns + (uint64_t)(state->options->length_s * 1e9);
    state->result->busy_ns = 0;
    state->burst_start = 0;
}

static void end_burst(struct state *state, uint64_t requests_before)
{
    struct result *result = state->result;
    if (state->unsynced)
        wait_all(state);
    if (!state->burst_start)
        return;
    uint64_t end = now_ns();
    result->bursts++;
    result->busy_ns += end - state->burst_start;
    if (!state->log)
        return;
    fprintf(state->log,
            "{\"pid\": %d, \"burst\": %llu, \"start_ns\": %llu, \"end_ns\": %llu, \"requests\": "
            "%llu}\n",
            (int)getpid(), (unsigned long long)result->bursts,
            (unsigned long long)state->burst_start, (unsigned long long)end,
            (unsigned long long)(result->requests - requests_before));
    fflush(state->log);
}

static void burst(struct state *state, uint64_t until)
{
    uint64_t before = state->result->requests;
    state->burst_start = 0;
    for (uint64_t now = now_ns(); now < until && !over(state, now); now = now_ns()) {
        request(state, 0);
        measure_from_here(state);
        progress(state, now);
        if (state->options->gap_s > 0)
            rest_until(now_ns() + (uint64_t)(state->options->gap_s * 1e9), state->deadline);
    }
    end_burst(state, before);
}

static void run_bursts(struct state *state)
{
    const struct options *options = state->options;
    double busy = options->period_s > 0 ? options->period_s * options->duty : options->busy_s;
    double idle = options->period_s > 0 ? options->period_s - busy : options->idle_s;
    uint64_t begin = now_ns();
    for (uint64_t i = 0; !over(state, now_ns()); i++) {
        if (options->period_s > 0)
            begin = state->result->start_ns + (uint64_t)((double)i * options->period_s * 1e9);
        burst(state, idle > 0 ? begin + (uint64_t)(busy * 1e9) : UINT64_MAX);
        if (idle <= 0 || over(state, now_ns()))
            continue;
        rest_until(options->period_s > 0 ? begin + (uint64_t)(options->period_s * 1e9)
                                         : now_ns() + (uint64_t)(idle * 1e9),
                   state->deadline);
        begin = now_ns();
    }
}

/* An open loop: a request that is due while another one runs waits, and its waiting counts. */
static void run_poisson(struct state *state)
{
    double mean_ns = 1e9 / state->options->poisson, due = (double)now_ns();
    while (!over(state, now_ns())) {
        due += draw_exponential(&state->draw, mean_ns);
        rest_until((uint64_t)due, state->deadline);
        if (over(state, now_ns()))
            break;
        uint64_t before = state->result->requests;
        state->burst_start = 0;
        request(state, (uint64_t)due);
        measure_from_here(state);
        end_burst(state, before);
        progress(state, now_ns());
    }
}

static void prepare(struct state *state)
{
    const struct options *options = state->options;
    struct result *result = state->result;
    draw_seed(&state->draw, options->seed);
    draw_seed(&state->sample, options->seed + 1);
    result->latency = malloc(MAX_LATENCIES * sizeof *result->latency);
    state->log = options->log ? fopen(options->log, "ae") : NULL;
    if (!result->latency || (options->log && !state->log)) {
        fprintf(stderr, "qgpu-workload: --log %s: %s\n", options->log ? options->log : "",
                strerror(errno));
        exit(EXIT_USAGE);
    }
    if (state->log && options->procs > 1)
        setvbuf(state->log, NULL, _IOLBF, 4096); /* whole lines of several processes in one file */
    if (options->graph)
        driver_capture(state->driver, options, result, &state->draw, &state->graph_us);
}

void run(struct driver *driver, const struct options *options, struct result *result)
{
    struct state state = {.driver = driver, .options = options, .result = result};
    prepare(&state);
    if (options->start_at)
        rest_until(options->start_at, UINT64_MAX);
    result->start_ns = state.progress_ns = now_ns();
    if (state.log) { /* a reader of the log learns the pid before the first burst ends */
        fprintf(state.log, "{\"pid\": %d, \"started_ns\": %llu}\n", (int)getpid(),
                (unsigned long long)result->start_ns);
        fflush(state.log);
    }
    state.deadline = options->warmup || options->has_requests
                         ? UINT64_MAX
                         : result->start_ns + (uint64_t)(options->length_s * 1e9);
    if (options->poisson > 0)
        run_poisson(&state);
    else
        run_bursts(&state);
    result->end_ns = now_ns();
    if (state.log)
        fclose(state.log);
}
