#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks that this machine has what a make target needs. As root on Debian it installs what is
# missing, else it says which package brings it.
# usage: packaging/need.sh GROUP...    (product, deb, rpm, lint-deb, lint-rpm)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
CC=${CC:-gcc}
PYTHON3=${PYTHON3:-python3}

has() { command -v "$1" >/dev/null 2>&1; }
compiles() { # $1 what to include, then flags of the compiler
    local include=$1
    shift
    printf '#include <%s>\nint main(void) { return 0; }\n' "$include" |
        "$CC" -x c "$@" -o /dev/null - 2>/dev/null
}

# need DEBIAN_PACKAGE EL_PACKAGE "what it is" CHECK...: collects what is missing.
missing=() sentences=()
need() {
    local debian=$1 el=$2 what=$3
    shift 3
    if "$@" >/dev/null 2>&1; then return; fi
    missing+=("$debian")
    sentences+=("$what is missing: install $debian (Debian) or $el (EL)")
}

look() {
    local group
    missing=() sentences=()
    for group in "$@"; do
        case $group in
        product)
            need gcc gcc "the C compiler '$CC'" has "$CC"
            need binutils binutils "nm" has nm
            need libc6-dev glibc-devel "the header stdlib.h" compiles stdlib.h -c
            need libc6-dev glibc-static "the static C library" compiles stdlib.h -static
            need python3 python3.11 "Python 3.9 or newer ('$PYTHON3')" \
                "$PYTHON3" -c 'import sys; sys.exit(sys.version_info < (3, 9))'
            need python3-venv python3.11-pip "Python's venv with pip" \
                "$PYTHON3" -c 'import ensurepip, venv'
            need libslurm-dev slurm-devel "Slurm's header slurm/spank.h" \
                compiles slurm/spank.h -c ${SLURM_INC:+-I"$SLURM_INC"}
            need libpam0g-dev pam-devel "PAM's header security/pam_modules.h" \
                compiles security/pam_modules.h -c
            ;;
        deb)
            need dpkg-dev dpkg-dev "dpkg-buildpackage" has dpkg-buildpackage
            need debhelper debhelper "debhelper" has dh
            need fakeroot fakeroot "fakeroot" has fakeroot
            ;;
        lint-deb) need lintian lintian "lintian" has lintian ;;
        rpm) need rpm rpm-build "rpmbuild" has rpmbuild ;;
        lint-rpm) need rpmlint rpmlint "rpmlint" has rpmlint ;;
        *)
            echo "need: '$group' is no group: product, deb, lint-deb, rpm or lint-rpm" >&2
            exit 2
            ;;
        esac
    done
}

install_missing() {
    local log=$here/build/need.log
    mkdir -p "$here/build"
    echo "need: installing Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    {
        apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"
    } >"$log" 2>&1 || {
        echo "need: apt-get failed; its output is in $log" >&2
        tail -n 5 "$log" >&2
    }
}

look "$@"
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" -eq 0 ] && has apt-get; then
    install_missing
    look "$@"
fi
if [ ${#missing[@]} -gt 0 ]; then
    printf 'need: %s\n' "${sentences[@]}" >&2
    exit 1
fi
