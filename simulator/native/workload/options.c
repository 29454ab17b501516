/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "workload.h"

static const char usage[] =
    "usage: qgpu-workload [options]\n"
    "Loads a card: a request is a number of kernels in one stream, then a wait for them.\n"
    "  --kernel-us F            duration of one kernel in microseconds (100)\n"
    "  --kernels-per-request N  kernels of one request (1)\n"
    "  --kernel-mix A,B,...     durations instead of one, drawn for each kernel (at most 16)\n"
    "  --graph                  a request is one executable graph of its kernels\n"
    "  --gap S                  so many seconds of other work (asleep) after each request, also "
    "where it was not waited for\n"
    "  --busy S --idle S        work so many seconds, rest so many, again (idle 0: always busy)\n"
    "  --period S --duty P      work P percent of each period, by a clock that does not drift\n"
    "  --poisson RATE           so many requests per second on average, at random times; the "
    "latency of a request\n"
    "                           counts from when it was due\n"
    "  --start-at NS            begin at this time of CLOCK_MONOTONIC, the card opened before\n"
    "  --seed N                 of all draws (1); a process of --procs adds its number\n"
    "  --length S               stop after so many seconds (10)\n"
    "  --requests N             stop after so many requests instead\n"
    "  --warmup N               first requests that are not counted (0)\n"
    "  --streams K              spread requests over so many streams (1)\n"
    "  --no-sync-each[=M]       training style: wait only after each M requests (64)\n"
    "  --copy SIZE              with each request also copy so much to the card and back, in "
    "streams of their own\n"
    "  --in-flight N            wait before a launch while N kernels are not finished: a window by "
    "count\n"
    "  --procs N                so many processes, each with its own summary (1)\n"
    "  --memory SIZE            hold so much memory, written once (512M, 24GiB)\n"
    "  --pattern SIZE           hold so much memory with known contents in places, and compare "
    "them "
    "at the end\n"
    "  --alloc-past SIZE        first allocate until refused or SIZE is reached, say which, and "
    "free it\n"
    "  --iters N                iterations of one kernel; otherwise measured with events\n"
    "  --device N               ordinal of the card (0)\n"
    "  --log FILE               JSON lines: one per burst\n"
    "  --log-requests           also one per request\n"
    "  --progress               one line each second\n"
    "  --json                   the summary as JSON\n"
    "exit codes: 0 done, 1 the driver failed, 2 wrong option, 3 no card or no driver, 4 --memory "
    "or --pattern was refused,\n"
    "5 what --pattern wrote had changed\n";

static void refuse(const char *option, const char *text, const char *need)
{
    fprintf(stderr, "qgpu-workload: --%s %s: %s\n", option, text, need);
    exit(EXIT_USAGE);
}

static double number(const char *option, const char *text, double low, double high)
{
    char *end, need[80];
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text || *end || !(value >= low && value <= high)) {
        snprintf(need, sizeof need, "a number from %g to %g is needed", low, high);
        refuse(option, text, need);
    }
    return value;
}

static uint64_t whole(const char *option, const char *text, double low, double high)
{
    double value = number(option, text, low, high);
    if (value != (double)(uint64_t)value)
        refuse(option, text, "a whole number is needed");
    return (uint64_t)value;
}

static void mix(struct options *options, const char *text)
{
    char one[32];
    const char *end;
    options->nmix = 0;
    for (const char *at = text; at; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, ",");
        if (options->nmix == MAX_MIX || (size_t)(end - at) >= sizeof one)
            refuse("kernel-mix", text, "at most 16 numbers, divided by commas, are needed");
        snprintf(one, sizeof one, "%.*s", (int)(end - at), at);
        options->mix[options->nmix++] = number("kernel-mix", one, 0.001, 6e7);
    }
}

static uint64_t size(const char *option, const char *text)
{
    static const char *const units[] = {"", "B", "K", "KIB", "M", "MIB", "G", "GIB", "T", "TIB"};
    char *end, unit[4] = "";
    errno = 0;
    double value = strtod(text, &end);
    for (unsigned i = 0; i < 3 && end[i]; i++)
        unit[i] = end[i] >= 'a' && end[i] <= 'z' ? (char)(end[i] - 32) : end[i];
    for (unsigned i = 0; i < sizeof units / sizeof *units && end != text && strlen(end) <= 3; i++)
        if (strcmp(unit, units[i]) == 0 && !errno && value >= 0 && value < 1e15)
            return (uint64_t)(value * (double)(1ull << (10 * (i / 2))));
    refuse(option, text, "a size is needed, for example 512M or 24GiB (units of 1024)");
    return 0;
}

enum id {
    KERNEL_US = 1,
    KERNELS,
    BUSY,
    IDLE,
    LENGTH,
    REQUESTS,
    WARMUP,
    STREAMS,
    ASYNC,
    MEMORY,
    PAST,
    ITERS,
    DEVICE,
    LOG,
    LOG_REQUESTS,
    PROGRESS,
    JSON,
    HELP,
    MIX,
    GRAPH,
    PERIOD,
    DUTY,
    POISSON,
    SEED,
    IN_FLIGHT,
    PROCS,
    START_AT,
    COPY,
    GAP,
    PATTERN
};

