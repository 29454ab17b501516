#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The release of Slurm (as 24.11) whose headers the compiler finds; Slurm's plugins work with that
# release alone.
# usage: packaging/slurm_version.sh            prints it
#        packaging/slurm_version.sh --depends  prints Debian's substitution variables for
#                                              qgpu-slurm-plugins
#        packaging/slurm_version.sh --next     prints the first version (as 24.12) that is too new
set -euo pipefail
CC=${CC:-gcc}
number=$(printf '#include <slurm/slurm_version.h>\nversion SLURM_VERSION_NUMBER\n' |
    "$CC" -E -P ${SLURM_INC:+-I"$SLURM_INC"} - 2>/dev/null | sed -n 's/^version //p') || true
if [ -z "$number" ]; then
    echo "slurm_version: the compiler finds no slurm/slurm_version.h:" \
        "install libslurm-dev (Debian) or slurm-devel (EL)" >&2
    exit 1
fi
major=$((number >> 16 & 255)) minor=$((number >> 8 & 255)) micro=$((number & 255))
this=$(printf '%d.%02d' "$major" "$minor") next=$(printf '%d.%02d' "$major" $((minor + 1)))
# Native GRES plugins work with the one version whose source they were built from.
if [ -n "${NATIVE_GRES:-}" ]; then this=$this.$micro next=${this%.*}.$((micro + 1)); fi

# Debian's name of the package that slurmd, slurmctld and slurm-client need in their own version,
# and that of SchedMD's.
depends() {
    local each bounds=()
    for each in ">= $this~" "<< $next~"; do
        bounds+=("slurm-wlm-basic-plugins ($each) | slurm-smd ($each)")
    done
    echo "slurm:Depends=${bounds[0]}, ${bounds[1]}"
    echo "slurm:Version=$this"
}

case ${1:-} in
--depends) depends ;;
--next) echo "$next" ;;
*) printf '%d.%02d\n' "$major" "$minor" ;;
esac
