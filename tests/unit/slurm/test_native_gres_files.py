"""What `slurm.native_gres` changes in Slurm's configuration, and the sources of the plugins:
licence and symbols.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.sandbox.errors import SandboxError
from cli.sandbox.versions import native_gres
from gres.config.site import Config
from slurm_plugin.render import render

SOURCES = native_gres.HERE
YAML = {
    "version": 1,
    "cluster": "c",
    "models": {"h200": {"memory": "80GiB"}},
    "nodes": [{"names": "n[1-2]", "model": "h200", "count": 2, "files": "/dev/nvidia[0-1]"}],
    "qos": {"online": "online", "offline": "offline"},
}


def _config(native: bool) -> Config:
    return Config.model_validate(YAML | {"slurm": {"version": "24.11", "native_gres": native}})


def test_slurm_loads_no_plugin_for_what_only_counts() -> None:
    """Flags=CountOnly would keep slurmd from loading ours, and shard must come after qgpu."""
    plain, native = (render("gres.conf", _config(on)) for on in (False, True))
    assert plain.count("Flags=CountOnly") == 3 and "CountOnly" not in native
    gres = [line for line in plain.splitlines() if line.startswith("NodeName=")]
    assert [line.replace("CountOnly,", "") for line in gres] == [
        line for line in native.splitlines() if line.startswith("NodeName=")
    ]
    assert "\nGresTypes=gpu,shard,qgpu,vram\n" in render("slurm.conf", _config(False))
    assert "\nGresTypes=gpu,qgpu,vram,shard\n" in render("slurm.conf", _config(True))


def test_every_file_of_the_plugins_says_its_licence() -> None:
    files = [
        path
        for path in SOURCES.iterdir()
        if path.suffix in (".c", ".h", ".lds") or path.name == "Makefile"
    ]
    assert len(files) >= 8
    for path in files:
        assert "SPDX-License-Identifier: GPL-2.0-or-later" in path.read_text().splitlines()[0], path
    assert "version 2 or (at your option) any" in (SOURCES / "LICENSE").read_text().replace(
        "\n", " "
    )


def test_without_the_source_the_sandbox_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "source.sh"
    script.write_text("#!/bin/sh\necho 'source.sh: no such package' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(native_gres, "HERE", tmp_path)
    with pytest.raises(SandboxError, match=r"cannot be built here: source\.sh: no such package"):
        native_gres.build()
