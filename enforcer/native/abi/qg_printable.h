/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes foreign text fit for a log, a terminal or an argument. gres/printable.py does the same in
 * Python, where escapes tell what was there; Lua's is `shown` in qgpu_text.lua.
 */
#ifndef QG_PRINTABLE_H
#define QG_PRINTABLE_H

/* Each byte that is no printable character of ASCII becomes '?'. */
static inline void qg_printable(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

#endif
