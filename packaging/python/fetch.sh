#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Downloads the wheels of a lock file; pip checks each against its hash.
# usage: packaging/python/fetch.sh LOCK DIRECTORY PYTHON_VERSION...
# QGPU_WHEELS=DIR takes them from that directory, without a network.
set -euo pipefail
lock=$1 directory=$2
shift 2
PYTHON3=${PYTHON3:-python3} ARCH=${ARCH:-x86_64}
want="$(sha256sum <"$lock") $ARCH $*"
stamp=$directory/.complete
if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then exit 0; fi

say() { # the end of pip's output, as a sentence
    echo "wheels: '$lock' could not be downloaded:" \
        "$(grep -m1 -i error "$directory/log" || tail -n 1 "$directory/log")" >&2
    echo "wheels: without a network," \
        "put the files into a directory and say QGPU_WHEELS=DIRECTORY" >&2
    exit 1
}

rm -rf "$directory"
mkdir -p "$directory"
if ! "$PYTHON3" -m venv "$directory/pip" >"$directory/log" 2>&1; then say; fi
from=()
if [ -n "${QGPU_WHEELS:-}" ]; then from=(--no-index --find-links "$QGPU_WHEELS"); fi
for version in "$@"; do
    # A constraint of the machine's pip.conf could only forbid what the lock asks for.
    PIP_CONSTRAINT='' "$directory/pip/bin/python" -m pip download --disable-pip-version-check -q \
        --require-hashes --no-deps --only-binary=:all: "${from[@]}" --python-version "$version" \
        --implementation cp \
        --platform "manylinux_2_28_$ARCH" --platform "manylinux_2_17_$ARCH" \
        --platform "manylinux2014_$ARCH" --platform "manylinux_2_12_$ARCH" \
        --platform "manylinux2010_$ARCH" \
        -r "$lock" -d "$directory" >"$directory/log" 2>&1 || say
done
rm -rf "$directory/pip" "$directory/log"
echo "$want" >"$stamp"
