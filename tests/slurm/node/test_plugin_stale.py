"""A SPANK plugin that Slurm does not load: no job with a card starts, the node shows why, others
run.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs_support import Live

Break = Callable[[Live, Path], None]


def _without_its_line(live: Live, _: Path) -> None:
    path = live.sandbox.layout.etc / "plugstack.conf"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "qgpu_spank.so" not in line))


def _file_offset(library: Path, symbol: str) -> int:
    """Where the value of a symbol lies in the file."""
    symbols = subprocess.run(
        ["nm", "-D", str(library)], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(rf"^([0-9a-f]+) \w {symbol}$", symbols, re.MULTILINE)
    assert found, symbols
    words = ["objdump", "-h", "-j", ".rodata", str(library)]
    headers = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    section = re.search(r" \.rodata +[0-9a-f]+ +([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+)", headers)
    assert section, headers
    return int(found[1], 16) - int(section[1], 16) + int(section[2], 16)


def _of_another_slurm(_: Live, plugin: Path) -> None:
    """The number of Slurm's version in it is that of the release before, as after an update of
    Slurm.
    """
    data, place = bytearray(plugin.read_bytes()), _file_offset(plugin, "plugin_version")
    (version,) = struct.unpack_from("<I", data, place)
    assert 22 <= version >> 16 < 40, hex(version)
    struct.pack_into("<I", data, place, version - 0x10000)
    _replace(plugin, bytes(data))


def _truncated(_: Live, plugin: Path) -> None:
    """Cut in its header. Cut further behind, the loader itself dies (SIGBUS), with each
    slurmstepd and sbatch.
    """
    _replace(plugin, plugin.read_bytes()[:40])


def _missing(_: Live, plugin: Path) -> None:
    plugin.unlink()


def _with_another_run_dir(live: Live, _: Path) -> None:
    path = live.sandbox.layout.etc / "plugstack.conf"
    path.write_text(re.sub(r"run_dir=\S+", "run_dir=/run/qgpu-of-another", path.read_text()))


def _replace(path: Path, data: bytes) -> None:
    """Another file in its place: the old one is mapped by slurmd."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.chmod(0o755)
    new.rename(path)


@pytest.fixture
def plugin(live: Live, tmp_path: Path) -> Iterator[Path]:
    """The node's plugin file, whole again afterwards, as is plugstack.conf."""
    path, stack = (
        live.sandbox.layout.opt / "lib/qgpu_spank.so",
        live.sandbox.layout.etc / "plugstack.conf",
    )
    shutil.copy2(path, tmp_path / "plugin")
    text = stack.read_text()
    yield path
    _replace(path, (tmp_path / "plugin").read_bytes())
    stack.write_text(text)
    new_slurmd(live, live.nodes[0])  # one that started while the plugin was broken knows of none


def new_slurmd(live: Live, node: str) -> None:
    """slurmd reads plugstack.conf when it starts; slurmstepd reads it for each job."""
    live.sandbox.kill(node, "slurmd")
    live.sandbox.start(node, "slurmd")


def drained(live: Live, node: str) -> str:
    """Why the node takes no jobs."""
    return live.ask("sinfo", "-h", "-N", "-n", node, "-t", "drain", "-o", "%E")


@pytest.mark.parametrize("restart", [False, True], ids=["slurmd-stays", "slurmd-new"])
@pytest.mark.parametrize(
    "harm", [_without_its_line, _of_another_slurm, _truncated, _missing, _with_another_run_dir]
)
def test_no_job_with_a_card_starts_without_the_plugin(
    live: Live, plugin: Path, harm: Break, restart: bool
) -> None:
    node = live.nodes[0]
    on = ("-w", node)
    before = live.submit("until [ -e go ]; do sleep 0.1; done; echo went on", "--gres=qgpu:10", *on)
    go = live.sandbox.layout.home("alice") / "go"
    go.unlink(missing_ok=True)
    live.grant(before)
    live.launched()
    harm(live, plugin)
    if restart:
        new_slurmd(live, node)
    plain = live.submit("echo plain", *on)
    assert live.finish(plain) == ["plain\n"]
    share = live.submit("echo started", "--requeue", "--gres=qgpu:10", *on)
    live.wait_requeued(share)
    live.until(lambda: "SPANK plugin" in drained(live, node), 10, "a drained node with the reason")
    assert f"nodename={node} state=resume" in drained(live, node)
    assert share not in live.grants() and "started" not in live.output(share)
    go.write_text("")
    assert live.finish(before) == ["went on\n"]
    live.cancel(share)
    live.wait_gone(share)
    live.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")


def test_repaired_it_runs_and_is_governed(live: Live, plugin: Path) -> None:
    node = live.nodes[0]
    content = plugin.read_bytes()
    plugin.unlink()
    share = live.submit("echo fd $QGPU_GRANT_FD", "--requeue", "--gres=qgpu:10", "-w", node)
    live.wait_requeued(share)
    _replace(plugin, content)
    live.until(lambda: bool(drained(live, node)), 10, "a drained node")
    live.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    live.cancel(share)  # slurmd 22.05 lets a requeued job wait two minutes
    again = live.submit("echo fd $QGPU_GRANT_FD", "--gres=qgpu:10", "-w", node)
    assert live.finish(again) == ["fd 100\n"]
    assert list((live.paths(node).run_dir / "spank").iterdir()) == []
