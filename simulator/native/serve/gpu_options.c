/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of qgpu-simgpu.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve.h"

static const char usage[] =
    "usage: qgpu-simgpu --dir DIR --node NAME [options]\n"
    "Models the NVIDIA cards of one node for the simulated libcuda.so.1 and libnvidia-ml.so.1 "
    "(QGPU_SIM_DIR=DIR).\n"
    "  --cards N          number of cards, 1 to 16 (1)\n"
    "  --model NAME       name of the cards (NVIDIA H200)\n"
    "  --memory MIB       memory of each card (81920)\n"
    "  --context-mib MIB  what each context takes of it (300)\n"
    "  --major M          major of the device nodes, 240 to 254 (245; another one if a driver has "
    "it)\n"
    "  --minor-base K     minor of the first card (0)\n"
    "  --slice-us F       time slice between contexts (1000)\n"
    "  --run-to-end       a kernel is never stopped in the middle; the next context waits for its "
    "end\n"
    "  --switch-us F      cost of a change of context (50)\n"
    "  --launch-us F      from a launch to its start, and between two starts of a context (3)\n"
    "  --queue-depth N    commands of a context in flight at which a launch blocks, 1 to 4096 "
    "(1024)\n"
    "  --ns-per-iter F    duration of one iteration of qgpu_work (1.0)\n"
    "  --unknown-us F     duration of any kernel that --kernel-cost does not name (by its own "
    "rules)\n"
    "  --kernel-cost FILE lines of a name pattern and a duration, as 'gemm_* 40us+2us/wave', "
    "perhaps 'stop=5us', what a\n"
    "                     block takes (--preempt cta); the first match counts\n"
    "  --copy-gbs F       host to card and back, GB/s (50)\n"
    "  --memory-gbs F     within the card, GB/s (2000)\n"
    "  --driver-generation N  580, or 615: with memory limits of cgroups (580)\n"
    "  --driver-version V  what NVML and the control device say (580.00.qgpusim or "
    "615.00.qgpusim)\n"
    "  --preempt MODE     cilp: a kernel is stopped anywhere; cta: between its blocks; wfi: at its "
    "end (cilp)\n"
    "  --preempt-us F     with cilp, from the order to stop to the end of a kernel's progress "
    "(100)\n"
    "  --block-us F       with cta, how long a block takes; 0: as long as its kernel (0)\n"
    "  --control-us F     what a command of the control device takes that the card executes (0)\n"
    "  --client-per-context  libcuda makes a client and device objects for each context, not for "
    "the process\n"
    "  --peers            cards say that they may access each other's memory\n"
    "  --nvlinks LIST     NVLinks as '0-1:4,2-switch:18': four between cards 0 and 1, 18 of card 2 "
    "to switches (none)\n"
    "  --mig N            the cards are MIG instances, each N of them of one card\n"
    "  --control-log FILE one line per call of the control device\n"
    "  --fault COMMAND    as through sim.sock, for processes to come: 'delay call=cuMemAlloc "
    "us=50000'; may be repeated\n"
    "  --stall-ms F, --stall-each-ms F  all cards stand still for so long, about so often, from "
    "100 ms (never)\n"
    "  --poll-us F        for so long after each command rings are read without sleep: no program "
    "has to wake the\n"
    "                     device side, which takes a processor meanwhile (0)\n"
    "  --no-trace         do not write DIR/trace.bin\n"
    "  --priority N       of SCHED_FIFO, 0: do not ask for it (60)\n"
    "  --ready-fd N       write READY there and close it when clients may connect\n";

static void refuse(const char *option, const char *text, double low, double high)
{
    fprintf(stderr, "qgpu-simgpu: --%s %s: a number from %g to %g is needed\n", option, text, low,
            high);
    exit(2);
}

static double number(const char *option, const char *text, double low, double high)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno || end == text || *end || !(value >= low && value <= high))
        refuse(option, text, low, high);
    return value;
}

