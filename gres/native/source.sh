#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The exact source of the Slurm that is installed here, unpacked and configured; prints its
# directory.
# usage: source.sh [CACHE]      (default /var/cache/qgpu/slurm)
#
# A GRES plugin includes Slurm's private headers, which no package has. So: Debian's source package
# of the very version that slurmctld is of. apt gets a source list and a directory of its own; the
# machine's own lists, and what apt knows, stay as they are. Made once, kept in CACHE/src-VERSION.
set -euo pipefail
cache=${1:-/var/cache/qgpu/slurm}
outside=${QGPU_TREE_OUTSIDE:-} # in a tree of the sandbox: where its root is for who reads this
die() { echo "source.sh: $*" >&2; exit 1; }

version=$(dpkg-query -W -f '${Version}' slurmctld 2>/dev/null) ||
    die "slurmctld is not installed from a package"
package=$(dpkg-query -W -f '${source:Package}' slurmctld)
upstream=${version%-*}
directory=$cache/src-$version
mkdir -p "$cache"
exec 9<"$cache"
flock 9
if [ -e "$directory/.configured" ]; then
    echo "$directory"
    exit
fi
# The tools of source packages, and what Slurm's configure wants. In a tree of the sandbox, which is
# ours, they are installed; a machine is its owner's.
tools=(dpkg-dev:dpkg-source pkgconf:pkg-config)
missing=()
for each in "${tools[@]}"; do command -v "${each#*:}" >/dev/null || missing+=("${each%:*}"); done
if [ ${#missing[@]} -gt 0 ]; then
    [ -n "${QGPU_TREE:-}" ] || die "these packages are missing: ${missing[*]}"
    {
        apt-get update -q &&
            DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
                "${missing[@]}"
    } >"$cache/tools.log" 2>&1 ||
        die "${missing[*]} cannot be installed; read $outside$cache/tools.log"
fi

work=$cache/src-$version.unfinished
rm -rf "$work"
mkdir -p "$work/lists/partial"
trap 'rm -rf "$work"' EXIT
# The same archives that the binary packages came from, as source.
for each in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources \
    /etc/apt/sources.list.d/*.list; do
    [ -e "$each" ] || continue
    case $each in
    *.sources) sed 's/^Types:.*/Types: deb-src/' "$each" >"$work/$(basename "$each")" ;;
    *) sed -n 's/^deb /deb-src /p' "$each" >"$work/$(basename "$each" .list).list" ;;
    esac
done
private=(-o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$work"
    -o "Dir::State::Lists=$work/lists"
    -o "Dir::Cache::srcpkgcache=" -o "Dir::Cache::pkgcache=" -o APT::Sandbox::User=root)
source=$work/source
# Written with && throughout: bash heeds no set -e in what stands before ||.
whole() {
    apt-get "${private[@]}" source -q --only-source "$package=$version" &&
        mv "$package-$upstream" source &&
        echo "source package $package $version" >source/.origin
}
# Mirrors may hold the tarball and not Debian's changes to it. apt checks it against the signed
# index. The version, which is what Slurm asks of a plugin, is upstream's.
tarball() {
    apt-get "${private[@]}" source -q --only-source --download-only --tar-only \
        "$package=$version" && mkdir source &&
        tar -x --strip-components=1 -C source -f "${package}_$upstream".orig.tar.* &&
        echo "tarball of the source package $package $version, without Debian's changes" \
            >source/.origin
}
(
    cd "$work" && apt-get "${private[@]}" update -q && { whole || tarball; }
) >"$work.log" 2>&1 ||
    die "the source package $package $version cannot be had ($(grep -m 1 "^E: " "$work.log"));" \
        "read $outside$work.log"
[ -x "$source/configure" ] || die "$package $version has no configure in $outside$source"
(
    cd "$source"
    # What Debian builds with and what changes a header; the plugin needs nothing else of the
    # machine.
    ./configure --enable-multiple-slurmd --without-munge --disable-dependency-tracking
) >>"$work.log" 2>&1 || die "configure of $package $version failed; read $outside$work.log"
touch "$source/.configured"
rm -rf "$directory"
mv "$source" "$directory"
echo "$directory"
