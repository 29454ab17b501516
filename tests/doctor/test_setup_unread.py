"""`qgpu setup` asks for a restart only where a daemon here has not read a file that changed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from site_support import Site

from cli.setup import unread as unread_module
from cli.setup.host import Here
from slurm_plugin.site.found import Places, read_site
from slurm_plugin.site.sources import Disk

STARTED = 1_000_000.0  # of every daemon; slurmctld answers that it was started then, too


@pytest.mark.parametrize(
    ("changed", "runs", "controller", "wanted"),
    [
        ({}, "slurmctld slurmd", STARTED, set()),
        ({"slurm.conf": 50}, "slurmctld slurmd", STARTED, {"all"}),
        ({"gres.conf": 50}, "slurmctld", STARTED, {"all"}),
        ({"gres.conf": 50}, "slurmd", STARTED, {"all"}),
        ({"gres.conf": 50}, "slurmd", STARTED + 90, {"slurmd"}),
        ({"cgroup.conf": 50}, "slurmctld slurmd", STARTED, {"slurmd"}),
        ({"cgroup.conf": 50}, "slurmctld", STARTED, set()),
        ({"plugstack.conf": 50}, "slurmctld slurmd", STARTED, set()),
        ({"slurm.conf": 50}, "", STARTED, set()),
    ],
)
def test_what_is_to_be_restarted(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, int],
    runs: str,
    controller: float,
    wanted: set[str],
) -> None:
    def newest(paths: Iterable[str]) -> float:
        names = {path.rpartition("/")[2] for path in paths}
        return max(STARTED + changed.get(name, -50) for name in names)

    monkeypatch.setattr(unread_module, "_newest", newest)
    site.write("proc/stat", f"btime {STARTED:.0f}\n")
    for pid, daemon in ((10, "slurmctld"), (11, "slurmd")):
        if daemon not in runs.split():
            site.end(pid)
    told = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(controller))
    site.effective("BOOT_TIME", told)
    places = Places(str(site.etc / "slurm.conf"), str(site.etc / "qgpu"))
    here = Here("/", places, True, False, "", "n1")
    found = unread_module.unread(here, read_site(places, Disk(), "24.11"), site.host)
    assert found == wanted


def test_a_daemon_that_ends_meanwhile_has_nothing_left_to_read(tmp_path: Path) -> None:
    """Slurm's daemons fork children that live for a moment, and have their name."""
    (tmp_path / "stat").write_text("btime 1000\n")
    found = [SimpleNamespace(pid=5)]
    known: Any = SimpleNamespace(
        slurm_processes=lambda _: found, host=SimpleNamespace(proc=tmp_path)
    )
    assert not unread_module._older(known, "slurmd", 2000.0)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (slurmd) S " + "0 " * 18 + "500 0\n")
    found.append(SimpleNamespace(pid=7))
    assert unread_module._older(known, "slurmd", 2000.0)
