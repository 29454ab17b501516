/* SPDX-License-Identifier: Apache-2.0
 *
 * The options --vram and --qgpu-cards. Every context registers them: srun sends its options to
 * slurmstepd. That would log an error for an unknown one. Only the clients read the values.
 * job_submit.lua turns them into the native request: vram and the number of cards (client.c).
 */
#include "spank_qgpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "qg_printable.h"

static char mem[32], cards[8];

const char *qg_option_mem(void)
{
    return mem[0] ? mem : NULL;
}

const char *qg_option_cards(void)
{
    return cards[0] ? cards : NULL;
}

/* Is it a size as Slurm writes it: a number with K, M, G, T or P, also KiB and KB? Slurm would take
 * a number without a suffix as bytes, so that is refused. */
static bool is_size(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    const char *suffix = text + digits;

    if (digits == 0 || digits > 15 || !*suffix || !strchr("KMGTPkmgtp", *suffix))
        return false;
    return suffix[1] == '\0' || strcasecmp(suffix + 1, "b") == 0 ||
           strcasecmp(suffix + 1, "ib") == 0;
}

/* The value for a sentence: printable, and not too long. */
static const char *shown(const char *text)
{
    static char out[61];

    snprintf(out, sizeof(out), "%s", text ? text : "");
    qg_printable(out);
    return out;
}

static int take_mem(int val, const char *text, int remote)
{
    (void)val;
    if (remote)
        return ESPANK_SUCCESS;
    if (!text || strlen(text) >= sizeof(mem) || !is_size(text)) {
        slurm_error("qgpu: --vram=%s is refused: write a whole number with M, G or T, for "
                    "example --vram=12G",
                    shown(text));
        return ESPANK_BAD_ARG;
    }
    strcpy(mem, text);
    return ESPANK_SUCCESS;
}

static int take_cards(int val, const char *text, int remote)
{
    (void)val;
    if (remote)
        return ESPANK_SUCCESS;
    if (!text || !*text || strlen(text) > 2 || text[strspn(text, "0123456789")] || atoi(text) < 1 ||
        atoi(text) > (int)QG_MAX_CARDS) {
        slurm_error("qgpu: --qgpu-cards=%s is refused: write a number of cards per node from 1 "
                    "to %u, for example "
                    "--gres=qgpu:30 --qgpu-cards=2",
                    shown(text), QG_MAX_CARDS);
        return ESPANK_BAD_ARG;
    }
    strcpy(cards, text);
    return ESPANK_SUCCESS;
}

static struct spank_option options[] = {
    {.name = "vram",
     .arginfo = "SIZE",
     .usage = "[qgpu] memory on each card, beside --gres=qgpu:N; the same as "
              "--gres=qgpu:N,vram:SIZE",
     .has_arg = 1,
     .cb = take_mem},
    {.name = "qgpu-cards",
     .arginfo = "K",
     .usage = "[qgpu] K cards of each node instead of one, N percent of each of them, beside "
              "--gres=qgpu:N",
     .has_arg = 1,
     .cb = take_cards},
};

void qg_options_register(spank_t sp)
{
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (spank_option_register(sp, &options[i]) != ESPANK_SUCCESS)
            slurm_error("qgpu: spank: the option --%s could not be registered", options[i].name);
}
