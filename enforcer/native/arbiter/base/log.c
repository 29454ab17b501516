/* SPDX-License-Identifier: Apache-2.0
 *
 * One line per event on standard error, where systemd or the sandbox collects it. Some words of it
 * come from processes of users, such as the card that a registration names.
 */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/base.h"
#include "qg_printable.h"

void ar_log(const struct arbiter *a, int level, const char *fmt, ...)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    char line[512];
    if (level > a->level)
        return;
    int n = snprintf(line, sizeof(line), "qgpu-arbiter: %s: ", names[level & 3]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0)
        return;
    n = n + m < (int)sizeof(line) - 1 ? n + m : (int)sizeof(line) - 2;
    line[n] = 0;
    qg_printable(line);
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* standard error is the only place where this fault could be reported */
}
