#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the time (Unix seconds) that all built files carry: SOURCE_DATE_EPOCH, else of the last
# commit, else of the archive.
cd "$(dirname "$0")/.." || exit 1
if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
    echo "$SOURCE_DATE_EPOCH"
elif [ -e packaging/epoch ]; then
    cat packaging/epoch
else
    git log -1 --format=%ct
fi
