"""Decides which users may see a job. Pure. Follows Slurm's PrivateData as qgpu.yaml repeats it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Privacy:
    """`private` holds words of PrivateData: `jobs` hides live state and use, `usage` hides use
    alone.
    """

    private: frozenset[str] = frozenset()
    admins: frozenset[int] = frozenset()

    @classmethod
    def of(cls, private: Iterable[str], admins: Iterable[int] = ()) -> Privacy:
        """From the configured words and the uids of admins."""
        return cls(frozenset(private), frozenset(admins))

    def is_admin(self, viewer: int) -> bool:
        """Whether this uid sees everything."""
        return viewer == 0 or viewer in self.admins

    def sees_live(self, viewer: int, owner: int) -> bool:
        """Whether the viewer may see that a job of the owner holds a card now."""
        return "jobs" not in self.private or viewer == owner or self.is_admin(viewer)

    def sees_use(self, viewer: int, owner: int) -> bool:
        """Whether the viewer may see what a job of the owner used."""
        return not self.private or viewer == owner or self.is_admin(viewer)
