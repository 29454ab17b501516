"""How long a doorbell takes to close a gate. Prints the figures; asserts only what no machine may miss."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
from arbiter_support import Tenant, arbiter, grant, settings, wait_for

from enforcer import abi

pytestmark = pytest.mark.native
ROUNDS = 200


def measure(tmp_path: Path, *args: str) -> list[int]:
    """Nanoseconds from an online launch (before its doorbell) to the closed gate of an offline tenant."""
    on, off = grant(1, "online"), grant(2)
    took: list[int] = []
    with arbiter(tmp_path, *args) as one, one.link() as link:
        link.sync([settings(idle_release_ms=1)], [on, off])
        online, offline = Tenant(one.run_dir, on), Tenant(one.run_dir, off)
        for _ in range(ROUNDS):
            wait_for(lambda: not offline.closed and online.flags & abi.GATE_NOTIFY, "idle")
            begin = time.monotonic_ns()
            online.begin()
            wait_for(lambda: offline.closed, "closed")
            took.append(offline.gate.changed_ns - begin)
            online.finish()
    return sorted(took)


@pytest.mark.parametrize("args", [(), ("--no-rt",)], ids=["real-time", "ordinary"])
def test_print_doorbell_to_gate(
    tmp_path: Path, args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    took = measure(tmp_path, *args)
    p50, p99 = statistics.median(took) / 1000, took[int(ROUNDS * 0.99)] / 1000
    how, worst = " ".join(args) or "SCHED_FIFO", took[-1] / 1000
    figures = f"p50 {p50:.0f} us, p99 {p99:.0f} us, max {worst:.0f} us, n {ROUNDS}"
    with capsys.disabled():
        print(f"\ndoorbell -> gate closed ({how}): {figures}")
    assert took[0] > 0, "a gate closed before it was asked to"
    assert p50 < 20_000, "even without real time this is far too late"
