"""Do two or four offline tenants on one card do more than one, and does each have its part?

In the engine (gain_engine.py), with shares of random worlds (gain_shares.py), and on the chain of
shim, arbiter and simulated card (gain_chain.py). Pairs of PyTorch trainings are a scenario of their
own (gain_torch.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.figures import Figure
from bench.promises import gain_chain, gain_engine, gain_shares


def figures(quick: bool) -> Iterator[Figure]:
    """All of them."""
    yield from gain_engine.figures()
    yield from gain_shares.figures(quick)
    yield from gain_chain.figures(quick)
