"""idle_release: auto in the engine: who gets the gaps of online."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.whatif.simtrace import Trace
from simulator.whatif.simulate import run_program

pytestmark = pytest.mark.native


def service(name: str, every: str, kernels: int, kernel: str = "200us") -> dict[str, Any]:
    load = {"every": every, "kernels": kernels}
    return {"name": name, "class": "online", "share": 20, "kernel": kernel, "load": load}


def run(online: list[dict[str, Any]], kernels: list[str], **card: str) -> dict[str, Any]:
    offline = [
        {"name": f"o{i}", "class": "offline", "share": 50, "kernel": kernel}
        for i, kernel in enumerate(kernels)
    ]
    trace = {"duration": "20s", "cards": [{"idle_release": "auto", **card}]}
    return run_program(Trace.model_validate({**trace, "tenants": [*online, *offline]}))


def parts(result: dict[str, Any]) -> list[float]:
    return [t["busy_ns"] / result["duration_ns"] for t in result["tenants"]]


@pytest.mark.parametrize("late", [1, 2, 4, 8])
def test_late_ones_do_not_keep_a_quick_one_out(late: int) -> None:
    _, quick, *others = parts(run([service("s", "5ms", 5)], ["200us"] + ["5ms"] * late))
    assert quick > 0.5
    assert sum(others) < 0.02


def test_services_in_phase_do_not_make_quick_ones_late() -> None:
    online = [service("a", "10ms", 6), service("b", "10ms", 1, "500us")]
    online += [service("c", "10ms", 1, "500us")]
    got = parts(run(online, ["200us"] * 4))[3:]
    assert min(got) > 0.14
