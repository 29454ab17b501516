"""`qgpu doctor` on what Slurm counts: gres.conf against the cards, GRES plugins against the version of Slurm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.doctor.checks.gres import count_of, node_counts, slurmd_counts
from cli.doctor.checks.gres import gres_conf as gres_conf_of
from cli.doctor.checks.plugins import native_plugins as native_plugins_of
from cli.doctor.checks.plugins import number_of, text_of
from cli.doctor.elf import plugin_of, plugin_version
from cli.doctor.host import Host
from cli.doctor.known import Known
from cli.doctor.result import Check
from enforcer.nvml import CardInfo
from gres.config import Config, parse_config
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
CARDS = tuple(CardInfo(f"GPU-{n:08d}-0000-0000-0000-000000000000", n, "H200", 80 << 30) for n in range(2))


def known_of(config: Config, node: str = "n1", cards: tuple[CardInfo, ...] | None = None) -> Known:
    """What doctor knows on that node."""
    return Known(
        Host(trusted=frozenset({0, os.geteuid()})), config=config, raw=config, node=node, cards=cards
    )


def gres_conf(config: Config, node: str, cards: tuple[CardInfo, ...] | None) -> Check:
    return gres_conf_of(known_of(config, node, cards))


def native_plugins(config: Config) -> Check:
    return native_plugins_of(known_of(config))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """qgpu.yaml, and slurm.conf and gres.conf as rendered from it; no card has a real device file."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))

    def make(version: str = "24.11", native: bool = False) -> Config:
        text = YAML.format(version=version, native=str(native).lower(), files="/dev/qgpufake[0-1]")
        config = parse_config(text)
        (tmp_path / "slurm.conf").write_text("PluginDir=/nonexistent\n")
        (tmp_path / "gres.conf").write_text(render("gres.conf", config))
        return config

    return make


@pytest.mark.parametrize("version", ["22.05", "24.11"])
@pytest.mark.parametrize("native", [False, True])
def test_what_is_rendered_fits(site: Callable[..., Config], version: str, native: bool) -> None:
    check = gres_conf(site(version, native), "n2", None)
    assert check.status == "warn" and "fits qgpu.yaml; not compared with NVML" in check.text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("File=/dev/qgpufake[0-1]", "File=/dev/qgpufake[1-0]", "n2"),
        ("File=/dev/qgpufake[0-1]", "File=/dev/qgpufake0,/dev/qgpufake2", "in this order"),
        ("Name=gpu Type=h200", "Name=gpu Type=a100", "has not Type=h200"),
        (
            "Count=100 File=/dev/qgpufake1",
            "Count=50 File=/dev/qgpufake1",
            "card /dev/qgpufake1 has 50 shards, not 100",
        ),
        ("Count=100 File=/dev/qgpufake1", "Count=100 File=/dev/x", "card /dev/qgpufake1 has no shards"),
        ("Name=qgpu Type=offline", "Name=qgpu Type=late", "no line for qgpu Type=offline"),
        ("Name=qgpu_mem", "Name=memory", "no line for qgpu_mem"),
        ("NodeName=n[1-2] Name=gpu", "NodeName=n1 Name=gpu", "its gpu files are none"),
    ],
)
def test_what_differs_is_named(
    site: Callable[..., Config], tmp_path: Path, old: str, new: str, says: str
) -> None:
    config, path = site(), tmp_path / "gres.conf"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    check = gres_conf(config, "n2", CARDS)
    assert check.status == "fail" and check.todo
    assert says == "n2" or says in check.text, check.text


def test_a_missing_file_autodetect_and_a_machine_without_slurm(
    site: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = site(), tmp_path / "gres.conf"
    path.write_text("AutoDetect=nvml\n" + path.read_text())
    assert "AutoDetect" in gres_conf(config, "n1", None).text
    path.write_text(path.read_text().replace("AutoDetect=nvml", "AutoDetect=off"))
    assert "AutoDetect" not in gres_conf(config, "n1", None).text
    path.unlink()
    assert gres_conf(config, "n1", None).status == "fail"
    monkeypatch.setenv("SLURM_CONF", "/nonexistent")
    assert gres_conf(config, "n1", None).status == native_plugins(config).status == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes")
def test_a_card_that_nvml_does_not_see_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for minor in range(2):
        os.mknod(tmp_path / f"card{minor}", 0o020600, os.makedev(240, minor))
    config = parse_config(YAML.format(version="24.11", native="false", files=f"{tmp_path}/card[0-1]"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    (tmp_path / "slurm.conf").write_text("")
    (tmp_path / "gres.conf").write_text(render("gres.conf", config))
    assert gres_conf(config, "n1", CARDS).status == "ok"
    check = gres_conf(config, "n1", CARDS[:1])
    assert check.status == "fail" and f"NVML sees no card at {tmp_path}/card1" in check.text


def test_counts_of_slurm_are_read_in_all_its_spellings() -> None:
    text = "gpu:h200:2(S:0-1),shard:h200:200(S:0-1),qgpu:online:2K,qgpu_mem:156G,tmpdisk:9"
    found = node_counts(text)
    assert found == {"gpu:h200": 2, "shard": 200, "qgpu:online": 2048, "qgpu_mem": 156 << 30, "tmpdisk": 9}
    assert [count_of(text) for text in ("7", "2k", "x", "")] == [7, 2048, -1, -1]
    said = "slurmd: Gres Name=gpu Type=h200 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Links=-1,0 (null)\n"
    assert slurmd_counts(said * 2 + "slurmd: Gres Name=shard Type=(null) Count=200 ID=1\nother") == {
        "gpu:h200": 2,
        "shard": 200,
    }


# ---- the plugins


def plugin(directory: Path, name: str, number: int) -> Path:
    """A library with that plugin_version and a symbol that nobody has, so that it cannot be loaded."""
    source = directory / f"{name}.c"
    source.write_text(
        f"const unsigned plugin_version = {number}; extern void nobody(void); void init(void) {{ nobody(); }}"
    )
    path = directory / name
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-z,now", "-o", str(path), str(source)], check=True)
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
    told = [number_of(releases.parse(text)) for text in ("slurm-wlm 22.05.8", "26.05.5-rc1", "", "25.11")]
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
        for name in ("gres_qgpu.so", "gres_qgpu_mem.so"):
            plugin(tmp_path, name, have[0] << 16 | have[1] << 8 | have[2])
    check = native_plugins(config)
    assert (check.status, says in check.text) == (status, True), check.text
    assert native_plugins(site("24.11")).status == "ok", "not used"