static unsigned whole(const char *option, const char *text, unsigned low, unsigned high)
{
    double value = number(option, text, low, high);
    if (value != (unsigned)value)
        refuse(option, text, low, high);
    return (unsigned)value;
}

enum option_id {
    O_DIR = 1,
    O_NODE,
    O_CARDS,
    O_MODEL,
    O_MEMORY,
    O_CONTEXT,
    O_MAJOR,
    O_MINOR,
    O_SLICE,
    O_SWITCH,
    O_ITER,
    O_UNKNOWN,
    O_COPY,
    O_MEMGBS,
    O_TRACE,
    O_NO_TRACE,
    O_PRIORITY,
    O_READY,
    O_HELP,
    O_END,
    O_LAUNCH,
    O_DEPTH,
    O_COST,
    O_GENERATION,
    O_FAULT,
    O_STALL,
    O_STALL_EACH,
    O_DRIVER,
    O_PREEMPT,
    O_PREEMPT_US,
    O_BLOCK,
    O_CONTROL,
    O_CONTROL_LOG,
    O_CLIENTS,
    O_MIG,
    O_PEERS,
    O_NVLINKS,
    O_POLL,
    O_VERSION
};

static const struct option options[] = {{"dir", 1, NULL, O_DIR},
                                        {"node", 1, NULL, O_NODE},
                                        {"cards", 1, NULL, O_CARDS},
                                        {"model", 1, NULL, O_MODEL},
                                        {"memory", 1, NULL, O_MEMORY},
                                        {"context-mib", 1, NULL, O_CONTEXT},
                                        {"major", 1, NULL, O_MAJOR},
                                        {"minor-base", 1, NULL, O_MINOR},
                                        {"slice-us", 1, NULL, O_SLICE},
                                        {"switch-us", 1, NULL, O_SWITCH},
                                        {"ns-per-iter", 1, NULL, O_ITER},
                                        {"unknown-us", 1, NULL, O_UNKNOWN},
                                        {"copy-gbs", 1, NULL, O_COPY},
                                        {"memory-gbs", 1, NULL, O_MEMGBS},
                                        {"trace", 0, NULL, O_TRACE},
                                        {"no-trace", 0, NULL, O_NO_TRACE},
                                        {"run-to-end", 0, NULL, O_END},
                                        {"launch-us", 1, NULL, O_LAUNCH},
                                        {"queue-depth", 1, NULL, O_DEPTH},
                                        {"kernel-cost", 1, NULL, O_COST},
                                        {"driver-generation", 1, NULL, O_GENERATION},
                                        {"fault", 1, NULL, O_FAULT},
                                        {"stall-ms", 1, NULL, O_STALL},
                                        {"stall-each-ms", 1, NULL, O_STALL_EACH},
                                        {"driver-version", 1, NULL, O_DRIVER},
                                        {"preempt", 1, NULL, O_PREEMPT},
                                        {"preempt-us", 1, NULL, O_PREEMPT_US},
                                        {"block-us", 1, NULL, O_BLOCK},
                                        {"control-us", 1, NULL, O_CONTROL},
                                        {"control-log", 1, NULL, O_CONTROL_LOG},
                                        {"client-per-context", 0, NULL, O_CLIENTS},
                                        {"mig", 1, NULL, O_MIG},
                                        {"peers", 0, NULL, O_PEERS},
                                        {"nvlinks", 1, NULL, O_NVLINKS},
                                        {"priority", 1, NULL, O_PRIORITY},
                                        {"poll-us", 1, NULL, O_POLL},
                                        {"ready-fd", 1, NULL, O_READY},
                                        {"help", 0, NULL, O_HELP},
                                        {"version", 0, NULL, O_VERSION},
                                        {NULL, 0, NULL, 0}};

