#!/bin/bash
# Builds the native parts of an older commit in a tree of its own, for the tests that exchange versions under load.
# Usage: old_build.sh COMMIT VENV; prints the build directory.
set -euo pipefail
commit=$(git rev-parse --verify --quiet "$1^{commit}") || {
    echo "old_build.sh: this repository has no commit \"$1\"; a shallow clone lacks old ones (git fetch --unshallow)" >&2
    exit 1
}
venv=$(realpath "$2")
tree=$PWD/build/old-${commit:0:12}
if [ ! -e "$tree/build/bin/qgpu-arbiter" ]; then
    rm -rf "$tree"
    mkdir -p "$tree/build"
    git archive "$commit" | tar -x -C "$tree"
    touch "$tree/build/.setup" # its setup would make the environment its own
    make --no-print-directory -C "$tree" VENV="$venv" native >&2
fi
echo "$tree/build"
