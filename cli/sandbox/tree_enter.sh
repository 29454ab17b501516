#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs in a new mount namespace: makes TREE the root directory and runs a command there.
# usage: tree_enter.sh TREE DIRECTORY [SOURCE PLACE...] -- COMMAND...
#
# pivot_root and not chroot: in a chroot no further namespaces can be entered, and the sandbox needs
# its own.
set -eu
tree=$1 directory=$2
shift 2
mount --bind "$tree" "$tree"
for each in proc sys dev; do mount --rbind "/$each" "$tree/$each"; done
while [ "$1" != -- ]; do
    mkdir -p "$tree$2"
    mount --bind "$1" "$tree$2"
    shift 2
done
shift
cp -L /etc/resolv.conf /etc/hosts "$tree/etc/"
for each in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
    if [ -e "$each" ]; then cp "$each" "$tree$each"; fi
done
cd "$tree"
mkdir -p .outside
pivot_root . .outside
cd "$directory"
umount -l /.outside
exec "$@"
