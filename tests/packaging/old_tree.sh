#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the tree of an old Debian, once. usage: old_tree.sh DIRECTORY SUITE MIRROR
set -euo pipefail
directory=$1 suite=$2 mirror=$3
if [ -x "$directory/usr/bin/python3" ]; then exit 0; fi
if ! command -v debootstrap >/dev/null; then
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends debootstrap
fi
mkdir -p "$(dirname "$directory")"
rm -rf "$directory.unfinished"
debootstrap --variant=minbase --include=python3 "$suite" "$directory.unfinished" "$mirror"
mv "$directory.unfinished" "$directory"
