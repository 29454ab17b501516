"""idle_release: auto in the engine: who gets the gaps of online."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest

from simulator.whatif.simtrace import Trace
from simulator.whatif.simulate import run_program

pytestmark = pytest.mark.native


def service(name: str, every: str, kernels: int, kernel: str = "200us") -> dict[str, Any]:
    load = {"every": every, "kernels": kernels}
    return {"name": name, "class": "online", "share": 20, "kernel": kernel, "load": load}


def run(online: list[dict[str, Any]], kernels: Sequence[str], **card: str) -> dict[str, Any]:
    offline = [
        {"name": f"o{i}", "class": "offline", "share": 50, "kernel": kernel}
        for i, kernel in enumerate(kernels)
    ]
    trace = {"duration": "20s", "cards": [{"idle_release": "auto", **card}]}
    return run_program(
        Trace.model_validate({**trace, "tenants": [*online, *offline]}), "--requests"
    )


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


@pytest.mark.parametrize(("every", "kernels"), [("20ms", 10), ("5ms", 5), ("10ms", 2)])
def test_mean_of_online_keeps_its_share(every: str, kernels: int) -> None:
    def mean(offline: Sequence[str], share: str) -> float:
        result = run([service("s", every, kernels)], offline, online_share=share)
        return fmean(result["tenants"][0]["latencies_ns"])

    alone = mean([], "off")
    assert mean(["500us"], "off") > 1.15 * alone
    assert 1.01 * alone < mean(["500us"], "5%") <= 1.05 * alone
