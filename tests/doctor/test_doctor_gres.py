"""`qgpu doctor` on what Slurm counts and on plugins of another version of Slurm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.doctor.checks.controller import is_down
from cli.doctor.checks.gres import count_of, node_counts, slurmd_counts
from cli.doctor.checks.plugins import native_plugins as native_plugins_of
from cli.doctor.checks.plugins import number_of, text_of
from cli.doctor.elf import plugin_of, plugin_version
from cli.doctor.host import Host
from cli.doctor.known import Known
from cli.doctor.result import Check
from gres.config.site import Config, parse_config
from slurm_plugin import releases
from slurm_plugin.render import render

YAML = """version: 1
cluster: one
slurm: {{version: "{version}", native_gres: {native}}}
qos: {{online: online}}
models: {{h200: {{memory: 80GiB}}, l4: {{memory: 24GiB}}}}
nodes:
  - {{names: "n[1-2]", model: h200, count: 2, files: "{files}"}}
  - {{names: other, model: l4, count: 1, files: /dev/other0}}
"""


def known_of(config: Config) -> Known:
    """What doctor knows on a node."""
    return Known(Host(trusted=frozenset({0, os.geteuid()})), config=config, raw=config, node="n1")


def native_plugins(config: Config) -> Check:
    return native_plugins_of(known_of(config))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """qgpu.yaml, and slurm.conf and gres.conf as rendered from it; no card has a real device
    file.
    """
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))

    def make(version: str = "24.11", native: bool = False) -> Config:
        text = YAML.format(version=version, native=str(native).lower(), files="/dev/qgpufake[0-1]")
        config = parse_config(text)
        (tmp_path / "slurm.conf").write_text("PluginDir=/nonexistent\n")
        (tmp_path / "gres.conf").write_text(render("gres.conf", config))
        return config

    return make


def test_counts_of_slurm_are_read_in_all_its_spellings() -> None:
    text = "gpu:h200:2(S:0-1),shard:h200:200(S:0-1),qgpu:online:2K,vram:156G,tmpdisk:9"
    found = node_counts(text)
    assert found == {
        "gpu:h200": 2,
        "shard": 200,
        "qgpu:online": 2048,
        "vram": 156 << 30,
        "tmpdisk": 9,
    }
    assert [count_of(text) for text in ("7", "2k", "x", "")] == [7, 2048, -1, -1]
    said = (
        "slurmd: Gres Name=gpu Type=h200 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 "
        "Links=-1,0 (null)\n"
    )
    assert slurmd_counts(
        said * 2 + "slurmd: Gres Name=shard Type=(null) Count=200 ID=1\nother"
    ) == {
        "gpu:h200": 2,
        "shard": 200,
    }


def test_states_of_nodes() -> None:
    down = ["DOWN", "DOWN*", "IDLE*", "IDLE+NOT_RESPONDING", "DOWN+DRAIN+INVALID_REG", "FAIL"]
    well = [
        "IDLE",
        "MIXED+DRAIN",
        "ALLOCATED",
        "IDLE+CLOUD+POWERED_DOWN",
        "IDLE+POWERING_DOWN",
        "RESERVED+PLANNED",
    ]
    assert [is_down(state) for state in (*down, *well)] == [True] * len(down) + [False] * len(well)


# ---- the plugins


def plugin(directory: Path, name: str, number: int) -> Path:
    """A library with that plugin_version and a symbol that no library has, so that it cannot be
    loaded.
    """
    source = directory / f"{name}.c"
    source.write_text(
        f"const unsigned plugin_version = {number}; extern void missing(void); void init(void) "
        f"{{ missing(); }}"
    )
    path = directory / name
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-z,now", "-o", str(path), str(source)], check=True
    )
    return path


def test_the_number_is_read_without_loading(tmp_path: Path) -> None:
    path = plugin(tmp_path, "gres_qgpu.so", 22 << 16 | 5 << 8 | 8)
    assert text_of(plugin_version(path.read_bytes())) == "22.05.8"
    data = path.read_bytes()
    for bad in (
        b"",
        b"text",
        data[:4] + b"\x01" + data[5:],
        data[:200],
        data.replace(b"plugin_version", b"plugin_verloren"),
    ):
        with pytest.raises(ValueError, match=r"ELF|damaged|names no|truncated"):
            plugin_version(bad)
    assert plugin_of(path.read_bytes()).kind == ""
    told = [
        number_of(releases.parse(text))
        for text in ("slurm-wlm 22.05.8", "26.05.5-rc1", "", "25.11")
    ]
    assert told == [0x160508, 0x1A0505, None, 0x190B00]


@pytest.mark.parametrize(
    ("have", "status", "says"),
    [
        ((24, 11, 5), "ok", "for Slurm 24.11.5"),
        ((24, 11, 4), "fail", "is for Slurm 24.11.4, this is 24.11.5: new shares do not start"),
        (None, "fail", "gres_qgpu.so is not in"),
    ],
)
def test_plugins_of_another_version_are_a_fault(
    site: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    have: tuple[int, int, int] | None,
    status: str,
    says: str,
) -> None:
    slurmd = tmp_path / "slurmd"
    slurmd.write_text("#!/bin/sh\necho 'slurm-wlm 24.11.5'\n")
    slurmd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = site("24.11", native=True)
    (tmp_path / "slurm.conf").write_text(f"PluginDir=/nonexistent:{tmp_path}\n")
    if have:
        for name in ("gres_qgpu.so", "gres_vram.so"):
            plugin(tmp_path, name, have[0] << 16 | have[1] << 8 | have[2])
    check = native_plugins(config)
    assert (check.status, says in check.text) == (status, True), check.text
    assert native_plugins(site("24.11")).status == "ok", "not used"
