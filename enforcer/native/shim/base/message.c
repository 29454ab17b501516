/* SPDX-License-Identifier: Apache-2.0
 *
 * The one function by which the shim writes to the user. It uses no stdio stream, since the program
 * may have closed or redirected its own.
 */
#include "base/message.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void qg_message(const char *format, ...)
{
    char line[768];
    int saved = errno;
    int used = snprintf(line, sizeof(line), "qgpu: ");
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, arguments);
    va_end(arguments);
    if (more > 0)
        used += more;
    if (used > (int)sizeof(line) - 2)
        used = (int)sizeof(line) - 2;
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)used) < 0)
        errno = saved; /* stderr is closed: nothing can be done about it */
    errno = saved;
}
