"""What a context costs, and what a job may hold for its contexts: pure arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enforcer.daemon.arbiter.port import FakeArbiter, ProcessUse
from enforcer.daemon.audit.contexts import (
    EXCUSED,
    Charges,
    ContextCosts,
    excused,
    measured,
)
from enforcer.daemon.audit.findings import AuditResult, Registered, audit
from enforcer.nvml.port import CardUsage, GpuProcess
from gres.grant.store import Grant, GrantCard

MIB, GIB = 1 << 20, 1 << 30
U = "GPU-0"
SIZES = st.integers(0, 200 * GIB)
USES = st.builds(
    ProcessUse,
    job_id=st.just(9),
    uuid=st.just(U),
    pid=st.just(50),
    mem_used=SIZES,
    mem_pending=st.just(0),
    mem_contexts=SIZES,
    contexts=st.integers(0, 2**32 - 1),
)


def use(pid: int = 50, used: int = 0, reserved: int = 0, contexts: int = 1, pending: int = 0):
    return ProcessUse(9, U, pid, used, pending, reserved, contexts)


def look(seen: list[tuple[int, int | None]], uses: list[ProcessUse], cap: int = GIB) -> AuditResult:
    card = GrantCard(U, minor=0, index=0, share=30, mem_cap=cap, mem_total=80 * GIB)
    grant = Grant(9, 1000, 1000, "n1", "active", "offline", cards=(card,))
    usage = CardUsage(tuple(GpuProcess(pid, size) for pid, size in seen), None)
    costs = ContextCosts(512 * MIB)
    registered = Registered(uses, uses)
    return audit({U: usage}, [grant], registered, lambda pid: 9, 64 * MIB, costs.of)


def test_cost_is_what_the_driver_counts_beside_allocations() -> None:
    mine = use(used=2 * GIB + 512 * MIB, reserved=512 * MIB)
    assert measured([GpuProcess(50, 2 * GIB + 300 * MIB)], {50: mine}) == 300 * MIB
    two = use(51, used=600 * MIB, reserved=600 * MIB, contexts=2)
    seen = [GpuProcess(50, 2 * GIB + 300 * MIB), GpuProcess(51, 700 * MIB)]
    assert measured(seen, {50: mine, 51: two}) == 300 * MIB, "the process where it costs least"


def test_nothing_is_learned_where_nothing_is_known() -> None:
    seen = [GpuProcess(50, 300 * MIB)]
    assert measured(seen, {}) is None, "not registered"
    assert measured(seen, {50: use(contexts=0)}) is None
    assert measured(seen, {50: use(pending=MIB)}) is None, "a call is under way"
    assert measured([GpuProcess(50, None)], {50: use()}) is None, "the driver hides it"


@given(st.integers(-GIB, 1 << 60), st.integers(1, 1 << 20))
def test_a_learned_cost_stays_within_bounds_of_the_configured_one(found: int, mib: int) -> None:
    costs = ContextCosts(mib * MIB)
    costs.learn({(9, U): found})
    own, others = costs.of(9, U), costs.of(10, U)
    assert mib * MIB // 2 <= own <= 2 * mib * MIB
    assert own == found or not mib * MIB // 2 <= found <= 2 * mib * MIB
    assert others == min(own, mib * MIB), "the least share has room for that"


def test_cost_is_the_jobs_own_then_the_cards_then_the_configured_one() -> None:
    costs = ContextCosts(512 * MIB)
    assert costs.of(9, U) == 512 * MIB
    costs.learn({(9, U): 300 * MIB})
    assert costs.of(11, U) == 300 * MIB
    costs.learn({(10, U): 400 * MIB})
    assert (costs.of(9, U), costs.of(11, U)) == (300 * MIB, 300 * MIB), "what they began with"
    assert (costs.of(12, U), costs.of(9, "GPU-1")) == (400 * MIB, 512 * MIB)
    costs.ended(9)
    assert costs.of(9, U) == 400 * MIB


@given(st.lists(USES, max_size=5), SIZES, SIZES)
def test_no_job_may_hide_more_than_half_its_cap_as_contexts(uses, cost, cap) -> None:
    found = excused(uses, cost, cap)
    assert 0 <= found <= cap // 2
    assert found <= EXCUSED * cost * len(uses), "however many a process says it has"


@given(st.integers(1, EXCUSED), st.integers(1, GIB))
def test_contexts_that_were_reserved_at_their_cost_excuse_nothing(count: int, cost: int) -> None:
    assert excused([use(used=count * cost, reserved=count * cost, contexts=count)], cost, GIB) == 0


@given(st.integers(0, 8), st.integers(0, 1200), st.integers(0, 1200), st.integers(0, 4096))
def test_job_is_charged_what_it_holds_or_reserved_and_never_twice(
    count: int, reserved: int, true: int, allocated: int
) -> None:
    """The slot's bytes, once the process gave back what it reserved above the cost, and the
    overhead add up to what the driver counts: more only below half of the configured cost.
    """
    mine = use(
        used=(count * reserved + allocated) * MIB,
        reserved=count * reserved * MIB,
        contexts=count,
    )
    held = (count * true + allocated) * MIB
    result = look([(50, held)], [mine])
    assert result.contexts == ({(9, U): true * MIB} if count else {})
    cost = min(max(true, 256), 1024)
    kept = (count * min(reserved, cost) + allocated) * MIB
    assert kept + result.overhead[9, U] == max(kept, held)
    assert kept <= held or true < 256


@given(st.lists(st.tuples(st.integers(256, 2000), st.integers(0, 4096)), min_size=1, max_size=9))
def test_processes_that_loaded_more_than_others_are_charged_what_they_hold(
    processes: list[tuple[int, int]],
) -> None:
    """However much was reserved before the first was measured."""
    uses = [
        use(50 + i, used=(512 + size) * MIB, reserved=512 * MIB)
        for i, (_, size) in enumerate(processes)
    ]
    seen = [(50 + i, (true + size) * MIB) for i, (true, size) in enumerate(processes)]
    result = look(seen, uses, cap=80 * GIB)
    cost = min(min(true for true, _ in processes), 1024)
    kept = sum(min(512, cost) + size for _, size in processes) * MIB
    assert kept + result.overhead[9, U] == sum(size for _, size in seen)


def test_contexts_alone_are_no_finding() -> None:
    """Each was reserved at 100 MiB and takes 250: no allocation of this job was above the cap."""
    six = [use(pid, used=100 * MIB, reserved=100 * MIB) for pid in range(50, 54)]
    seen = [(pid, 250 * MIB) for pid in range(50, 54)]
    assert not look(seen, six, cap=800 * MIB).findings
    assert [f.kind for f in look([(50, 5 * GIB)], six[:1]).findings] == ["over"]


def test_job_that_says_it_has_many_contexts_is_found_above_one_and_a_half_of_its_cap() -> None:
    liar = [use(contexts=2**32 - 1)]
    assert not look([(50, GIB + GIB // 2)], liar).findings
    assert [f.kind for f in look([(50, 2 * GIB)], liar).findings] == ["over"]


def test_driver_that_hides_memory_teaches_no_cost_and_excuses_nothing_that_is_seen() -> None:
    hidden = [use(used=512 * MIB, reserved=512 * MIB, contexts=1)]
    result = look([(50, None)], hidden)
    assert result.contexts == {} and result.overhead == {(9, U): 0}
    assert [f.kind for f in look([(50, None), (51, 2 * GIB)], [*hidden, use(51)]).findings] == [
        "over"
    ]


def test_charges_are_sent_when_they_change_and_to_a_new_arbiter() -> None:
    arbiter = FakeArbiter()
    arbiter.connected = True
    charges = Charges(arbiter, ContextCosts(512 * MIB))
    charges.send({(9, U): 0})
    assert (arbiter.overheads, arbiter.contexts) == ({(9, U): 0}, {(9, U): 512 * MIB})
    charges.costs.learn({(9, U): 300 * MIB})
    charges.send({(9, U): 0})
    assert arbiter.contexts == {(9, U): 300 * MIB}
    arbiter.contexts.clear()
    charges.send({(9, U): 0})
    assert arbiter.contexts == {}
    charges.forget()
    charges.send({(9, U): 0})
    assert arbiter.contexts == {(9, U): 300 * MIB}
