#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The frameworks that tests/frameworks runs, each in an environment of its own, made once and kept
# outside the checkout: some 19 GB in all. An environment is made anew when its list of packages
# changes.
# usage: tools/frameworks.sh [--list] [NAME ...]    --list: those that are there, and make none
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
lists=$here/tests/frameworks/requirements
place=${QGPU_FRAMEWORKS:-/var/cache/qgpu/frameworks}
# Not one that lies in a home directory: jobs of other users run it, too.
python=/usr/bin/python3
[ -x "$python" ] || python=python3
only_list=
if [ "${1:-}" = --list ]; then
    only_list=1
    shift
fi

is_there() { [ "$(cat "$place/$1/.complete" 2>/dev/null)" = "$(sha256sum <"$lists/$1.txt")" ]; }

make_one() {
    local name=$1 log=$place/$1.log
    echo "frameworks: installing $name into $place/$name"
    rm -rf "${place:?}/$name"
    "$python" -m venv "$place/$name"
    if ! "$place/$name/bin/pip" install -q --disable-pip-version-check \
        -r "$lists/$name.txt" >"$log" 2>&1; then
        echo "frameworks: $name could not be installed; the whole output is in $log" >&2
        tail -n 5 "$log" >&2
        return 1
    fi
    sha256sum <"$lists/$name.txt" >"$place/$name/.complete"
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    mapfile -t names < <(cd "$lists" && printf '%s\n' *.txt | sed 's/\.txt$//')
fi
mkdir -p "$place"
for name in "${names[@]}"; do
    if [ ! -e "$lists/$name.txt" ]; then
        echo "frameworks: $name has no list in $lists" >&2
        exit 2
    fi
    if is_there "$name"; then
        [ -z "$only_list" ] || echo "$name"
    elif [ -z "$only_list" ]; then
        make_one "$name"
    fi
done
