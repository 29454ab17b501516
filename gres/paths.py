"""The paths of this installation.

`make install` writes `install.json` beside this module with its directories (PREFIX, RUNDIR and so
on). A source checkout has no such file and takes the defaults, which are those of the packages. All
code takes paths of installed files from here, so a site's PREFIX reaches each default of qgpu.yaml.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

ABI_VERSION = 3  # QG_ABI_VERSION of qgpu_abi.h: the shim's directory is named by it
FILE = Path(__file__).with_name("install.json")


@dataclass(frozen=True)
class InstallPaths:
    """Absolute directories of one installation, without a slash at the end."""

    bin_dir: str = "/usr/bin"
    sbin_dir: str = "/usr/sbin"
    lib_dir: str = "/usr/lib/qgpu"  # shims, SPANK plugin, private Python environment
    libexec_dir: str = "/usr/libexec/qgpu"  # arbiter, hook client
    data_dir: str = "/usr/share/qgpu"
    config_dir: str = "/etc/qgpu"
    slurm_config_dir: str = "/etc/slurm"
    slurm_plugin_dir: str = "/usr/lib/x86_64-linux-gnu/slurm-wlm"
    run_dir: str = "/run/qgpu"
    state_dir: str = "/var/lib/qgpu"
    unit_dir: str = "/usr/lib/systemd/system"

    @property
    def config_file(self) -> str:
        """The cluster's qgpu.yaml."""
        return f"{self.config_dir}/qgpu.yaml"

    @property
    def fragments_dir(self) -> str:
        """The rendered fragments of Slurm's configuration, with prolog, epilog and tables."""
        return f"{self.slurm_config_dir}/qgpu"

    @property
    def lua_dir(self) -> str:
        """qgpu's own Lua modules."""
        return f"{self.data_dir}/lua"

    @property
    def shim(self) -> str:
        """The jobs' libcuda.so.1; their libnvidia-ml.so.1 lies beside it."""
        return f"{self.lib_dir}/{ABI_VERSION}/libcuda.so.1"

    @property
    def spank(self) -> str:
        """The SPANK plugin."""
        return f"{self.lib_dir}/qgpu_spank.so"

    @property
    def hook(self) -> str:
        """The client that Slurm's prolog and epilog run."""
        return f"{self.libexec_dir}/qgpu-hook"

    @property
    def arbiter(self) -> str:
        """The real-time arbiter."""
        return f"{self.libexec_dir}/qgpu-arbiter"

    @property
    def checkpoint(self) -> str:
        """The helper that moves a job's GPU memory to its host memory and back."""
        return f"{self.libexec_dir}/qgpu-checkpoint"

    @property
    def simulate(self) -> str:
        """The what-if engine."""
        return f"{self.libexec_dir}/qgpu-simulate"


def load(file: Path = FILE) -> InstallPaths:
    """The directories by `make install`; the defaults without the file. Raises ValueError."""
    if not file.exists():
        return InstallPaths()
    known = {field.name for field in fields(InstallPaths)}
    stored = json.loads(file.read_text())
    wrong = sorted(set(stored) - known) or [
        k for k, v in stored.items() if not str(v).startswith("/")
    ]
    if wrong:
        raise ValueError(
            f"{file}: '{wrong[0]}' is no directory of an installation: install the package again"
        )
    return InstallPaths(**stored)


PATHS = load()
