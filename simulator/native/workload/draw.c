/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that is left to chance, from one seed: splitmix64, so that a seed means the same load
 * everywhere.
 */
#include <math.h>

#include "workload.h"

void draw_seed(struct draw *draw, uint64_t seed)
{
    draw->state = seed * 0x9e3779b97f4a7c15u;
}

uint64_t draw_u64(struct draw *draw)
{
    uint64_t z = draw->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double draw_exponential(struct draw *draw, double mean)
{
    double uniform = ((double)(draw_u64(draw) >> 11) + 1) / 9007199254740992.0; /* (0, 1] */
    return -mean * log(uniform);
}

double draw_kernel(struct draw *draw, const struct options *options)
{
    return options->nmix ? options->mix[draw_u64(draw) % options->nmix] : options->kernel_us;
}

uint64_t kernel_iterations(const struct options *options, const struct result *result,
                           double kernel_us)
{
    double iterations = (double)result->iterations * kernel_us / options->kernel_us;
    return iterations < 1 ? 1 : (uint64_t)(iterations + 0.5);
}
