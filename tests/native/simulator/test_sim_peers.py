"""Whether cards access each other's memory (`--peers`): what programs and NVML are told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sim_tools import BUILD, nvml, run, start

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("built")]

ASK = """
    g, other, seen = Cuda(), c.c_void_p(), c.c_int()
    g.call("cuDevicePrimaryCtxRetain", c.byref(other), 1)
    def can(*cards): g.call("cuDeviceCanAccessPeer", c.byref(seen), *cards); return seen.value
    def attribute(kind):
        g.call("cuDeviceGetP2PAttribute", c.byref(seen), kind, 0, 1); return seen.value
    enable = lambda peer, flags=0: g.raw("cuCtxEnablePeerAccess", peer, flags)
    disable = lambda: g.raw("cuCtxDisablePeerAccess", other)
    print(can(0, 1), can(0, 0), attribute(2), attribute(3))
    print(enable(other, 1), enable(g.ctx), enable(None), disable())
    print(enable(other), enable(other), disable(), disable(), enable(other))
    """
NVML = """
other = n.nvmlDeviceGetHandleByIndex(1)
print([n.nvmlDeviceGetP2PStatus(h, other, k) for k in range(5)])
"""
READ_WRITE_PCI = "[0, 0, 5, 5, 0]"


@pytest.mark.parametrize("peers", [False, True])
def test_peers(tmp_path: Path, peers: bool) -> None:
    with start(tmp_path / "sim", cards=2, memory_mib=4096, peers=peers) as two:
        told, by_nvml = run(two, ASK).splitlines(), nvml(two, NVML).strip()
    refused = "1 201 201 705"
    if peers:
        assert told == ["1 0 1 0", refused, "0 704 0 705 0"] and by_nvml == READ_WRITE_PCI
    else:
        assert told == ["0 0 0 0", refused, "217 217 705 705 217"]
        assert by_nvml == str([5] * 5)


def test_mig_instances_are_no_peers(tmp_path: Path) -> None:
    """Of a real card neither."""
    argv = [BUILD / "bin/qgpu-simgpu", "--dir", tmp_path, "--node", "t1", "--cards", "2"]
    for option, value in (("--peers", []), ("--nvlinks", ["0-1:4"])):
        words = [*argv, "--mig", "2", option, *value]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        said = f"qgpu-simgpu: MIG instances have no {option}\n"
        assert (done.returncode, done.stderr) == (2, said)
