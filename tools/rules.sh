#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tools/rules.sh BUILD COMPILER FLAGS MAKEFILE...
# Removes what BUILD holds of compiled files if another compiler, other flags or other rules made
# them. make compares times of files alone, and what an older rule linked would stay in the product.
# Runs under the lock of the build.
set -eu
build=$1 compiler=$2 flags=$3
shift 3
now=$({ $compiler --version; echo "$compiler $flags"; cat "$@"; } | cksum)
[ "$(cat "$build/.rules" 2>/dev/null)" = "$now" ] && exit 0
for made in obj bin shim sim lib test; do
    rm -rf "${build:?}/$made"
done
mkdir -p "$build"
echo "$now" >"$build/.rules"
