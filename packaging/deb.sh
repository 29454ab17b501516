#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages in a clean copy of the source.
# usage: packaging/deb.sh VERSION REVISION DIRECTORY
set -euo pipefail
umask 022 # whatever the builder's is: modes go into the archives
cd "$(dirname "$0")/.."
version=$1 revision=$2
mkdir -p "$3"
out=$(cd "$3" && pwd) here=$PWD
SOURCE_DATE_EPOCH=$(packaging/epoch.sh)
export SOURCE_DATE_EPOCH

work=$here/build/deb
rm -rf "$work" && mkdir -p "$work"
packaging/dist.sh "$version" "$work/qgpu_$version.orig.tar.gz"
tar -xzf "$work/qgpu_$version.orig.tar.gz" -C "$work"
tree=$work/qgpu-$version
# Wheels that are here already are checked by their lock as new ones are.
if [ -d build/wheels ]; then mkdir -p "$tree/build" && cp -a build/wheels "$tree/build/"; fi
cp -a "$tree/packaging/debian" "$tree/debian"
cat >"$tree/debian/changelog" <<TEXT
qgpu ($version-$revision) unstable; urgency=medium

  * Version $version: what changed is in CHANGELOG.md.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
TEXT

log=$here/build/deb.log
echo "deb: building qgpu $version-$revision for Slurm $(packaging/slurm_version.sh);" \
    "the output is in build/deb.log"
if ! (
    cd "$tree" && dpkg-buildpackage --build=binary --no-sign --no-pre-clean --no-check-builddeps
) >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "deb: the packages were not built" >&2
    exit 1
fi
rm -f "$out"/qgpu*.deb "$out"/qgpu*.changes "$out"/qgpu*.buildinfo
mv "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$out/"
rm -rf "$work"
ls "$out"/*.deb
