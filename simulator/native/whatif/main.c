/* SPDX-License-Identifier: Apache-2.0
 *
 * qgpu-simulate [--jobs N] [--timeline FILE] [--requests] [--fluid]
 * < TRACE > RESULT
 *
 * Cards are independent; threads share them out. With a timeline one thread runs them in order, so
 * that equal runs write equal files.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "simulate.h"

enum { MAX_JOBS = 256 };

struct pool {
    struct world *world;
    uint32_t next;
};

static void *work(void *arg)
{
    struct pool *p = arg;
    for (;;) {
        uint32_t i = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED);
        if (i >= p->world->ncards)
            return NULL;
        card_run(p->world, &p->world->cards[i]);
    }
}

static void run(struct world *w, int jobs)
{
    struct pool pool = {.world = w};
    pthread_t threads[MAX_JOBS];
    int started = 0;
    while (started < jobs - 1 && pthread_create(&threads[started], NULL, work, &pool) == 0)
        started++;
    work(&pool);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

static int usage(void)
{
    fprintf(stderr,
            "usage: qgpu-simulate [--jobs N] [--timeline FILE] [--requests] [--fluid] < TRACE\n");
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"jobs", required_argument, NULL, 'j'},
                                            {"timeline", required_argument, NULL, 't'},
                                            {"requests", no_argument, NULL, 'r'},
                                            {"fluid", no_argument, NULL, 'f'},
                                            {0}};
    struct world world = {0};
    int jobs = 1, opt;
    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (opt == 'j')
            jobs = atoi(optarg);
        else if (opt == 'r')
            world.requests = true;
        else if (opt == 'f')
            world.fluid = true;
        else if (opt != 't')
            return usage();
        else if (!(world.timeline = fopen(optarg, "w"))) {
            perror(optarg);
            return 1;
        }
    }
    if (optind != argc || jobs < 1 || jobs > MAX_JOBS)
        return usage();
    if (!trace_read(&world, stdin)) {
        trace_free(&world);
        return 1;
    }
    if (world.timeline) {
        fprintf(world.timeline, "t_ns,card,tenant,state\n");
        jobs = 1;
    }
    run(&world, jobs);
    world_print(&world, stdout);
    trace_free(&world);
    bool bad = world.timeline && (ferror(world.timeline) | fclose(world.timeline));
    if (bad)
        fprintf(stderr, "qgpu-simulate: the timeline could not be written\n");
    return bad || ferror(stdout) || fflush(stdout) ? 1 : 0;
}
