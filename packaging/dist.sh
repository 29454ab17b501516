#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the source archive: all files that git does not ignore, in the order of their names, all of
# one time. It builds without git. usage: packaging/dist.sh VERSION ARCHIVE
set -euo pipefail
umask 022 # whatever the builder's is: modes go into the archives
version=$1 archive=$2
cd "$(dirname "$0")/.."
epoch=$(packaging/epoch.sh)

# In a checkout what git knows or does not ignore; in an unpacked archive all but what the build
# made.
files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files -z --cached --others --exclude-standard
    else
        find . -mindepth 1 \( -path ./build -o -path ./.venv -o -path ./debian \
            -o -name __pycache__ -o -name '*.egg-info' \) -prune -o -type f -printf '%P\0'
    fi | while IFS= read -r -d '' name; do
        if [ -e "$name" ]; then printf '%s\0' "$name"; fi
    done | LC_ALL=C sort -zu
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/qgpu-$version" "$(dirname "$archive")"
files | tar --null --files-from=- --create --file=- | tar -x -C "$work/qgpu-$version"
echo "$epoch" >"$work/qgpu-$version/packaging/epoch"
tar --create --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    --format=gnu -C "$work" "qgpu-$version" | gzip -9n >"$archive"
