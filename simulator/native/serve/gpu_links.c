/* SPDX-License-Identifier: Apache-2.0
 *
 * The option --nvlinks: which cards are connected by how many NVLinks. It changes what NVML says
 * and no duration.
 */
#include <stdio.h>
#include <string.h>

#include "serve.h"

static unsigned links_of(const struct gpu_config *config, unsigned card)
{
    unsigned sum = config->switch_links[card];
    for (unsigned other = 0; other < config->cards; other++)
        sum += config->links[card][other];
    return sum;
}

/* One entry, A-B:N or A-switch:N. */
static bool read_entry(struct gpu_config *config, const char *text)
{
    unsigned one, other, count;
    int end = 0;
    bool to_switch = sscanf(text, "%3u-switch:%3u%n", &one, &count, &end) == 2 && !text[end];
    bool known = to_switch || (sscanf(text, "%3u-%3u:%3u%n", &one, &other, &count, &end) == 3 &&
                               !text[end] && other < config->cards && other != one);
    if (!known || one >= config->cards || !count)
        return false;
    if (to_switch) {
        config->switch_links[one] += count;
        return links_of(config, one) <= SIM_MAX_LINKS;
    }
    config->links[one][other] += count;
    config->links[other][one] += count;
    return links_of(config, one) <= SIM_MAX_LINKS && links_of(config, other) <= SIM_MAX_LINKS;
}

bool gpu_links_read(struct gpu_config *config, const char *text)
{
    char buffer[1024], *rest = buffer;
    snprintf(buffer, sizeof buffer, "%s", text);
    bool good = strlen(text) < sizeof buffer && *text;
    for (const char *entry; good && (entry = strsep(&rest, ","));)
        good = read_entry(config, entry);
    if (!good)
        fprintf(stderr,
                "qgpu-simgpu: --nvlinks %s: entries A-B:N or A-switch:N are needed, of cards below "
                "--cards, with at most %u links of each card\n",
                text, SIM_MAX_LINKS);
    return good;
}