static void command(struct gpu *gpu, const char *text)
{
    uint64_t reached;
    if (gpu_fault_command(gpu, text, &reached, true) != 0)
        exit(2);
}

static unsigned generation(const char *name, const char *arg)
{
    unsigned value = whole(name, arg, 580, 615);
    if (value != 580 && value != 615)
        refuse(name, arg, 580, 615);
    return value;
}

static enum model_preempt preemption(const char *arg)
{
    static const char *const modes[] = {
        [PREEMPT_AT_END] = "wfi", [PREEMPT_BLOCK] = "cta", [PREEMPT_ANYWHERE] = "cilp"};
    for (unsigned i = PREEMPT_AT_END; i <= PREEMPT_ANYWHERE; i++)
        if (strcmp(arg, modes[i]) == 0)
            return i;
    fprintf(stderr, "qgpu-simgpu: --preempt %s: cilp, cta or wfi is needed\n", arg);
    exit(2);
}

/* Where an option that is kept as it is goes; NULL for another option. */
static const char **text_of(struct gpu_config *config, int option)
{
    switch (option) {
    case O_DIR:
        return &config->dir;
    case O_NODE:
        return &config->node;
    case O_MODEL:
        return &config->model;
    case O_DRIVER:
        return &config->driver;
    case O_NVLINKS:
        return &config->nvlinks;
    default:
        return NULL;
    }
}

static void set_option(struct gpu *gpu, int option, const char *name, const char *arg)
{
    struct gpu_config *config = &gpu->config;
    const char **text = text_of(config, option);
    if (text) {
        *text = arg;
        return;
    }
    switch (option) {
    case O_END:
        config->params.run_to_end = true;
        break;
    case O_LAUNCH:
        config->params.launch_ns = (uint64_t)(number(name, arg, 0, 1e4) * 1e3);
        break;
    case O_DEPTH:
        config->depth = whole(name, arg, 1, SIM_RING);
        break;
    case O_COST:
        if (!gpu_cost_read(&gpu->page, arg))
            exit(2);
        break;
    case O_GENERATION:
        config->generation = generation(name, arg);
        break;
    case O_PREEMPT:
        config->params.preempt = preemption(arg);
        break;
    case O_PREEMPT_US:
        config->params.preempt_ns = (uint64_t)(number(name, arg, 0, 1e6) * 1e3);
        break;
    case O_BLOCK:
        config->params.block_ns = (uint64_t)(number(name, arg, 0, 1e9) * 1e3);
        break;
    case O_CONTROL:
        config->control_ns = (uint64_t)(number(name, arg, 0, 1e6) * 1e3);
        break;
    case O_MIG:
        config->mig = whole(name, arg, 1, SIM_MIG_MOST);
        break;
    case O_PEERS:
    case O_CLIENTS:
        gpu->page.options |= option == O_PEERS ? SIM_OPTION_PEERS : SIM_OPTION_CLIENT_PER_CONTEXT;
        break;
    case O_CONTROL_LOG:
        if (!rm_log_open(gpu->rm, arg))
            exit(2);
        break;
    case O_STALL:
        config->stall_ns = (uint64_t)(number(name, arg, 0, 1e5) * 1e6);
        break;
    case O_STALL_EACH:
        config->stall_each_ns = (uint64_t)(number(name, arg, 100, 1e7) * 1e6);
        break;
    case O_FAULT:
        command(gpu, arg);
        break;
    case O_CARDS:
        config->cards = whole(name, arg, 1, SIM_MAX_CARDS);
        break;
    case O_MEMORY:
        config->memory = (uint64_t)whole(name, arg, 1, 1u << 24) << 20;
        break;
    case O_CONTEXT:
        config->context_bytes = (uint64_t)whole(name, arg, 0, 1u << 20) << 20;
        break;
    case O_MAJOR:
        config->major = whole(name, arg, 240, 254);
        break;
    case O_MINOR:
        config->minor_base = whole(name, arg, 0, 1u << 19);
        break;
    case O_SLICE:
        config->params.slice_ns = (uint64_t)(number(name, arg, 1, 1e7) * 1e3);
        break;
    case O_SWITCH:
        config->params.switch_ns = (uint64_t)(number(name, arg, 0, 1e5) * 1e3);
        break;
    case O_ITER:
        config->ns_per_iter = number(name, arg, 1e-3, 1e6);
        break;
    case O_UNKNOWN:
        config->unknown_us = number(name, arg, 1e-3, 1e7);
        break;
    case O_COPY:
        config->copy_gbs = number(name, arg, 1e-3, 1e5);
        break;
    case O_MEMGBS:
        config->memory_gbs = number(name, arg, 1e-3, 1e5);
        break;
    case O_TRACE:
    case O_NO_TRACE:
        config->trace = option == O_TRACE;
        break;
    case O_POLL:
        config->poll_ns = (uint64_t)(number(name, arg, 0, 1e6) * 1e3);
        break;
    case O_PRIORITY:
        config->priority = whole(name, arg, 0, 99);
        break;
    case O_READY:
        config->ready_fd = whole(name, arg, 0, 1u << 20);
        config->has_ready_fd = true;
        break;
    case O_HELP:
        fputs(usage, stdout);
        exit(0);
    case O_VERSION:
        puts("qgpu-simgpu " QG_VERSION);
        exit(0);
    default:
        fputs(usage, stderr);
        exit(2);
    }
}

