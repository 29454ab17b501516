"""Limits of a context that are memory of the simulated card."""

from __future__ import annotations

import ast

import pytest
from sim_tools import run

from simulator.sim import Simulator

pytestmark = pytest.mark.native

MIB = 1 << 20
STACK, FIFO, HEAP, DEPTH, LAUNCHES = range(5)
BEGIN = """
g = Cuda(); before = g.free_memory(); MIB = 1 << 20
def limit(which, value):
    status = g.raw("cuCtxSetLimit", which, c.c_size_t(value)); now = c.c_size_t()
    g.call("cuCtxGetLimit", c.byref(now), which)
    print([status, now.value, (before - g.free_memory()) // MIB])
"""


def seen(sim: Simulator, code: str) -> list[object]:
    return [ast.literal_eval(line) for line in run(sim, BEGIN + code).splitlines()]


def test_what_is_asked_for_above_the_usual_is_taken_and_given_back(sim: Simulator) -> None:
    assert seen(
        sim,
        f"""
limit({HEAP}, 8 * MIB); limit({HEAP}, 72 * MIB); limit({FIFO}, 33 * MIB); limit({STACK}, 1536)
limit({HEAP}, 4 * MIB); limit({FIFO}, 1 * MIB); limit({STACK}, 512); limit({LAUNCHES}, 1 << 20)
""",
    ) == [
        [0, 8 * MIB, 0],
        [0, 72 * MIB, 64],
        [0, 33 * MIB, 96],
        [0, 1536, 96 + 132],  # 512 bytes for each of 132 x 2048 threads
        [0, 4 * MIB, 32 + 132],
        [0, 1 * MIB, 132],
        [0, 512, 0],
        [0, 1 << 20, 0],
    ]


def test_a_card_that_is_full_keeps_the_limit_as_it_was(sim: Simulator) -> None:
    assert seen(
        sim,
        f"limit({HEAP}, 5000 * MIB); limit({STACK}, 1 << 20); limit({STACK}, (1 << 64) - 1)\n"
        f'print(g.raw("cuCtxSetLimit", 99, c.c_size_t(0)))\n',
    ) == [[2, 8 * MIB, 0], [2, 1024, 0], [2, 1024, 0], 215]


def test_a_context_takes_its_limits_along(sim: Simulator) -> None:
    """And the primary one begins anew with the usual ones."""
    assert seen(
        sim,
        f"""
limit({HEAP}, 72 * MIB); other = c.c_void_p()
g.call("cuCtxCreate_v2", c.byref(other), 0, 0); limit({HEAP}, 40 * MIB)
g.call("cuCtxDestroy_v2", other); g.call("cuCtxSetCurrent", g.ctx); limit({FIFO}, MIB)
g.call("cuDevicePrimaryCtxReset_v2", 0); g.call("cuDevicePrimaryCtxRetain", c.byref(g.ctx), 0)
g.call("cuCtxSetCurrent", g.ctx); limit({STACK}, 1024); limit({HEAP}, 72 * MIB)
""",
    ) == [
        [0, 72 * MIB, 64],
        [0, 40 * MIB, 64 + 300 + 32],
        [0, MIB, 64],
        [0, 1024, 0],
        [0, 72 * MIB, 64],
    ]
