/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

#include "workload.h"

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double quantile_us(const struct result *result, double q)
{
    if (!result->nlatency)
        return 0;
    uint64_t at = (uint64_t)(q * (double)result->nlatency);
    return (double)result->latency[at < result->nlatency ? at : result->nlatency - 1] / 1e3;
}

static void report_json(const struct driver *driver, const struct options *options,
                        const struct result *result, double seconds)
{
    printf("{\"pid\": %d, \"device\": \"%s\", \"uuid\": \"%s\", \"kernel_us\": %g, \"iterations\": "
           "%llu, ",
           (int)getpid(), driver->name, driver->uuid, options->kernel_us,
           (unsigned long long)result->iterations);
    printf("\"start_ns\": %llu, \"end_ns\": %llu, \"seconds\": %.6f, \"kernels\": %llu, "
           "\"requests\": %llu, "
           "\"bursts\": %llu, ",
           (unsigned long long)result->start_ns, (unsigned long long)result->end_ns, seconds,
           (unsigned long long)result->kernels, (unsigned long long)result->requests,
           (unsigned long long)result->bursts);
    printf("\"kernels_per_s\": %.3f, \"requests_per_s\": %.3f, \"busy_fraction\": %.5f, "
           "\"card_fraction\": %.5f, ",
           (double)result->kernels / seconds, (double)result->requests / seconds,
           (double)result->busy_ns / 1e9 / seconds, result->kernel_us / 1e6 / seconds);
    if (result->nlatency)
        printf("\"latency_us\": {\"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f, \"max\": %.3f}, ",
               quantile_us(result, 0.5), quantile_us(result, 0.9), quantile_us(result, 0.99),
               quantile_us(result, 1));
    else
        printf("\"latency_us\": null, ");
    if (options->alloc_past)
        printf("\"alloc\": {\"bytes\": %llu, \"refused\": %s, \"error\": \"%s\"}, ",
               (unsigned long long)result->refused_at, result->refused ? "true" : "false",
               result->refusal);
    if (options->pattern)
        printf("\"pattern\": {\"pages\": %llu, \"wrong\": %llu}, ",
               (unsigned long long)result->pattern_pages,
               (unsigned long long)result->pattern_wrong);
    printf("\"memory\": %llu, \"errors\": %llu}\n", (unsigned long long)options->memory,
           (unsigned long long)result->errors);
}

void report(const struct driver *driver, const struct options *options, struct result *result)
{
    double seconds = (double)(result->end_ns - result->start_ns) / 1e9;
    if (seconds <= 0)
        seconds = 1e-9;
    qsort(result->latency, result->nlatency, sizeof *result->latency, by_value);
    if (options->json) {
        report_json(driver, options, result, seconds);
        fflush(stdout);
        return;
    }
    printf("%d on %s (%s): %llu requests, %llu kernels of %g us on average in %.2f s\n",
           (int)getpid(), driver->name, driver->uuid, (unsigned long long)result->requests,
           (unsigned long long)result->kernels,
           result->kernels ? result->kernel_us / (double)result->kernels : 0, seconds);
    printf("  %.1f requests/s, %.1f kernels/s, %.1f %% of a card, busy %.1f %% of the time\n",
           (double)result->requests / seconds, (double)result->kernels / seconds,
           result->kernel_us / seconds / 1e4, (double)result->busy_ns / 1e7 / seconds);
    if (result->nlatency)
        printf("  latency p50 %.0f us, p90 %.0f us, p99 %.0f us, max %.0f us\n",
               quantile_us(result, 0.5), quantile_us(result, 0.9), quantile_us(result, 0.99),
               quantile_us(result, 1));
}

int main(int argc, char **argv)
{
    static struct driver driver;
    struct options options;
    struct result result = {0};
    static char out[1 << 16];
    parse_options(&options, argc, argv);
    fork_processes(&options);
    catch_stops();
    driver_open(&driver, &options);
    driver_alloc_past(&driver, &options, &result);
    driver_take_memory(&driver, &options);
    driver_take_pattern(&driver, &options, &result);
    driver_open_copies(&driver, &options);
    /* one write per summary, so that those of several processes do not mix */
    if (options.procs > 1 && !options.progress)
        setvbuf(stdout, out, _IOFBF, sizeof out);
    result.iterations =
        options.iterations ? options.iterations : driver_calibrate(&driver, options.kernel_us);
    run(&driver, &options, &result);
    driver_compare_pattern(&driver, &options, &result);
    report(&driver, &options, &result);
    free(result.latency);
    return result.pattern_wrong ? EXIT_CHANGED : EXIT_OK;
}
