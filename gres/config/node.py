"""One node and its cards, as qgpu.yaml configures them."""

from __future__ import annotations

from dataclasses import dataclass

from gres.config.schema import Injection, Managed


@dataclass(frozen=True)
class CardSpec:
    """One configured card of a node; `index` is its place in gres.conf, memory is MiB.

    A MIG instance has the path of its card, and in `caps` the paths of its two capability files.
    """

    index: int
    path: str
    model: str
    memory: int
    usable: int
    caps: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All its device files."""
        return (self.path, *self.caps)


@dataclass(frozen=True)
class Node:
    """One node with everything that depends on its name."""

    name: str
    model: str
    cards: tuple[CardSpec, ...]
    run_dir: str
    state_dir: str
    injection: Injection = "preload"
    managed: Managed = "full"

    @property
    def usable(self) -> int:
        """MiB that shares have of one of its cards."""
        return self.cards[0].usable if self.cards else 0


def for_node(path: str, name: str) -> str:
    """`path` with every %n replaced by the node's name."""
    return path.replace("%n", name)
