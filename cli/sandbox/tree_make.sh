#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes a Debian tree with another version of Slurm in it.
# usage: tree_make.sh DIRECTORY SUITE MIRROR
set -euo pipefail
directory=$1 suite=$2 mirror=$3
packages=(
    slurm-wlm slurmctld slurmd slurm-client slurmdbd slurm-wlm-basic-plugins
    slurm-wlm-mysql-plugin libslurm-dev munge mariadb-server mariadb-client lua5.4
    gcc make libc6-dev python3 python3-venv valgrind ca-certificates
)
if ! command -v debootstrap >/dev/null; then
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends debootstrap
fi
debootstrap --variant=minbase --include=ca-certificates "$suite" "$directory" "$mirror" || {
    # What its commands said, which it keeps in the tree.
    cat "$directory/debootstrap/debootstrap.log" 2>/dev/null
    exit 1
}

# The machine's own way to the mirror (proxy, resolver), and no services at installation.
cp -L /etc/resolv.conf /etc/hosts "$directory/etc/"
cp /etc/apt/apt.conf.d/* "$directory/etc/apt/apt.conf.d/" 2>/dev/null || true
printf '#!/bin/sh\nexit 101\n' >"$directory/usr/sbin/policy-rc.d"
chmod 755 "$directory/usr/sbin/policy-rc.d"

inside() { chroot "$directory" env DEBIAN_FRONTEND=noninteractive "$@"; }
inside apt-get update -q
inside apt-get install -y -q --no-install-recommends "${packages[@]}"
inside apt-get clean
rm -f "$directory"/var/lib/apt/lists/*_Packages
