"""What a sandbox is made of, and the limits of it. Every refusal is a sentence."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from cli.sandbox import cgroups
from cli.sandbox.errors import SandboxError
from gres.config.site import CLASSES, Injection
from gres.units import UnitError, parse_mib

Placement = Literal["binpack", "spread"]
Driver = Literal["580", "615"]
DEFAULT_ROOT = Path("/var/lib/qgpu-sandbox")
CGROUP_VARIABLE = "QGPU_SANDBOX_CGROUP"  # default of --cgroup
MAX_NODES = 16
MAX_CARDS = 16
MAX_MIG = 7
MIN_MEMORY_MIB = 4 * 1024
MAX_MEMORY_MIB = 1024 * 1024

# Names by nvmlDeviceGetName for common Slurm types; any other becomes "NVIDIA TYPE".
PRODUCT_NAMES = {
    "a100": "NVIDIA A100-SXM4-80GB",
    "b200": "NVIDIA B200",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "l40s": "NVIDIA L40S",
}

_NAME = re.compile(r"[a-z][a-z0-9]{0,15}")
_MODEL = re.compile(r"[a-z][a-z0-9_]{0,31}")
_SLICE = re.compile(r"[a-z][a-z0-9_]{0,31}\.slice")
_NVLINKS = re.compile(r"(?:[0-9]{1,2}-(?:[0-9]{1,2}|switch):[0-9]{1,2}(?:,|$))+(?<!,)")
_PATH = re.compile(r"/[A-Za-z0-9/._-]*")


def parse_memory(text: str) -> int:
    """MiB of a card's memory such as "80GiB" or "40960MiB"; SandboxError if it is not a size."""
    try:
        return parse_mib(text)
    except UnitError as error:
        raise SandboxError(f"--memory: {error}") from None


def default_cgroup() -> cgroups.Choice:
    """What QGPU_SANDBOX_CGROUP says; the live suite chooses by it for all of its sandboxes."""
    said = os.environ.get(CGROUP_VARIABLE, "auto")
    if said not in get_args(cgroups.Choice):
        raise SandboxError(
            f"{CGROUP_VARIABLE}={said!r} is no version of cgroups: it may be auto, v1 or v2"
        )
    return cast(cgroups.Choice, said)


@dataclass(frozen=True)
class SandboxOptions:
    """Shape of a sandbox; memory_mib is per card. Raises SandboxError for a shape that cannot be
    built.
    """

    name: str = "default"
    nodes: int = 2
    cards: int = 2
    memory_mib: int = 80 * 1024
    model: str = "h200"
    state_dir: Path | None = None
    native_gres: bool = False
    injection: Injection = "auto"
    multi_card: bool = False
    placement: Placement = "binpack"
    mig: int = 0  # the "cards" are MIG instances: number per card
    cgroup: cgroups.Choice = field(default_factory=default_cgroup)
    cgroup_slice: str = ""  # on cgroup v2; empty: Slurm's own
    cgroup_names: cgroups.Names = "slurm"
    driver: Driver = "580"  # generation of the simulated driver
    nvlinks: str = ""  # between the cards of each node, as qgpu-simgpu takes them
    reclaimable: bool = False  # memory of offline jobs

    def __post_init__(self) -> None:
        check_name(self.name)
        _check_count("--nodes", "nodes", self.nodes, MAX_NODES)
        _check_count("--cards", "cards per node", self.cards, MAX_CARDS)
        _check_memory(self.memory_mib)
        if self.mig and not (1 <= self.mig <= MAX_MIG and self.cards % self.mig == 0):
            raise SandboxError(
                f"--mig {self.mig} does not work with --cards {self.cards}: a card has 1 to"
                f" {MAX_MIG} instances, and --cards, which are all instances of a node, is a"
                " multiple of that"
            )
        ends = re.findall(r"(\d+)-(\w+)", self.nvlinks)
        named = {int(end) for pair in ends for end in pair if end.isdigit()}
        if self.nvlinks and not _NVLINKS.fullmatch(self.nvlinks):
            raise SandboxError(
                f"--nvlinks {self.nvlinks!r} is no list of links: write for example 0-1:4, four"
                " links between cards 0 and 1, or 0-switch:18"
            )
        if any(one == other for one, other in ends) or max(named, default=0) >= self.cards:
            raise SandboxError(
                f"--nvlinks {self.nvlinks!r} names a card that is not there or links it to itself:"
                f" the cards of a node are 0 to {self.cards - 1}"
            )
        if self.cgroup_slice and not _SLICE.fullmatch(self.cgroup_slice):
            raise SandboxError(
                f"--cgroup-slice {self.cgroup_slice!r} is not the name of a slice: use lower-case"
                " letters, digits and _, then .slice, for example gpu.slice"
            )
        if self.model in CLASSES:
            raise SandboxError(
                f"the card model cannot be called {self.model!r}: that is a class of jobs; use for"
                " example h200"
            )
        if not _MODEL.fullmatch(self.model):
            raise SandboxError(
                f"the card model {self.model!r} is not a Slurm gres type: use lower-case letters,"
                " digits and _, beginning with a letter, at most 32 of them, for example h200"
            )

    @property
    def state(self) -> Path:
        """The directory that holds everything of this sandbox, absolute."""
        return state_of(self.name, self.state_dir)

    @property
    def node_names(self) -> list[str]:
        """n1, n2 ... for the default sandbox, NAME-n1 ... for others; the nodes' cgroups have them
        too.
        """
        prefix = "n" if self.name == "default" else f"{self.name}-n"
        return [f"{prefix}{i + 1}" for i in range(self.nodes)]

    @property
    def product_name(self) -> str:
        """The name that NVML gives the simulated card."""
        return PRODUCT_NAMES.get(self.model, f"NVIDIA {self.model.upper()}")


def check_name(name: str) -> None:
    """SandboxError unless the name can be part of node names, cgroup names and a Slurm cluster
    name.
    """
    if not _NAME.fullmatch(name):
        raise SandboxError(
            f"the sandbox name {name!r} does not work as part of node names: use lower-case letters"
            " and digits, beginning with a letter, at most 16 of them, for example test2"
        )


def state_of(name: str, state_dir: Path | None) -> Path:
    """Where the sandbox of that name lives: --state-dir, else a directory under
    /var/lib/qgpu-sandbox.
    """
    if state_dir is None:
        return DEFAULT_ROOT / name
    path = Path(os.path.normpath(Path.cwd() / state_dir))
    if not _PATH.fullmatch(str(path)) or len(path.parts) < 3:
        raise SandboxError(
            f"--state-dir {str(state_dir)!r} does not work in configuration files: use an absolute"
            " path of at least two parts, of letters, digits, dot, _ and -, for example"
            " /var/tmp/qgpu-test"
        )
    return path


def _check_count(option: str, what: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise SandboxError(
            f"{option} {value} is out of range: a sandbox has between 1 and {most} {what}"
        )


def _check_memory(mib: int) -> None:
    if not MIN_MEMORY_MIB <= mib <= MAX_MEMORY_MIB:
        raise SandboxError(
            f"--memory of {mib} MiB is out of range: a simulated card has between "
            f"{MIN_MEMORY_MIB // 1024} GiB and {MAX_MEMORY_MIB // 1024} GiB"
        )
