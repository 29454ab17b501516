#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the Debian tree of one suite: a host as a site has it, with stock Slurm and without qgpu.
# usage: tree_make.sh DIRECTORY SUITE MIRROR
set -euo pipefail
directory=$1 suite=$2 mirror=$3
packages=(
    systemd systemd-sysv dbus iproute2 procps openssh-server python3 python3-apt sudo
    ca-certificates curl jq slurmctld slurmd slurm-client slurmdbd slurm-wlm-basic-plugins
    slurm-wlm-mysql-plugin libpam-slurm-adopt munge mariadb-server
)
debootstrap --variant=minbase --include=ca-certificates "$suite" "$directory" "$mirror"

# The machine's own way to the mirror (proxy, resolver), and no services at installation.
cp -L /etc/resolv.conf /etc/hosts "$directory/etc/"
cp /etc/apt/apt.conf.d/* "$directory/etc/apt/apt.conf.d/" 2>/dev/null || true
printf '#!/bin/sh\nexit 101\n' >"$directory/usr/sbin/policy-rc.d"
chmod 755 "$directory/usr/sbin/policy-rc.d"

inside() { chroot "$directory" env DEBIAN_FRONTEND=noninteractive "$@"; }
inside apt-get update -q
# What came from this machine's apt.conf.d stays as it is.
inside apt-get install -y -q --no-install-recommends \
    -o Dpkg::Options::=--force-confold "${packages[@]}"
inside apt-get clean

# As on a host that was installed from a disk: nothing of the machine that made the tree, services
# may start.
rm -f "$directory"/usr/sbin/policy-rc.d "$directory"/etc/machine-id \
    "$directory"/var/lib/dbus/machine-id
: >"$directory/etc/machine-id"
