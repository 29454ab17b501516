"""A tenant that lies about its work harms no other: the shares of the others are as without it.

The truth is what the model's card executed (qgpu-simulate), never what the decision charged.
"""

from __future__ import annotations

from typing import Any

import pytest
from examples_support import examples
from hypothesis import example, given
from hypothesis import strategies as st
from policy_card import Card

from enforcer.wire import abi
from gres.units import parse_duration
from simulator.policy_layout import MS
from simulator.whatif.simtrace import Trace
from simulator.whatif.simulate import TenantResult, simulate

pytestmark = pytest.mark.native

OFFLINE = abi.CLASS_OFFLINE
SECONDS = 12  # of each trace
BURST = "burst-share"
DUTY = {
    "name": "duty",
    "class": "online",
    "share": 30,
    "kernel": "100us",
    "load": {"every": "1s", "busy": "500ms"},
}
KERNELS = st.sampled_from(["100us", "1ms", "3ms", "10ms"])
HONEST = st.lists(st.tuples(st.integers(10, 90), KERNELS), min_size=2, max_size=4)
LIAR = st.fixed_dictionaries(
    {
        "share": st.integers(1, 100),
        "count": st.integers(1, 3),
        "lies": st.sampled_from(["busy", "idle"]),
    }
)


def everybody(
    tenants: list[tuple[int, str]],
    policy: str,
    online: bool,
    liar: dict[str, Any] | None,
    seed: int = 1,
) -> tuple[TenantResult, ...]:
    """What all got in SECONDS."""
    all_ = [
        {"name": f"h{i}", "class": "offline", "share": share, "kernel": kernel}
        for i, (share, kernel) in enumerate(tenants)
    ]
    if liar:
        all_.append({"name": "liar", "class": "offline", "kernel": "1ms"} | liar)
    result = simulate(
        Trace.model_validate(
            {
                "duration": f"{SECONDS}s",
                "seed": seed,
                "cards": [{"policy": {"offline": policy}}],
                "tenants": all_ + [DUTY] * online,
            }
        )
    )
    return result.tenants


def honest(
    tenants: list[tuple[int, str]],
    policy: str,
    online: bool,
    liar: dict[str, Any] | None,
    seed: int = 1,
) -> list[TenantResult]:
    """What the honest ones got in SECONDS."""
    return [t for t in everybody(tenants, policy, online, liar, seed) if t.name.startswith("h")]


def parts(got: list[TenantResult]) -> list[float]:
    total = sum(t.busy_s for t in got)
    return [100 * t.busy_s / total for t in got]


@examples(40)
@example([(10, "100us"), (10, "10ms")], {"share": 40, "count": 3, "lies": "busy"}, BURST, False, 0)
@given(HONEST, LIAR, st.sampled_from([BURST, "best-effort"]), st.booleans(), st.integers(0, 99))
def test_a_liar_does_not_move_the_shares_of_others(
    tenants: list[tuple[int, str]], liar: dict[str, Any], policy: str, online: bool, seed: int
) -> None:
    """They divide what is left to them as they divide a card without it, within 2.5 points of
    the card's time. The example is the worst that is known: 1.8 points.
    """
    without = parts(honest(tenants, policy, online, None, seed))
    beside = honest(tenants, policy, online, liar, seed)
    left_s = sum(t.busy_s for t in beside)
    moved = [t.busy_s - left_s * part / 100 for t, part in zip(beside, without, strict=True)]
    assert [100 * each_s / SECONDS for each_s in moved] == pytest.approx([0] * len(moved), abs=2.5)


