"""Builds qgpu's native GRES plugins for a sandbox, against the exact source of the installed Slurm.

The source is Debian's source package, obtained once and kept outside the checkout
(gres/native/source.sh). Without it there are no plugins, which the sandbox reports.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cli.sandbox import files
from cli.sandbox.errors import SandboxError, cause
from cli.sandbox.layout import Layout

HERE = files.ROOT / "gres" / "native"
PLUGINS = ("gres_qgpu.so", "gres_vram.so")
_MULTIARCH = Path("/usr/lib")


def source() -> Path:
    """Slurm's source, configured; obtained when it is not there yet.
    SandboxError with the reason.
    """
    return Path(_run([str(HERE / "source.sh")]).strip().split("\n")[-1])


def origin(directory: Path) -> str:
    """Where that source came from, in words."""
    note = directory / ".origin"
    return note.read_text().strip() if note.exists() else str(directory)


def build() -> Path:
    """The directory with both plugins for this Slurm."""
    target = files.build_dir() / "native-gres"
    _run(
        [
            "make",
            "--no-print-directory",
            "-C",
            str(HERE),
            f"SLURM_SRC={source()}",
            f"BUILD={target.resolve()}",
        ]
    )
    return target


def plugin_dir(layout: Layout) -> Path:
    """Where the sandbox's Slurm finds them."""
    return layout.opt / "slurm"


def install(layout: Layout) -> None:
    """Build both and put them into the sandbox."""
    built = build()
    plugin_dir(layout).mkdir(mode=0o755)
    for name in PLUGINS:
        target = plugin_dir(layout) / name
        shutil.copy(built / name, target)
        target.chmod(0o755)


def own_plugin_dir() -> Path:
    """Where the plugins of this machine's Slurm are."""
    own = sorted(_MULTIARCH.glob("*/slurm-wlm/gres_gpu.so"))
    if not own:
        raise SandboxError(
            f"Slurm's own plugins are not in {_MULTIARCH}/*/slurm-wlm; run: make setup"
        )
    return own[0].parent


def search_path(layout: Layout) -> str:
    """Value of PluginDir in slurm.conf: Slurm's own plugins, then ours."""
    return f"{own_plugin_dir()}:{plugin_dir(layout)}"


def _run(argv: list[str]) -> str:
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = cause(done.stderr or done.stdout)
        raise SandboxError(f"the native GRES plugins cannot be built here: {said}")
    return done.stdout
