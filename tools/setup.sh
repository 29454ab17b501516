#!/bin/bash
# Installs what the build, the tests and the sandbox need and is missing. Offline and fast once all
# is there.
# usage: tools/setup.sh VENV
set -euo pipefail
venv=${1:?usage: tools/setup.sh VENV}
here=$(cd "$(dirname "$0")/.." && pwd)
log=$here/build/setup.log
mkdir -p "$here/build"

packages=(
    slurm-wlm slurmctld slurmd slurm-client slurmdbd slurm-wlm-basic-plugins
    slurm-wlm-mysql-plugin libslurm-dev libpam0g-dev munge mariadb-server mariadb-client lua5.4
    gcc make libc6-dev python3 python3-venv valgrind dpkg-dev pkgconf
    # The tests: a browser for the report page, promtool, containers in jobs, screens, and the
    # language of Open OnDemand.
    chromium-headless-shell prometheus podman runc tmux ruby
)

missing_packages() {
    local p
    for p in "${packages[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
    done
}

fail() {
    echo "setup: $1; the whole output is in $log" >&2
    tail -n 15 "$log" >&2
    exit 1
}

# Debian starts a service as soon as its package is installed; the sandbox runs its own, so that
# would only occupy ports. policy-rc.d forbids it for the time of the installation and only where
# nobody set one.
without_services() {
    local policy=/usr/sbin/policy-rc.d
    if [ -e "$policy" ]; then "$@"; return; fi
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
    local status=0
    "$@" || status=$?
    rm -f "$policy"
    return "$status"
}

mapfile -t missing < <(missing_packages)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "setup: these Debian packages are missing and only root can install them:" \
            "${missing[*]}" >&2
        exit 1
    fi
    echo "setup: installing ${#missing[@]} Debian packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q >"$log" 2>&1 || fail "apt-get update failed"
    without_services apt-get install -y -q --no-install-recommends "${missing[@]}" >>"$log" 2>&1 ||
        fail "apt-get install failed"
fi

stamp=$venv/.qgpu-installed
want=$(sha256sum <"$here/pyproject.toml")
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
    echo "setup: Python environment in $venv"
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv" >>"$log" 2>&1 ||
        fail "python3 -m venv failed"
    "$venv/bin/python" -m pip install --disable-pip-version-check -q -e "$here[dev]" \
        >>"$log" 2>&1 ||
        fail "pip install failed"
    echo "$want" >"$stamp"
fi