void gpu_parse(struct gpu *gpu, int argc, char **argv)
{
    struct gpu_config *config = &gpu->config;
    int option, index = 0;
    gpu->rm->log = -1;
    *config = (struct gpu_config){
        .model = "NVIDIA H200",
        .cards = 1,
        .major = 245,
        .memory = 81920ull << 20,
        .context_bytes = 300ull << 20,
        .ns_per_iter = 1.0,
        .copy_gbs = 50,
        .memory_gbs = 2000,
        .trace = true,
        .priority = 60,
        .depth = 1024,
        .generation = 580,
        .params = {
            .slice_ns = 1000000, .switch_ns = 50000, .launch_ns = 3000, .preempt_ns = 100000}};
    while ((option = getopt_long(argc, argv, "", options, &index)) != -1)
        set_option(gpu, option, options[index].name, optarg);
    if (!config->unknown_us && !gpu_cost_shipped(&gpu->page))
        exit(2);
    if (!config->driver)
        config->driver = config->generation < 615 ? "580.00.qgpusim" : "615.00.qgpusim";
    if (!config->dir || config->dir[0] != '/' || !config->node || !*config->node ||
        optind != argc) {
        fputs("qgpu-simgpu: --dir (an absolute path) and --node are needed, and nothing but "
              "options\n",
              stderr);
        fputs(usage, stderr);
        exit(2);
    }
    if (strlen(config->node) > 31 || strlen(config->model) > 95 || strlen(config->dir) > 150 ||
        strlen(config->driver) > 63) {
        fputs("qgpu-simgpu: too long: at most 31 characters for --node, 95 for --model, 150 for "
              "--dir, 63 for --driver-version\n",
              stderr);
        exit(2);
    }
    if (config->mig && config->cards % config->mig) {
        fputs("qgpu-simgpu: --cards must be a multiple of --mig\n", stderr);
        exit(2);
    }
    if (config->mig && (config->nvlinks || gpu->page.options & SIM_OPTION_PEERS)) {
        fprintf(stderr, "qgpu-simgpu: MIG instances have no --%s\n",
                config->nvlinks ? "nvlinks" : "peers");
        exit(2);
    }
    if (config->nvlinks && !gpu_links_read(config, config->nvlinks))
        exit(2);
    if (config->context_bytes >= config->memory) {
        fputs("qgpu-simgpu: --context-mib must be smaller than --memory\n", stderr);
        exit(2);
    }
}
