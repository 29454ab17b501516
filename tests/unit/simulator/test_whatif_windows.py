"""What the engine of `qgpu simulate` lets into flight, as the shim would: windows and HOLD; and how
contexts share its card.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from simulator.whatif.simtrace import parse_trace
from simulator.whatif.simulate import run_program

pytestmark = pytest.mark.native
SWIFT = {"context_switch": "0s", "latency": {"arbiter": "0s", "tenant": "0s"}}


def ran(*tenants: dict[str, Any], programs: Any = (), **card: Any) -> dict[str, Any]:
    """What the program says of two seconds of these tenants."""
    each = [
        {"name": f"t{i}", "class": "offline", "share": 50, "kernel": "100us"} | tenant
        for i, tenant in enumerate(tenants)
    ]
    text = {"duration": "2s", "cards": [SWIFT | card], "tenants": each}
    text["programs"] = list(programs)
    return run_program(parse_trace(json.dumps(text)))


FREE = {"isolation": "none"}  # the card alone divides its time between these
SLICES = {"context_switch": "100us", "timeslice": "1ms"}
STOPPED = {"halted": [["1s", "9s"]]}  # what it has in flight then is still executed
ONLINE = {"class": "online", "load": {"every": "9s", "kernels": 1}}  # one kernel, and then idle
IN_FLIGHT_US = {
    "alone": ((STOPPED,), {}, 20_000),
    "alone, a mixture": ((STOPPED | {"kernel": ["100us", "200us"]},), {}, 20_000),
    "fixed-share": ((STOPPED | {"share": 100},), {"policy": {"offline": "fixed-share"}}, 275),
    "a wider setting": ((STOPPED,), {"window": "30ms"}, 30_000),
    "online is there": ((ONLINE, STOPPED), {"idle_release": "0s"}, 275),
    "it pauses": ((STOPPED | {"pause": "10us"},), {}, 100),
}


@pytest.mark.parametrize("case", IN_FLIGHT_US)
def test_what_is_in_flight_when_a_program_is_stopped(case: str) -> None:
    tenants, card, most_us = IN_FLIGHT_US[case]
    *others, stopped = tenants
    found = ran(*others, stopped | {"name": "stopped"}, **card)
    goes_on = ran(*others, {k: v for k, v in stopped.items() if k != "halted"}, **card)
    per_second = goes_on["tenants"][-1]["busy_ns"] / 2
    over_us = (found["tenants"][-1]["busy_ns"] - per_second) / 1000
    assert most_us - 350 <= over_us <= most_us + 350


def test_onlines_second_launch_waits_until_offline_has_left() -> None:
    """Offline's rest of up to 0.8 ms shares the card with 0.15 ms of online, not with all of it."""
    online = {"class": "online", "load": {"every": "123ms", "kernels": 50}}
    found = ran(online, {"kernel": "800us"}, idle_release="10ms", window="50us")
    (card,) = found["cards"]
    assert card["freed"] > 5 and card["freed_max_ns"] < 1_050_000


def test_contexts_take_turns_of_a_time_slice() -> None:
    """Kernels longer than a slice, no gates: each change costs the card 0.1 ms."""
    found = ran(FREE | {"kernel": "9ms"}, FREE | {"kernel": "7ms"}, **SLICES)
    assert found["cards"][0]["switches"] == pytest.approx(2 / 1.1e-3, rel=0.02)
    for tenant in found["tenants"]:
        assert tenant["busy_ns"] / 10**9 == pytest.approx(1 / 1.1, rel=0.02)


def test_a_pause_shorter_than_the_change_of_context_costs_a_slice() -> None:
    """The card has begun to change when the pause ends. The other one has its slice all the same:
    1 ms and 2 ms of each 3.2 ms.
    """
    pauses, goes_on = FREE | {"kernel": "1ms", "pause": "20us"}, FREE | {"kernel": "100us"}
    costs = {"context_switch": "100us", "timeslice": "2ms"}
    found = ran(pauses, goes_on, **costs)
    parts = [tenant["busy_ns"] / (2 * 10**9) for tenant in found["tenants"]]
    assert parts == pytest.approx([1 / 3.2, 2 / 3.2], rel=0.02)


def test_offlines_rest_waits_for_onlines_slice() -> None:
    """Online's kernel of 3 ms takes the card for a slice of 1 ms while offline's is not done."""
    online = {"class": "online", "kernel": "3ms", "load": {"every": "123ms", "kernels": 1}}
    found = ran(online, {"kernel": "800us"}, idle_release="10ms", window="50us")
    (card,) = found["cards"]
    assert card["freed"] > 5 and 1_000_000 < card["freed_max_ns"] < 2_000_000


@pytest.mark.parametrize(("copy", "least", "most"), [("0s", 0.4, 0.55), ("1us", 0.05, 0.15)])
def test_a_program_runs_ahead_while_its_kernels_wait(copy: str, least: float, most: float) -> None:
    """Alone it uses half of the card. While it waits for a slice it launches on, unless it waits
    for a copy after each kernel.
    """
    programs = [{"name": "p", "stretches": [[1, "100us", "100us", copy]]}]
    beside = FREE | {"kernel": None, "program": "p"}, FREE | {"kernel": "10ms"}
    found = ran(*beside, programs=programs)
    assert least < found["tenants"][0]["busy_ns"] / (2 * 10**9) < most
