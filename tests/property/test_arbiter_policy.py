"""The decision of the arbiter under arbitrary lives of tenants: what must never and what must
always be.

The lives are those of `qgpu simulate`. Its sanitized build checks each decision
(check_decisions.c).
"""

from __future__ import annotations

import csv
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from examples_support import examples
from hypothesis import given
from hypothesis import strategies as st
from policy_card import Card, two

from enforcer.wire import abi
from simulator.policy_layout import DEFICIT_MAX_NS, MS, NEVER
from simulator.whatif.simtrace import Trace
from simulator.whatif.simulate import Result, placed, program_input, simulate

pytestmark = pytest.mark.native

CHECKED = Path(__file__).resolve().parents[2] / "build/test/qgpu-simulate-asan"
ONLINE, OFFLINE = abi.CLASS_ONLINE, abi.CLASS_OFFLINE
POLICIES = st.sampled_from(["burst-share", "best-effort", "fixed-share"])
CLASSES = st.sampled_from(["online", "offline"])
KERNELS = st.lists(st.sampled_from(["50us", "200us", "1ms", "30ms"]), min_size=1, max_size=2)
SPANS = st.integers(1, 300).map(lambda v: f"{v * 500}us")
BUSY = st.integers(1, 60).map(lambda v: f"{v * 500}us")
LOADS = st.one_of(
    st.just("endless"),
    st.fixed_dictionaries({"every": SPANS, "busy": BUSY}),
    st.fixed_dictionaries({"per_second": st.sampled_from([2.0, 20.0, 200.0]), "busy": BUSY}),
)
LIVES = st.fixed_dictionaries(
    {
        "class": CLASSES,
        "share": st.integers(1, 100),
        "processes": st.integers(1, 2),
        "kernel": KERNELS,
        "load": LOADS,
        "pause": st.sampled_from(["0s", "0s", "50us", "3ms"]),
        "start": st.sampled_from(["0s", "0s", "50ms"]),
        "halted": st.sampled_from([[], [], [["100ms", "150ms"]]]),
    }
)
# The card of a plain model: nothing costs time but the kernels.
PLAIN = {"context_switch": "0s", "latency": {"arbiter": "0s", "tenant": "0s"}}


def traced(
    tenants: list[dict[str, Any]],
    ms: int,
    offline: str = "burst-share",
    online: str = "burst-share",
    card: dict[str, Any] | None = None,
) -> Trace:
    """A trace of one card; the tenants get names."""
    named = [{"name": f"t{i}"} | tenant for i, tenant in enumerate(tenants)]
    cards = [{"policy": {"online": online, "offline": offline}} | (PLAIN if card is None else card)]
    return Trace.model_validate({"duration": f"{ms}ms", "cards": cards, "tenants": named})


def run(*args: Any, **more: Any) -> Result:
    """Its result. A decision that breaks a rule raises TraceError."""
    return simulate(traced(*args, **more), program=CHECKED)


def always_busy(job_class: str, share: int, kernel: str) -> dict[str, Any]:
    return {"class": job_class, "share": share, "processes": 2, "kernel": kernel}


def parts(result: Result) -> list[float]:
    """The part of the time that each tenant had."""
    return [tenant.busy_s / result.duration_s for tenant in result.tenants]


@examples(50)
@given(st.lists(LIVES, min_size=1, max_size=6), POLICIES, POLICIES, st.sampled_from([PLAIN, {}]))
def test_invariants_under_any_life(
    lives: list[dict[str, Any]], offline: str, online: str, card: dict[str, Any]
) -> None:
    """The rules are in check_decisions.c; the first that does not hold is named."""
    run(lives, 400, offline, online, card=card)


@examples(10)
@given(st.lists(st.tuples(CLASSES, st.integers(1, 100), KERNELS), min_size=2, max_size=5), POLICIES)
def test_sampling_when_due_is_as_good_as_sampling_always(
    tenants: list[tuple[str, int, list[str]]], policy: str
) -> None:
    lives = [
        always_busy(job_class, share, "1ms" if "30ms" in kernels else kernels[0])
        for job_class, share, kernels in tenants
    ]
    found = []
    for every in ({}, {"CHECK_EVERY_NS": "50000"}):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in every.items():
                patch.setenv(name, value)
            found.append(parts(run(lives, 600, policy, policy)))
    assert found[0] == pytest.approx(found[1], abs=0.03)