static const struct option table[] = {{"kernel-us", 1, NULL, KERNEL_US},
                                      {"kernels-per-request", 1, NULL, KERNELS},
                                      {"busy", 1, NULL, BUSY},
                                      {"idle", 1, NULL, IDLE},
                                      {"length", 1, NULL, LENGTH},
                                      {"requests", 1, NULL, REQUESTS},
                                      {"warmup", 1, NULL, WARMUP},
                                      {"streams", 1, NULL, STREAMS},
                                      {"no-sync-each", 2, NULL, ASYNC},
                                      {"memory", 1, NULL, MEMORY},
                                      {"alloc-past", 1, NULL, PAST},
                                      {"iters", 1, NULL, ITERS},
                                      {"device", 1, NULL, DEVICE},
                                      {"log", 1, NULL, LOG},
                                      {"log-requests", 0, NULL, LOG_REQUESTS},
                                      {"progress", 0, NULL, PROGRESS},
                                      {"json", 0, NULL, JSON},
                                      {"help", 0, NULL, HELP},
                                      {"kernel-mix", 1, NULL, MIX},
                                      {"graph", 0, NULL, GRAPH},
                                      {"period", 1, NULL, PERIOD},
                                      {"duty", 1, NULL, DUTY},
                                      {"poisson", 1, NULL, POISSON},
                                      {"seed", 1, NULL, SEED},
                                      {"in-flight", 1, NULL, IN_FLIGHT},
                                      {"procs", 1, NULL, PROCS},
                                      {"start-at", 1, NULL, START_AT},
                                      {"copy", 1, NULL, COPY},
                                      {"gap", 1, NULL, GAP},
                                      {"pattern", 1, NULL, PATTERN},
                                      {NULL, 0, NULL, 0}};

static void set(struct options *options, int id, const char *name, const char *arg)
{
    switch (id) {
    case KERNEL_US:
        options->kernel_us = number(name, arg, 0.001, 6e7);
        break;
    case KERNELS:
        options->kernels = whole(name, arg, 1, 1e6);
        break;
    case BUSY:
        options->busy_s = number(name, arg, 0.0001, 1e6);
        break;
    case IDLE:
        options->idle_s = number(name, arg, 0, 1e6);
        break;
    case LENGTH:
        options->length_s = number(name, arg, 0, 1e7);
        break;
    case REQUESTS:
        options->requests = whole(name, arg, 0, 1e15);
        options->has_requests = true;
        break;
    case WARMUP:
        options->warmup = whole(name, arg, 0, 1e9);
        break;
    case STREAMS:
        options->streams = (unsigned)whole(name, arg, 1, MAX_STREAMS);
        break;
    case ASYNC:
        options->sync_every = arg ? whole(name, arg, 1, 1e6) : 64;
        break;
    case MEMORY:
        options->memory = size(name, arg);
        break;
    case PAST:
        options->alloc_past = size(name, arg);
        break;
    case ITERS:
        options->iterations = whole(name, arg, 1, 1e15);
        break;
    case DEVICE:
        options->device = (int)whole(name, arg, 0, 63);
        break;
    case LOG:
        options->log = arg;
        break;
    case LOG_REQUESTS:
        options->log_requests = true;
        break;
    case PROGRESS:
        options->progress = true;
        break;
    case MIX:
        mix(options, arg);
        break;
    case GRAPH:
        options->graph = true;
        break;
    case PERIOD:
        options->period_s = number(name, arg, 0.001, 1e5);
        break;
    case DUTY:
        options->duty = number(name, arg, 0.1, 100) / 100;
        break;
    case POISSON:
        options->poisson = number(name, arg, 1e-3, 1e5);
        break;
    case SEED:
        options->seed = whole(name, arg, 0, 9e15);
        break;
    case IN_FLIGHT:
        options->in_flight = whole(name, arg, 1, MAX_IN_FLIGHT);
        break;
    case PROCS:
        options->procs = (unsigned)whole(name, arg, 1, 256);
        break;
    case START_AT:
        options->start_at = whole(name, arg, 0, 9e15);
        break;
    case COPY:
        options->copy = size(name, arg);
        break;
    case GAP:
        options->gap_s = number(name, arg, 0, 1e6);
        break;
    case PATTERN:
        options->pattern = size(name, arg);
        break;
    case JSON:
        options->json = true;
        break;
    case HELP:
        fputs(usage, stdout);
        exit(EXIT_OK);
    default:
        fputs(usage, stderr);
        exit(EXIT_USAGE);
    }
}

static void refuse_pair(const char *text)
{
    fprintf(stderr, "qgpu-workload: %s\n", text);
    exit(EXIT_USAGE);
}

static void check_pairs(const struct options *options)
{
    if (options->log_requests && !options->log)
        refuse_pair("--log-requests needs --log FILE");
    if ((options->period_s > 0) != (options->duty > 0))
        refuse_pair("--period and --duty need each other");
    if (options->period_s > 0 && options->idle_s > 0)
        refuse_pair("--period and --idle are two ways to say when to rest; give one");
    if (options->poisson > 0 &&
        (options->period_s > 0 || options->idle_s > 0 || options->sync_every != 1))
        refuse_pair("--poisson decides alone when to rest and waits for each request; "
                    "--period, --idle and --no-sync-each contradict it");
    if (options->graph && options->in_flight)
        refuse_pair("--in-flight counts kernels; a graph is launched as a whole");
}

void parse_options(struct options *options, int argc, char **argv)
{
    int id, index = 0;
    *options = (struct options){.kernel_us = 100,
                                .busy_s = 1,
                                .length_s = 10,
                                .kernels = 1,
                                .streams = 1,
                                .sync_every = 1,
                                .seed = 1,
                                .procs = 1};
    while ((id = getopt_long(argc, argv, "", table, &index)) != -1)
        set(options, id, table[index].name, optarg);
    if (optind != argc) {
        fprintf(stderr, "qgpu-workload: %s: only options are understood; --help lists them\n",
                argv[optind]);
        exit(EXIT_USAGE);
    }
    check_pairs(options);
}
