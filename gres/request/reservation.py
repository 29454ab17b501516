"""Computes the shards that Slurm books for a share: hundredths of a card, in exact integers.

Lua decides requests (qgpu.lua: `M.shards`). `shards` here is for `qgpu job class` alone
(enforcer/daemon/requests/reclass.py): a running job whose class changes. A property test compares
the two.

Whatever fits a card by 100 shards keeps two bounds. The sum of memory caps of jobs that reserve is
at most the usable memory. The sum of shares in classes that reserve compute is at most 100.
Rounding books more, never less.
"""

from __future__ import annotations

CARD_SHARDS = 100  # shards of one card, so that a shard is one percent


def mem_shards(mem: int, usable: int) -> int:
    """Shards that cover `mem` of `usable` MiB, rounded up."""
    return -(-100 * mem // usable)


def shards(share: int, mem: int, usable: int, compute: bool, reclaimable: bool = False) -> int:
    """Shards to book: the memory's, or the larger of that and the share where the class reserves
    compute. Reclaimable memory books nothing, but a job without a shard would get no card.
    """
    by_mem = 1 if reclaimable else mem_shards(mem, usable)
    return max(share, by_mem) if compute else by_mem