@examples(15)
@given(st.lists(st.integers(1, 100), min_size=2, max_size=5), CLASSES)
def test_all_the_time_that_was_used_is_charged(shares: list[int], job_class: str) -> None:
    """Contended and used without a pause: charged is what ran, within 4 %, and credits balance."""
    trace = traced([always_busy(job_class, share, "200us") for share in shares], 300)
    text = program_input(trace, placed(trace))
    done = subprocess.run([CHECKED], input=text, capture_output=True, text=True, check=True)
    _, charged, ran, deficits = map(int, done.stderr.split())
    assert charged == pytest.approx(ran, rel=0.04)
    if len(set(shares)) > 1 or max(shares) < 90:
        assert abs(deficits) < 2 * MS, "the credits do not balance"


@examples(15)
@given(
    st.lists(LIVES, min_size=1, max_size=3), st.lists(st.integers(25, 100), min_size=1, max_size=3)
)
def test_every_closed_gate_opens_again(lives: list[dict[str, Any]], shares: list[int]) -> None:
    """Once online has left, each tenant that waits gets the card within a bounded time."""
    online = [
        life | {"class": "online", "start": "0s", "stop": "100ms", "halted": []} for life in lives
    ]
    result = run(online + [always_busy("offline", share, "1ms") for share in shares], 600)
    # after 100 ms of online come idle_release, then rounds of up to three tenants with debts of a
    # few slices
    assert all(any(tenant.profile[10:]) for tenant in result.tenants[len(online) :])


@examples(15)
@given(st.lists(st.integers(5, 100), min_size=2, max_size=4), CLASSES, st.randoms())
def test_service_converges_to_the_weights(
    shares: list[int], job_class: str, rng: random.Random
) -> None:
    """Busy tenants with kernels of different lengths: each gets its share of the time within 3
    %.
    """
    result = run(
        [always_busy(job_class, share, rng.choice(["100us", "200us", "1ms"])) for share in shares],
        1500,
    )
    total = sum(parts(result))
    for part, share in zip(parts(result), shares, strict=True):
        assert part / total == pytest.approx(share / sum(shares), abs=0.03)
    assert total > 0.85, "the card stood still too often"


def test_best_effort_ignores_shares() -> None:
    first, second = parts(
        run([always_busy("offline", share, "200us") for share in (90, 10)], 1000, "best-effort")
    )
    assert first / second == pytest.approx(1.0, abs=0.05)


def test_overuse_is_debited() -> None:
    """One member's kernels last 15 slices: it gets fewer quanta, and not more of the card."""
    first, second = parts(
        run([always_busy("offline", 50, "30ms"), always_busy("offline", 50, "100us")], 4000)
    )
    assert first / (first + second) == pytest.approx(0.5, abs=0.05)


def test_the_next_quantum_waits_for_the_last_kernel(tmp_path: Path) -> None:
    """Where the end of the former tenant's work cannot be predicted: its kernels differ in
    length.
    """
    lives = [always_busy("offline", 50, "1ms"), always_busy("offline", 50, "1ms")]
    lives[0]["kernel"], lives[1]["kernel"] = ["1ms", "900us"], ["700us", "600us"]
    simulate(traced(lives, 1000), timeline=tmp_path / "timeline.csv", program=CHECKED)
    states, quanta = dict[str, str](), 0
    with (tmp_path / "timeline.csv").open() as file:
        for row in csv.DictReader(file):
            states[row["tenant"]] = row["state"]
            quanta += row["state"] == "run"
            assert list(states.values()).count("run") <= 1, (
                "it began while the former tenant still ran"
            )
    assert quanta > 20


def test_idle_card_asks_for_no_wake_up() -> None:
    card = Card((ONLINE, 50), (OFFLINE, 50))
    card.at(0)
    card.follow(20 * MS)
    assert card.raw.wake_ns == NEVER
    assert card[0].gate & abi.GATE_NOTIFY and card[1].gate & abi.GATE_NOTIFY


@pytest.mark.parametrize("waits", [1, 0], ids=["waiting", "idle"])
def test_release_is_exactly_idle_release_after_the_last_work(waits: int) -> None:
    card = Card((ONLINE, 50), (OFFLINE, 50))
    card[0].runnable = card[0].undrained = 1
    card[1].runnable = waits
    card.at(0)
    assert card.open() == [0]
    card[0].runnable = card[0].undrained = 0
    card.at(MS)
    release = card.raw.online_busy_ns + 100 * MS
    while card.now < release:
        assert card.open() == [0]
        card.at(card.raw.wake_ns - card.now)
    assert card.open() == [0, 1] and card.now <= release + 150_000, "it needs no ring"


