"""podman in a job, as docs/containers.md writes it: with both ways of injection, and with parts
left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from jobs_support import Live

CAP = "4G"
OVER = re.compile(r"holds 4\.0 of 4\.0 GiB on this card")
UNKNOWN = "no device memory: the arbiter of this node did not register process"
# Of docs/containers.md, with storage that ends with the job. A simulated card needs its socket,
# too, and its driver is named by a variable. podman refuses a card that the job may not open.
POD = """
export XDG_RUNTIME_DIR=$(mktemp -d)
trap 'chmod -R u+w $XDG_RUNTIME_DIR; rm -rf $XDG_RUNTIME_DIR' EXIT
P="podman --root $XDG_RUNTIME_DIR/root --runroot $XDG_RUNTIME_DIR/run --runtime runc"
P="$P --storage-driver vfs --events-backend file --log-level error"
$P import image.tar small > /dev/null 2>&1
S=$(dirname ${{LD_PRELOAD%%:*}})
for file in $QGPU_SIM_DIR/dev/*; do [ ! -r $file ] || cards="$cards --device $file"; done
driver="$cards -v $QGPU_SIM_DIR/sim.sock:$QGPU_SIM_DIR/sim.sock -v {opt}/sim:{opt}/sim:ro"
driver="$driver -e QGPU_SIM_DIR -e LD_LIBRARY_PATH -v {opt}/bin:{opt}/bin:ro"
pod() {{
    echo "[$1]"; shift
    $P run --rm --net none $driver "$@" small {opt}/bin/qgpu-workload --alloc-past 60GiB \
        --length 0.2 2>&1
}}
"""
GRANT, SHIM = "-v /run/qgpu-task:/run/qgpu-task:ro", "-v $S:$S:ro"
SOCKET = "-v {run}:{run}"
# Name -> options, and what they give.
TRIES = {
    "mount": {
        "all": (f"{GRANT} {SOCKET}", "cap"),
        "no socket": (GRANT, "unknown"),
        "no grant": (SOCKET, "no card"),
    },
    "preload": {
        "all": (f"{SHIM} {SOCKET} -e LD_PRELOAD -e QGPU_GRANT", "cap"),
        "no socket": (
            f"{SHIM} -v {{run}}/grants:{{run}}/grants -e LD_PRELOAD -e QGPU_GRANT",
            "unknown",
        ),
        "no shim": (SOCKET, "whole card"),
    },
}


def gets(text: str) -> str:
    """What a program of a container had."""
    if OVER.search(text):
        return "cap"
    if UNKNOWN in text:
        return "unknown"
    past = re.search(r"allocation past ([0-9.]+) GiB|allocated ([0-9.]+) GiB", text)
    return "whole card" if past else "no card"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What programs of the container need of a file system: the C library."""
    out = tmp_path_factory.mktemp("image") / "image.tar"
    told = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout
    places = {Path(word) for word in told.split() if word.startswith("/")}
    places |= {
        place.with_name(name)
        for place in places
        if place.name == "libc.so.6"
        for name in ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
    }
    with tarfile.open(out, "w") as tar:
        for place in sorted(places):
            tar.add(os.path.realpath(place), str(place))
    return out


def test_podman_without_root(live: Live, image: Path, injection: str) -> None:
    if live.run("sh", "-c", "command -v podman && command -v runc").returncode:
        pytest.skip("podman and runc are not installed on the nodes of this sandbox")
    home, node = live.sandbox.layout.home("alice"), live.nodes[0]
    (home / "image.tar").write_bytes(image.read_bytes())
    words = {"opt": live.sandbox.layout.opt, "run": live.paths(node).run_dir}
    tries = TRIES[injection]
    script = POD.format(**words) + "\n".join(
        f"pod '{name}' {options.format(**words)}" for name, (options, _) in tries.items()
    )
    job = live.submit(script + "\ntrue", f"--gres=qgpu:30,vram:{CAP}", f"-w{node}")
    (text,) = live.finish(job, seconds=180)
    parts = re.split(r"(?m)^\[(.+)\]\n", text)[1:]
    got = {name: gets(part) for name, part in zip(parts[::2], parts[1::2], strict=True)}
    assert got == {name: wanted for name, (_, wanted) in tries.items()}, text
