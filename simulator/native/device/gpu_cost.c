/* SPDX-License-Identifier: Apache-2.0
 *
 * The cost model of kernels that are not qgpu_work: a file with lines "PATTERN DURATION", "#"
 * begins a comment. A duration is a sum of terms like 40us, 2us/wave, 0.2us/block or 3ns/thread. A
 * third word "stop=5us" says how long a block takes: the grain of --preempt cta. The rules of
 * kernel_cost.txt, which is a part of the program, come last.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

#define RULES_OF_FILES 64u /* the rest is for those of kernel_cost.txt */

static const char shipped[] =
#include "kernel_cost.h" /* kernel_cost.txt as a text, by build.mk */
    ;

static double unit(const char **at)
{
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}};
    for (unsigned i = 0; i < 3; i++)
        if (strncmp(*at, units[i].name, 2) == 0) {
            *at += 2;
            return units[i].ns;
        }
    return 0;
}

static bool suffix(const char **at, const char *word)
{
    size_t len = strlen(word);
    if (strncmp(*at, word, len) != 0)
        return false;
    *at += len;
    return true;
}

static bool duration(const char *text, struct sim_rule *rule)
{
    for (;;) {
        char *end;
        double value = strtod(text, &end);
        bool number = end != text && value >= 0 && value <= 1e9;
        text = end;
        value *= unit(&text);
        if (!number || (value == 0 && *end != 'n' && *end != 'u' && *end != 'm'))
            return false;
        if (suffix(&text, "/block"))
            rule->block_ns += value;
        else if (suffix(&text, "/thread"))
            rule->thread_ns += value;
        else if (suffix(&text, "/wave"))
            rule->wave_ns += value;
        else
            rule->base_ns += value;
        if (!*text)
            return true;
        if (*text++ != '+')
            return false;
    }
}

static bool stop(const char *text, struct sim_rule *rule)
{
    char *end;
    if (!text)
        return true;
    if (!suffix(&text, "stop="))
        return false;
    rule->stop_ns = strtod(text, &end);
    bool number = end != text && rule->stop_ns > 0 && rule->stop_ns <= 1e9;
    text = end;
    rule->stop_ns *= unit(&text);
    return number && rule->stop_ns >= 1 && !*text;
}

static bool line_of(struct sim_page *page, char *line, const char *path, unsigned number,
                    unsigned most)
{
    char *save, *pattern, *text;
    line[strcspn(line, "#\n")] = 0;
    pattern = strtok_r(line, " \t", &save);
    if (!pattern)
        return true;
    text = strtok_r(NULL, " \t", &save);
    struct sim_rule rule = {.base_ns = 0};
    if (!text || strlen(pattern) >= sizeof rule.pattern || !duration(text, &rule) ||
        !stop(strtok_r(NULL, " \t", &save), &rule) || strtok_r(NULL, " \t", &save)) {
        fprintf(stderr,
                "qgpu-simgpu: %s:%u: expected PATTERN DURATION [stop=DURATION], as 'gemm_* "
                "40us+0.2us/block'\n",
                path, number);
        return false;
    }
    if (page->nrules >= most) {
        fprintf(stderr, "qgpu-simgpu: %s:%u: more than %u rules\n", path, number, most);
        return false;
    }
    snprintf(rule.pattern, sizeof rule.pattern, "%s", pattern);
    page->rules[page->nrules++] = rule;
    return true;
}

static bool lines_of(struct sim_page *page, FILE *file, const char *path, unsigned most)
{
    char line[512];
    unsigned number = 0;
    bool ok = true;
    while (ok && fgets(line, sizeof line, file))
        ok = line_of(page, line, path, ++number, most);
    fclose(file);
    return ok;
}

bool gpu_cost_read(struct sim_page *page, const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "qgpu-simgpu: cannot read %s: %s\n", path, strerror(errno));
        return false;
    }
    return lines_of(page, file, path, RULES_OF_FILES);
}

bool gpu_cost_shipped(struct sim_page *page)
{
    FILE *file = fmemopen((void *)(uintptr_t)shipped, sizeof shipped - 1, "r");
    return file && lines_of(page, file, "its own rules", SIM_RULES);
}
