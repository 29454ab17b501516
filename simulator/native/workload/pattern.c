/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory with known contents: a page of words here and there in several allocations. The words
 * follow from the seed and from their own address, so a page at another address is wrong as well.
 */
#include <stdlib.h>
#include <string.h>

#include "workload.h"

#define PIECES 8u
#define WORDS  512u                 /* of a page */
#define STRIDE ((uint64_t)64 << 20) /* bytes between two pages of a piece */

static uint64_t word_at(uint64_t seed, CUdeviceptr at)
{
    struct draw draw;
    draw_seed(&draw, seed ^ (uint64_t)at);
    return draw_u64(&draw);
}

static void fill(uint64_t page[WORDS], uint64_t seed, CUdeviceptr at)
{
    for (unsigned i = 0; i < WORDS; i++)
        page[i] = word_at(seed, at + i * sizeof *page);
}

/* Visits each page of all pieces: writes it, or compares it. Returns how many were wrong. */
static uint64_t visit(const struct driver *driver, const struct options *options, bool compare,
                      uint64_t *pages)
{
    uint64_t want[WORDS], found[WORDS], wrong = 0, piece = options->pattern / PIECES;
    *pages = 0;
    for (unsigned i = 0; i < PIECES; i++)
        for (uint64_t at = 0; at + sizeof want <= piece; at += STRIDE, ++*pages) {
            CUdeviceptr place = driver->pattern[i] + at;
            fill(want, options->seed, place);
            if (!compare) {
                driver_check(driver, driver->p_cuMemcpyHtoD(place, want, sizeof want),
                             "--pattern: writing");
                continue;
            }
            driver_check(driver, driver->p_cuMemcpyDtoH(found, place, sizeof found),
                         "--pattern: reading");
            wrong += memcmp(want, found, sizeof want) != 0;
        }
    return wrong;
}

void driver_take_pattern(struct driver *driver, const struct options *options,
                         struct result *result)
{
    for (unsigned i = 0; options->pattern && i < PIECES; i++) {
        CUresult status = driver->p_cuMemAlloc(&driver->pattern[i], options->pattern / PIECES);
        if (status == CUDA_SUCCESS)
            continue;
        fprintf(stderr, "qgpu-workload: --pattern: part %u of %u was refused: %s\n", i + 1, PIECES,
                driver_error(driver, status));
        exit(EXIT_NO_MEMORY);
    }
    if (options->pattern)
        visit(driver, options, false, &result->pattern_pages);
}

void driver_compare_pattern(const struct driver *driver, const struct options *options,
                            struct result *result)
{
    if (!options->pattern)
        return;
    result->pattern_wrong = visit(driver, options, true, &result->pattern_pages);
    if (result->pattern_wrong)
        fprintf(stderr, "qgpu-workload: --pattern: %llu of %llu pages have changed\n",
                (unsigned long long)result->pattern_wrong,
                (unsigned long long)result->pattern_pages);
}
