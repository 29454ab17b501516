"""NVLinks between simulated cards (`--nvlinks`), and `qgpu setup --init`, which counts them for
Links= of gres.conf.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim_tools import BUILD, nvml, start

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("built")]
SEEN = """
import json
from cli.setup.initial import seen
print(json.dumps(seen().links))
"""


def seen_links(directory: Path, cards: int, nvlinks: str, **options: int) -> list[str]:
    """Links= of each card, as setup sees them."""
    with start(directory, cards=cards, memory_mib=4096, nvlinks=nvlinks, **options) as sim:
        done = subprocess.run(
            [sys.executable, "-c", SEEN],
            env={**os.environ, **sim.env()},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("cards", "nvlinks", "links"),
    [
        (2, "", []),
        (2, "0-1:4", ["-1,4", "4,-1"]),
        (4, "0-1:2,0-1:2,2-3:4", ["-1,4,0,0", "4,-1,0,0", "0,0,-1,4", "0,0,4,-1"]),
        (3, "0-1:4,0-2:1,1-switch:14", ["-1,4,1", "4,-1,0", "1,0,-1"]),
        # The other ends are switches: Slurm's own plugin counts none of them.
        (2, "0-switch:18,1-switch:18", []),
    ],
)
def test_links_from_card_to_card_are_counted(
    tmp_path: Path, cards: int, nvlinks: str, links: list[str]
) -> None:
    assert seen_links(tmp_path / "sim", cards, nvlinks) == links


def test_instances_have_none(tmp_path: Path) -> None:
    assert seen_links(tmp_path / "sim", 2, "", mig=2) == []


def test_a_driver_without_the_answer_has_no_links(tmp_path: Path) -> None:
    """3: not supported. 999: unknown, so what was counted is incomplete."""
    for status in (3, 999):
        fault = f"error call=nvmlDeviceGetNvLinkState code={status}"
        with start(
            tmp_path / f"sim{status}", cards=2, memory_mib=4096, nvlinks="0-1:4", faults=(fault,)
        ) as sim:
            done = subprocess.run(
                [sys.executable, "-c", SEEN],
                env={**os.environ, **sim.env()},
                capture_output=True,
                text=True,
                check=False,
            )
        assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


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
