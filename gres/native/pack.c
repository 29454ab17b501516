/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Packs a class and a count into one number (pack.h).
 */
#include "pack.h"

#include <string.h>

static const char *const NAMES[] = {[QGN_ONLINE] = "online", [QGN_OFFLINE] = "offline"};

enum qgn_class qgn_class_of(const char *type)
{
    if (!type)
        return QGN_NONE;
    for (int i = QGN_ONLINE; i <= QGN_OFFLINE; i++)
        if (!strcmp(type, NAMES[i]))
            return (enum qgn_class)i;
    return QGN_OTHER;
}

const char *qgn_class_name(enum qgn_class type)
{
    if (type == QGN_ONLINE || type == QGN_OFFLINE)
        return NAMES[type];
    return type == QGN_NONE ? "none" : "unknown";
}

/* A count that is too large becomes the largest one that fits. The node refuses that, as it is more
 * than any card has. */
uint64_t qgn_pack(uint64_t count, const char *type)
{
    if (count > QGN_COUNT_MASK)
        count = QGN_COUNT_MASK;
    return QGN_PACKED << 60 | (uint64_t)qgn_class_of(type) << QGN_COUNT_BITS | count;
}

bool qgn_unpack(uint64_t packed, uint64_t *count, enum qgn_class *type)
{
    if (packed >> 60 != QGN_PACKED)
        return false;
    *type = (enum qgn_class)(packed >> QGN_COUNT_BITS & 15);
    *count = packed & QGN_COUNT_MASK;
    return true;
}
