"""NVLinks between simulated cards (`--nvlinks`), as NVML tells of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sim_tools import BUILD, nvml, start

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("built")]


def test_the_other_end_of_each_link(tmp_path: Path) -> None:
    code = """
other = n.nvmlDeviceGetHandleByIndex(1)
def ask(call, *args):
    try:
        return call(*args)
    except n.NVMLError as error:
        return -error.value
links = range(18)
print([n.nvmlDeviceGetNvLinkState(h, k) for k in links])
for k in (0, 1, 2, 3):
    pci = ask(n.nvmlDeviceGetNvLinkRemotePciInfo, h, k)
    print(getattr(pci, "busId", pci), ask(n.nvmlDeviceGetNvLinkRemoteDeviceType, h, k),
          ask(n.nvmlDeviceGetNvLinkVersion, h, k), n.nvmlDeviceGetNvLinkCapability(h, k, 0))
print([n.nvmlDeviceGetP2PStatus(h, other, k) for k in (0, 2)])
print(n.nvmlDeviceGetPciInfo(other).busId)
"""
    with start(tmp_path / "sim", cards=2, memory_mib=4096, nvlinks="0-1:2,0-switch:1") as linked:
        assert nvml(linked, code).splitlines() == [
            str([1] * 3 + [0] * 15),
            "00000000:11:00.0 0 6 1",
            "00000000:11:00.0 0 6 1",
            "00000000:20:00.0 2 6 1",
            "-3 -3 -3 0",
            "[5, 0]",
            "00000000:11:00.0",
        ]


@pytest.mark.parametrize(
    "words", ["", "0-1", "0-1:0", "0-0:1", "0-2:1", "2-switch:1", "0-1:19", "0-1:4x", "0-1:4,", "x"]
)
def test_a_list_that_is_none_is_refused(tmp_path: Path, words: str) -> None:
    argv = [str(BUILD / "bin/qgpu-simgpu"), "--dir", str(tmp_path / "sim"), "--node", "t1"]
    argv += ["--cards", "2", "--nvlinks", words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith(f"qgpu-simgpu: --nvlinks {words}: ")
