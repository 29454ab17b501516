"""How much of a card Slurm books for a share: hundredths of a card, in exact integers (decision D2).

A request is decided in Lua (qgpu.lua: `M.shards`). This is for a job that has its share: its class may change.

Whatever is packed on a card within 100 shards fits: Σ memory caps ≤ usable memory always, and Σ shares ≤ 100
among the members of classes that reserve compute. Rounding books more, never less.
"""

from __future__ import annotations

CARD_SHARDS = 100


def mem_shards(mem: int, usable: int) -> int:
    """Shards that cover `mem` of `usable` MiB, rounded up."""
    return -(-100 * mem // usable)


def shards(share: int, mem: int, usable: int, compute: bool) -> int:
    """Shards to book: the memory's, or the larger of that and the share where the class reserves compute."""
    by_mem = mem_shards(mem, usable)
    return max(share, by_mem) if compute else by_mem
