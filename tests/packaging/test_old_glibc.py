"""Programs of an old container run under the shims: a Debian 11 tree (glibc 2.31), with
simulated cards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from install_support import ROOT

sys.path.append(str(ROOT / "tests/native"))
import node_support
from node_support import Chain, chains

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the tree and a grant"),
    pytest.mark.timeout(600),
]
TREE = Path("/var/cache/qgpu/install/bullseye")
MIRROR = "http://deb.debian.org/debian"
BUILD = ROOT / "build"


@pytest.fixture(scope="module")
def tree() -> Path:
    """The tree of the oldest Debian on the mirrors."""
    made = subprocess.run(
        [Path(__file__).with_name("old_tree.sh"), TREE, "bullseye", MIRROR],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr
    return TREE


@pytest.fixture(scope="module")
def node() -> Iterator[Chain]:
    """A node whose job is root's, because only root may enter a tree."""
    with pytest.MonkeyPatch.context() as patch, chains() as make:
        patch.setattr(node_support, "USER", 0)
        chain = make()
        assert chain.hook("prolog", 7, "qgpu/1 class=offline share=30 mem=1024") == 0
        yield chain
        chain.hook("epilog", 7)


def inside(
    tree: Path, node: Chain, *command: str, stage: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program in the tree, with the node's directory at its place there; `stage`: as a
    task of the job.
    """
    place = str(node.directory)
    script = (
        f"mkdir -p {tree}{place}; mount --bind {place} {tree}{place}; mount --rbind /proc "
        f"{tree}/proc; "
    )
    words = [
        "unshare",
        "-m",
        "bash",
        "-euc",
        f'{script} exec chroot {tree} "$@"',
        "inside",
        *command,
    ]
    if stage:
        spank = [
            str(node.opt / "test/spank_stage"),
            str(node.opt / "lib/qgpu_spank.so"),
            "remote",
            "7",
        ]
        words = [*spank, "0", f"run_dir={place}/run", "--", *words]
    env = node.env(SLURMD_NODENAME="n1", PATH="/usr/bin:/bin:/usr/sbin:/sbin")
    return subprocess.run(words, env=env, cwd="/", capture_output=True, text=True, timeout=120)


def workload(node: Chain) -> list[str]:
    """A program that wants 4 GiB and then one kernel."""
    return [
        str(node.opt / "bin/qgpu-workload"),
        "--alloc-past",
        "4GiB",
        "--requests",
        "1",
        "--json",
    ]


def test_the_tree_is_older_than_the_machine(tree: Path, node: Chain) -> None:
    assert "2.31" in inside(tree, node, "ldd", "--version").stdout.splitlines()[0]


def test_programs_that_use_no_card_run_under_both_shims(tree: Path, node: Chain) -> None:
    nvml = BUILD / "shim/libnvidia-ml.so.1"
    (node.opt / "shim/libnvidia-ml.so.1").write_bytes(nvml.read_bytes())
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        preload = f"LD_PRELOAD={node.opt}/shim/{library}"
        told = inside(tree, node, "env", preload, "echo", "alive")
        assert (told.stdout, told.stderr) == ("alive\n", "")


def test_the_simulated_driver_runs_there(tree: Path, node: Chain) -> None:
    told = inside(tree, node, *workload(node))
    assert json.loads(told.stdout)["alloc"]["refused"] is False, told.stderr


def test_the_jobs_cap_holds_there_and_its_kernels_run(tree: Path, node: Chain) -> None:
    told = inside(tree, node, *workload(node), stage=True)
    said = json.loads(told.stdout)
    assert said["alloc"]["error"] == "CUDA_ERROR_OUT_OF_MEMORY", told.stderr
    assert said["alloc"]["bytes"] <= 1 << 30
    assert said["kernels"] == 1
    assert "job 7 holds 1.0 of 1.0 GiB on this card" in told.stderr


def test_python_opens_the_driver_through_the_shim_there(tree: Path, node: Chain) -> None:
    code = (
        "import ctypes; c = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int();"
        "print(c.cuInit(0), c.cuDeviceGetCount(ctypes.byref(n)), n.value)"
    )
    told = inside(tree, node, "python3", "-c", code, stage=True)
    # nothing hides the other card here: that is Slurm's part
    assert told.stdout == "0 0 2\n", told.stderr