def test_recovery_keeps_offline_closed_and_ends() -> None:
    card = Card((ONLINE, 50), (OFFLINE, 50))
    card.raw.recovery_until_ns = card.now + 50 * MS
    card.want(1)
    card.at(0)
    assert card[1].gate & abi.GATE_WHY_RECOVERY and card.open() == [0]
    card.follow(40 * MS)
    assert card.open() == [0]
    card.follow(15 * MS)
    assert card.open() == [0, 1]


def test_a_tenant_that_never_drains_pays_for_it() -> None:
    """It lies about unfinished work: the other one waits for the drain timeout at most, and
    keeps its half.
    """
    card = Card((OFFLINE, 50), (OFFLINE, 50))
    card.want(0, 1)
    card[0].undrained = 1
    card.at(0)
    end, opened = card.now + 2000 * MS, 0
    while card.now < end:
        before, other = card.now, 1 in card.open()
        card.at(card.raw.wake_ns - card.now)
        opened += (card.now - before) * other
    assert opened > 0.4 * 2000 * MS


@pytest.mark.parametrize("start", [-4000 * MS, 4000 * MS])
def test_no_credit_or_debt_outlives_the_bound(start: int) -> None:
    card, first, _ = two()
    card.follow(5 * MS)
    card[first].deficit_ns = start
    card.follow(5 * MS)
    card.at(0)
    assert abs(card[first].deficit_ns) <= DEFICIT_MAX_NS


def test_the_bound_keeps_who_is_next() -> None:
    """A drain of the heavy one timed out. It earns credit beyond the bound while its kernel runs
    beside the light one, which would never end its quantum if that credit was only cut.
    """
    card = Card((ONLINE, 18), (ONLINE, 2))
    card.want(1)
    card.at(0)
    card.use(1)
    card.want(0)
    card[0].undrained = 1
    card.at(0)
    assert card.open() == [1]
    card[0].deficit_ns, card[1].deficit_ns = DEFICIT_MAX_NS, 121 * MS
    card.follow(20 * MS)
    assert card.open() != [1]
    assert card[0].deficit_ns * 2 > card[1].deficit_ns * 18


def three() -> tuple[Card, int, int, int]:
    """Three that compete; the first one uses its quantum."""
    card = Card(*[(OFFLINE, 20)] * 3)
    card.want(0, 1, 2)
    card.at(0)
    first = card.current()
    card.use(first)
    return card, first, (first + 1) % 3, (first + 2) % 3


def test_debt_beyond_the_bound_moves_all_back() -> None:
    card, first, second, third = three()
    card[first].deficit_ns, card[second].deficit_ns, card[third].deficit_ns = -DEFICIT_MAX_NS, 0, 0
    card.at(3 * MS)
    assert card[first].deficit_ns == -DEFICIT_MAX_NS
    assert card[second].deficit_ns == card[third].deficit_ns == 3 * MS


def test_debt_of_one_that_shows_work_outside_its_quantum_moves_nobody() -> None:
    """It may lie."""
    card, first, second, third = three()
    card[second].undrained = 1
    card.at(0)
    card[first].deficit_ns, card[second].deficit_ns, card[third].deficit_ns = 0, -DEFICIT_MAX_NS, 0
    card.at(3 * MS)
    assert card[second].deficit_ns == -DEFICIT_MAX_NS
    assert card[first].deficit_ns == -card[third].deficit_ns == -3 * MS // 2


def test_what_is_in_flight_is_always_bounded() -> None:
    """A lone tenant too: a newcomer would have to wait for all that it has queued. Not where
    isolation is none.
    """
    card = Card((OFFLINE, 50), (OFFLINE, 50))
    card[1].live = 0
    card.want(0)
    card.at(0)
    assert card[0].gate & abi.GATE_WINDOW and 0 in card.open()
    card[0].ungoverned = 1
    card.at(0)
    assert not card[0].gate & abi.GATE_WINDOW and 0 in card.open()


@given(st.integers(1, 30), st.integers(0, 999_999))
@examples(30)
def test_release_never_comes_early(bursts: int, phase: int) -> None:
    """Whenever it decides, offline waits idle_release from the end of online's last kernel at
    least.
    """
    card = Card((ONLINE, 50), (OFFLINE, 50))
    card.want(0)
    card.at(0)
    end = card.now + bursts * MS + phase
    while 1 not in card.open():
        card.now += 20_000
        card[0].runnable = int(card.now <= end)
        if card.now >= card.raw.wake_ns:
            card.at(0)
        assert card.now - end < 105 * MS, "the release is late"
    assert card.now - end >= 100 * MS
