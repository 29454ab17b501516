/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments after the plugin's path in plugstack.conf. There is one: run_dir=DIR.
 */
#include "spank_qgpu.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_RUN_DIR "/run/qgpu"

void qg_args_parse(int argc, char **argv, struct qg_args *args)
{
    snprintf(args->run_dir, sizeof(args->run_dir), "%s", DEFAULT_RUN_DIR);
    for (int i = 0; i < argc; i++) {
        const char *value = strncmp(argv[i], "run_dir=", 8) == 0 ? argv[i] + 8 : NULL;

        if (!value)
            slurm_error(
                "qgpu: spank: plugstack.conf: '%s' is not known; the one argument is run_dir=DIR",
                argv[i]);
        else if (*value != '/' || strlen(value) >= sizeof(args->run_dir))
            slurm_error("qgpu: spank: plugstack.conf: run_dir must be an absolute path, not '%s'",
                        value);
        else
            snprintf(args->run_dir, sizeof(args->run_dir), "%s", value);
    }
}
