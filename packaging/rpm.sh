#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the RPM packages from the source archive; on Debian with Debian's rpm, for EL's
# directories.
# usage: packaging/rpm.sh VERSION REVISION ABI "LUA_COMMON" "LUA_CONTROLLER" DIRECTORY
set -euo pipefail
umask 022 # whatever the builder's is: modes go into the archives
cd "$(dirname "$0")/.."
version=$1 revision=$2 abi=$3 lua_common=$4 lua_controller=$5
mkdir -p "$6"
out=$(cd "$6" && pwd) here=$PWD top=$PWD/build/rpm
SOURCE_DATE_EPOCH=$(packaging/epoch.sh)
export SOURCE_DATE_EPOCH

rm -rf "$top" && mkdir -p "$top/SOURCES" "$top/wheels"
packaging/dist.sh "$version" "$top/SOURCES/qgpu-$version.tar.gz"
# Wheels that are here already are checked by their lock as new ones are.
if [ -e build/wheels/site/.complete ] && [ -e build/wheels/headers/.complete ]; then
    cp build/wheels/*/*.whl "$top/wheels/"
    export QGPU_WHEELS=$top/wheels
fi

lua_lines() { local each; for each in $1; do echo "%{_datadir}/qgpu/lua/${each##*/}"; done; }
lua_lines "$lua_common" >"$top/common"
lua_lines "$lua_controller" >"$top/controller"
spec=$top/qgpu.spec
date=$(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')
sed -e "s/@version@/$version/g" -e "s/@revision@/$revision/g" \
    -e "s/@abi@/$abi/g" -e "s/@date@/$date/" \
    -e "/^@lua_common@$/{r $top/common
d}" -e "/^@lua_controller@$/{r $top/controller
d}" packaging/rpm/qgpu.spec.in >"$spec"

words=(--define "_topdir $top" --define "slurm_this $(packaging/slurm_version.sh)"
    --define "slurm_next $(packaging/slurm_version.sh --next)"
    --define "use_source_date_epoch_as_buildtime 1"
    --define "clamp_mtime_to_source_date_epoch 1" --define "_buildhost reproducible")
# Not EL: its directories, and nothing of EL's to depend on.
if [ ! -e /etc/redhat-release ]; then
    words+=(--nodeps --define "_libdir /usr/lib64" --define "_libexecdir /usr/libexec"
        --define "build_python ${PYTHON3:-python3}")
fi
log=$here/build/rpm.log
echo "rpm: building qgpu $version-$revision for Slurm $(packaging/slurm_version.sh);" \
    "the output is in build/rpm.log"
if ! rpmbuild -ba "${words[@]}" "$spec" >"$log" 2>&1; then
    grep -v '^+' "$log" | tail -n 20 >&2
    echo "rpm: the packages were not built" >&2
    exit 1
fi
rm -f "$out"/qgpu*.rpm
mv "$top"/RPMS/*/*.rpm "$top"/SRPMS/*.rpm "$out/"
rm -rf "$top"
ls "$out"/*.rpm