@examples(20)
@given(st.lists(KERNELS, min_size=2, max_size=3), LIAR, st.booleans())
def test_a_liar_does_not_move_fixed_shares(
    kernels: list[str], liar: dict[str, Any], online: bool
) -> None:
    """Nor does it lift a limit: time that it pretends to use is no discount for the others."""
    shares = (20, 40, 25)[: len(kernels)]
    left = (100 - sum(shares)) // liar["count"]  # Slurm gives no more than the card away
    liar = liar | {"share": min(liar["share"], left)}
    tenants = list(zip(shares, kernels, strict=True))
    without = honest(tenants, "fixed-share", online, None)
    beside = honest(tenants, "fixed-share", online, liar)
    # A tenant that hides its work runs in the part of the card that is not shared out.
    slack = 1.5 if liar["lies"] == "busy" else 1.7
    assert parts(beside) == pytest.approx(parts(without), abs=slack)
    for t, share, kernel in zip(beside, shares, kernels, strict=True):
        assert t.max_1s_percent is not None and t.max_10s_percent is not None
        assert t.max_1s_percent <= share + parse_duration(kernel).ns / 1e7
        assert t.max_10s_percent <= share + 1
        if not online and liar["lies"] == "busy":
            # Each of them keeps a quantum until the arbiter can know that it lies.
            assert t.got_percent >= share - 1 - liar["count"]


@examples(40)
@given(HONEST, LIAR, st.booleans(), st.integers(0, 99))
def test_a_limit_is_kept_beside_a_liar_and_by_one_that_shows_work(
    tenants: list[tuple[int, str]], liar: dict[str, Any], online: bool, seed: int
) -> None:
    """Exactly. One that shows no work at all is bounded by the quanta of others alone."""
    for t in everybody(tenants, "fixed-share", online, liar, seed):
        if t.name == "duty" or (t.name.startswith("liar") and liar["lies"] == "idle"):
            continue
        kernel = tenants[int(t.name[1:])][1] if t.name.startswith("h") else "1ms"
        assert t.max_1s_percent is not None and t.max_10s_percent is not None
        assert t.max_1s_percent <= t.share + parse_duration(kernel).ns / 1e7
        assert t.max_10s_percent <= t.share + 1


@pytest.mark.parametrize("policy", ["burst-share", "best-effort", "fixed-share"])
def test_the_worst_that_was_seen(policy: str) -> None:
    """Online for half of each second, a liar with a share of 50: 31:69 in the place of 10:90,
    once.
    """
    tenants = [(10, "10ms"), (90, "100us")]
    without = parts(honest(tenants, policy, True, None))
    beside = parts(honest(tenants, policy, True, {"share": 50, "lies": "busy"}))
    assert beside == pytest.approx(without, abs=1.0)


def let_one_lie(card: Card, seconds: int, *, believed: bool) -> None:
    """0 and 1 take quanta of 10 ms in a row, 2 shows work all the time and never gets the card."""
    for _ in range(50 * seconds):
        for i in (0, 1):
            cls = card.raw.cls[1]
            cls.current, cls.draining, cls.use_from_ns = i, -1, card.now
            cls.opened_ns = card[i].used_from_ns = card.now
            for j in (0, 1):
                card[j].gate = 0 if i == j else abi.GATE_CLOSED
                card[j].runnable, card[j].undrained, card[j].was_undrained = (
                    1,
                    int(i == j),
                    int(i == j),
                )
            card[2].runnable, card[2].undrained, card[2].was_undrained = int(believed), 1, 1
            card[2].gate = abi.GATE_CLOSED
            card.raw.last_ns = cls.charged_until_ns = card.now
            card.at(10 * MS)


@pytest.mark.parametrize("believed", [False, True])
def test_credits_of_others_balance_beside_a_liar(believed: bool) -> None:
    """What it pretends to use is its own debt, up to the bound, and no other tenant's credit."""
    card = Card((OFFLINE, 50), (OFFLINE, 50), (OFFLINE, 50))
    card.want(0, 1)
    card.at(0)
    let_one_lie(card, 10, believed=believed)
    assert card[0].deficit_ns + card[1].deficit_ns == pytest.approx(0, abs=1000)
    assert abs(card[0].deficit_ns) <= 10 * MS
    assert card[2].deficit_ns <= 0
