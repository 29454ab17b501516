/* SPDX-License-Identifier: Apache-2.0
 *
 * slurmstepd's part for tests of the SPANK plugin: loads it, runs its hooks in slurmstepd's order
 * and as the right users in a forked child, then execs a command with the environment that the
 * plugin made.
 *
 * usage: spank_stage PLUGIN CONTEXT JOB UID [ARG=VALUE...] -- COMMAND... CONTEXT is remote, local,
 * allocator, slurmd or prolog; the last runs the job's prolog alone, as slurmd has it done before
 * its Prolog script, which COMMAND then is. The job's environment is this process's, less
 * SLURMD_NODENAME, which belongs to slurmstepd and not to the job.
 */
#include <dlfcn.h>
#include <grp.h>
#include <slurm/spank.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static enum spank_context context = S_CTX_ERROR;
static uint32_t job_id;
static uid_t uid;
static char **job_env;

static size_t env_find(const char *name)
{
    size_t len = strlen(name), i = 0;

    while (job_env[i] && !(strncmp(job_env[i], name, len) == 0 && job_env[i][len] == '='))
        i++;
    return i;
}

spank_context_t spank_context(void)
{
    return context;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
    va_list ap;

    (void)sp;
    va_start(ap, item);
    if (item == S_JOB_ID)
        *va_arg(ap, uint32_t *) = job_id;
    else if (item == S_JOB_UID)
        *va_arg(ap, uid_t *) = uid;
    else
        abort();
    va_end(ap);
    return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t sp, const char *name, char *buf, int len)
{
    size_t at = env_find(name);

    (void)sp;
    if (!job_env[at])
        return ESPANK_ENV_NOEXIST;
    const char *value = strchr(job_env[at], '=') + 1;
    return snprintf(buf, (size_t)len, "%s", value) < len ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

spank_err_t spank_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
    size_t at = env_find(name);
    char *entry = NULL;

    (void)sp;
    if (job_env[at] && !overwrite)
        return ESPANK_ENV_EXISTS;
    if (asprintf(&entry, "%s=%s", name, value) < 0)
        abort();
    if (!job_env[at])
        job_env[at + 1] = NULL;
    job_env[at] = entry;
    return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t sp, const char *name)
{
    (void)sp;
    for (size_t at = env_find(name); job_env[at]; at++)
        job_env[at] = job_env[at + 1];
    return ESPANK_SUCCESS;
}

/* The stage has no command line of its own: options come from its environment, under their names.
 */
spank_err_t spank_option_register(spank_t sp, struct spank_option *option)
{
    const char *given = getenv(option->name);

    (void)sp;
    if (given && option->cb(option->val, given, context == S_CTX_REMOTE) != ESPANK_SUCCESS)
        exit(93);
    return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t sp, const char *name, const char *value, int overwrite)
{
    (void)sp;
    (void)overwrite;
    printf("request %s=%s\n", name, value);
    fflush(stdout);
    return ESPANK_SUCCESS;
}

const char *spank_strerror(spank_err_t err)
{
    (void)err;
    return "an error";
}

void slurm_error(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fprintf(stderr, "slurmstepd: error: ");
    vfprintf(stderr, format, ap);
    fprintf(stderr, "\n");
    va_end(ap);
}

/* Goes to slurmd.log, not to the user. */
__attribute__((format(printf, 1, 2))) void slurm_info(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fprintf(stderr, "slurmstepd: ");
    vfprintf(stderr, format, ap);
    fprintf(stderr, "\n");
    va_end(ap);
}

static void call(void *plugin, const char *hook, int argc, char **argv)
{
    spank_f *function = NULL;
    void *symbol = dlsym(plugin, hook);

    memcpy(&function, &symbol, sizeof(symbol));
    if (!function || function(NULL, argc, argv) != ESPANK_SUCCESS) {
        fprintf(stderr, "spank_stage: %s is missing or failed\n", hook);
        exit(99);
    }
}

static void run_task(void *plugin, char **command, int argc, char **argv)
{
    call(plugin, "slurm_spank_task_init_privileged", argc, argv);
    if (setgroups(0, NULL) != 0 || setgid((gid_t)uid) != 0 || setuid(uid) != 0)
        exit(98);
    call(plugin, "slurm_spank_task_init", argc, argv);
    execvpe(command[0], command, job_env);
    exit(97);
}

static void copy_env(void)
{
    size_t n = 0, kept = 0;

    while (environ[n])
        n++;
    job_env = calloc(n + 16, sizeof(char *));
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "SLURMD_NODENAME=", 16) != 0)
            job_env[kept++] = environ[i];
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        enum spank_context value;
    } contexts[] = {{"remote", S_CTX_REMOTE},
                    {"local", S_CTX_LOCAL},
                    {"allocator", S_CTX_ALLOCATOR},
                    {"slurmd", S_CTX_SLURMD},
                    {"prolog", S_CTX_JOB_SCRIPT}};
    int dash = 5, status = 0;

    while (dash < argc && strcmp(argv[dash], "--") != 0)
        dash++;
    if (dash + 1 >= argc)
        return 96;
    for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++)
        if (strcmp(argv[2], contexts[i].name) == 0)
            context = contexts[i].value;
    job_id = (uint32_t)strtoul(argv[3], NULL, 10);
    uid = (uid_t)strtoul(argv[4], NULL, 10);
    void *plugin = dlopen(argv[1], RTLD_NOW);
    if (!plugin) {
        fprintf(stderr, "spank_stage: %s\n", dlerror());
        return 95;
    }
    if (context == S_CTX_JOB_SCRIPT) {
        if (dlsym(plugin, "slurm_spank_job_prolog")) /* older plugins have none */
            call(plugin, "slurm_spank_job_prolog", dash - 5, argv + 5);
        execvp(argv[dash + 1], argv + dash + 1);
        return 97;
    }
    copy_env();
    call(plugin, "slurm_spank_init", dash - 5, argv + 5);
    call(plugin, "slurm_spank_init_post_opt", dash - 5, argv + 5);
    pid_t pid = fork();
    if (pid == 0)
        run_task(plugin, argv + dash + 1, dash - 5, argv + 5);
    if (dlsym(plugin, "slurm_spank_task_post_fork")) /* older plugins have none */
        call(plugin, "slurm_spank_task_post_fork", dash - 5, argv + 5);
    waitpid(pid, &status, 0);
    if (dlsym(plugin, "slurm_spank_exit"))
        call(plugin, "slurm_spank_exit", dash - 5, argv + 5);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 94;
}
