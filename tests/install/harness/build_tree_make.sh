#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Debian tree in which the packages of one suite are built.
# usage: build_tree_make.sh DIRECTORY SUITE MIRROR
set -euo pipefail
directory=$1 suite=$2 mirror=$3
packages=(
    gcc make binutils libc6-dev libpam0g-dev libslurm-dev python3 python3-venv
    dpkg-dev debhelper fakeroot lintian
)
debootstrap --variant=minbase --include=ca-certificates "$suite" "$directory" "$mirror"
cp -L /etc/resolv.conf /etc/hosts "$directory/etc/"
cp /etc/apt/apt.conf.d/* "$directory/etc/apt/apt.conf.d/" 2>/dev/null || true
inside() { chroot "$directory" env DEBIAN_FRONTEND=noninteractive "$@"; }
inside apt-get update -q
# What came from this machine's apt.conf.d stays as it is.
inside apt-get install -y -q --no-install-recommends \
    -o Dpkg::Options::=--force-confold "${packages[@]}"
inside apt-get clean
