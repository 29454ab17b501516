"""The live state of a node: words for tenants' states, rates, privacy, the file, mapping files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.ledger.schema import Sample
from enforcer.reporting import state as live
from enforcer.reporting.hpcmap import JobMapping, jobs_by_card
from enforcer.reporting.privacy import Privacy
from enforcer.reporting.state import Card, NodeState, Seen, StateError, Watcher
from enforcer.wire import layout
from gres.grant.store import Grant, GrantCard

SECOND = 10**9
UUID = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"
CARDS = (
    Card(UUID, 0, "h200", 80, 20, 55, driver_index=1, jobs={3: 70}),
    Card(OTHER, 1, driver_index=0),
)
CLOSED = layout.GATE_CLOSED


def grant(
    job: int = 9, uid: int = 1000, job_class: str | None = "online", uuid: str = UUID
) -> Grant:
    kind = "active" if job_class else "whole"
    card = GrantCard(uuid, 0, 0, 30 if job_class else 100, 10, 80)
    return Grant(job, uid, 100, "n1", kind, job_class, 5 * SECOND, "", (card,), "/r", "/d", "/s")  # type: ignore[arg-type]


def seen(
    job: int = 9,
    procs: int = 1,
    gate: int = 0,
    busy: bool = False,
    suspended: bool = False,
    **sample: int,
) -> Seen:
    return Seen(
        Sample(job, UUID, 1, 5, mem_used=7)._replace(**sample), procs, gate, busy, suspended
    )  # type: ignore[arg-type]


def look(watcher: Watcher, tenants: list[Seen] | None, second: float, *grants: Grant) -> NodeState:
    return watcher.sample(
        "n1", grants or (grant(),), tenants, CARDS, int(second * SECOND), int(second * SECOND)
    )


def only(state: NodeState) -> live.TenantState:
    (tenant,) = [t for card in state.cards for t in card.tenants]
    return tenant


def test_first_sample_has_no_rates_and_the_second_has():
    watcher = Watcher()
    first = only(look(watcher, [seen(busy=True, busy_ns=10)], 1))
    assert (first.share_now, first.launches_per_s, first.state) == (None, None, "running")
    then = only(look(watcher, [seen(busy_ns=10 + SECOND, launches=40)], 3))
    assert (then.share_now, then.launches_per_s, then.state) == (50.0, 20.0, "running")


@pytest.mark.parametrize(
    ("now", "word"),
    [
        ({"busy_ns": SECOND}, "running"),
        ({"busy_ns": SECOND // 10, "closed_share_ns": SECOND // 2}, "throttled"),
        ({"busy_ns": SECOND // 10, "closed_preempted_ns": SECOND // 2}, "preempted"),
        ({"busy_ns": 10}, "idle"),
        ({"gate": CLOSED | layout.GATE_WHY_PREEMPTED, "busy": True}, "preempted"),
        ({"gate": CLOSED | layout.GATE_WHY_SHARE, "busy": True}, "throttled"),
        ({"gate": CLOSED | layout.GATE_WHY_PREEMPTED}, "idle"),
        ({"suspended": True, "busy_ns": SECOND}, "suspended"),
        ({"procs": 0}, "waiting"),
    ],
)
def test_word_says_what_it_mostly_did(now, word):
    watcher = Watcher()
    look(watcher, [seen()], 1)
    assert only(look(watcher, [seen(**now)], 2)).state == word


def test_card_use_is_that_of_all_tenants_whoever_asks():
    watcher = Watcher()
    grants = (grant(1), grant(2, 7, "offline"), grant(3, 7, None, OTHER))
    for second in (1, 2):
        tenants = [seen(1, busy_ns=second * SECOND // 4), seen(2, busy_ns=second * SECOND // 2)]
        state = look(watcher, tenants, second, *grants)
    assert [card.use for card in state.cards] == [75.0, None], "whole cards are not measured"
    one = state.visible_to(1000, Privacy.of(["jobs"]))
    assert [t.job_id for t in one.cards[0].tenants] == [1] and one.cards[0].use == 75.0
    assert NodeState.from_json(state.to_json()) == state
    assert [card.use for card in look(watcher, None, 3, *grants).cards] == [None, None]


def test_restarted_arbiter_gives_no_rate_instead_of_a_wrong_one():
    watcher = Watcher()
    look(watcher, [seen(busy_ns=SECOND)], 1)
    assert only(look(watcher, [seen(boot_id=2, busy_ns=2 * SECOND)], 2)).share_now is None
    assert only(look(watcher, [seen(boot_id=2, busy_ns=SECOND)], 3)).share_now is None


@given(
    looks=st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 2), st.booleans(), st.integers(1, 2), st.booleans()
        ),
        max_size=12,
    )
)
def test_what_is_kept_of_steady_tenants_is_what_would_be_computed(
    looks: list[tuple[int, int, bool, int, bool]],
):
    keeper, before = Watcher(), None
    standing = grant()
    for second, (busy, memory, works, boot, there) in enumerate(looks, 1):
        now = seen(busy=works, busy_ns=busy * SECOND, mem_used=memory, boot_id=boot)
        got = only(look(keeper, [now] if there else [], second, standing))
        driver = None
        assert got == live.tenant_state(
            standing, standing.cards[0], now if there else None, before, SECOND, driver
        )
        before = now.sample if there else None


def test_rates_after_a_pause_cover_the_time_since_the_last_sample():
    watcher = Watcher()
    look(watcher, [seen()], 1)
    watcher.same(3 * SECOND)
    assert only(look(watcher, [seen(busy_ns=SECOND // 2)], 4)).share_now == 50.0
    assert only(look(watcher, [seen(busy_ns=SECOND)], 4)).share_now is None, "no time has passed"


def test_without_arbiter_nothing_is_measured_and_nothing_is_zero():
    state = look(Watcher(), None, 1)
    tenant = only(state)
    assert state.arbiter is False
    assert (tenant.state, tenant.share, tenant.share_now, tenant.mem_used, tenant.procs) == (
        "unknown",
        30,
        None,
        None,
        None,
    )


def test_whole_jobs_are_shown_with_the_drivers_memory():
    tenant = only(look(Watcher(), [], 1, grant(3, job_class=None)))
    assert (tenant.state, tenant.job_class, tenant.share, tenant.mem_used) == (
        "whole",
        None,
        100,
        70,
    )


def test_cards_are_in_slurms_order_with_online_first():
    state = look(Watcher(), [], 1, grant(4, job_class="offline"), grant(8), grant(5))
    assert [card.index for card in state.cards] == [0, 1]
    assert [t.job_id for t in state.cards[0].tenants] == [5, 8, 4]
    assert state.cards[0].granted_online == 60 and state.cards[1].tenants == ()


def test_card_that_nvml_does_not_name_is_shown_from_the_grant():
    state = Watcher().sample("n1", [grant()], [], (), 1, 1)
    assert [(c.uuid, c.mem_total, c.util) for c in state.cards] == [(UUID, 80, None)]


def test_text_comes_back_as_it_went_and_other_text_is_refused():
    state = look(Watcher(), [seen(busy_ns=3)], 1)
    assert NodeState.from_json(state.to_json()) == state
    newer = state.to_json().replace('"uid":', '"new":1,"uid":')
    assert NodeState.from_json(newer) == state
    for text in (
        "",
        "[]",
        "{}",
        '{"version":2}',
        '{"version":1,"node":"n","at":1,"arbiter":1,"cards":[3]}',
        "[" * 9999,
    ):
        with pytest.raises(StateError):
            NodeState.from_json(text)


@given(
    asker=st.integers(0, 5),
    owners=st.lists(st.integers(1, 5), max_size=6),
    private=st.sets(st.sampled_from(["jobs", "usage"])),
)
def test_no_user_sees_what_privatedata_hides(asker: int, owners: list[int], private: set[str]):
    privacy = Privacy.of(private, [5])
    state = Watcher().sample(
        "n1", [grant(n + 1, uid) for n, uid in enumerate(owners)], [], CARDS, 1, 1
    )
    shown = sorted(t.uid for card in state.visible_to(asker, privacy).cards for t in card.tenants)
    all_of_it = asker in (0, 5) or "jobs" not in private
    assert shown == sorted(owners if all_of_it else [uid for uid in owners if uid == asker])
    for owner in owners:
        assert privacy.sees_use(asker, owner) == (asker in (0, 5) or not private or asker == owner)


def test_file_is_replaced_in_one_step_with_its_mode(tmp_path: Path):
    path = tmp_path / "state.json"
    state = look(Watcher(), [seen()], 1)
    for mode in (0o644, 0o600):
        live.write(path, state.to_json(), mode)
        assert live.read(path) == state and path.stat().st_mode & 0o777 == mode
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]
    with pytest.raises(StateError, match="is qgpud running"):
        live.read(tmp_path / "none.json")


def test_text_that_is_written_in_parts_is_whole(tmp_path: Path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    live.write(tmp_path / "state.json", "käse" * 5, 0o644)
    assert (tmp_path / "state.json").read_text() == "käse" * 5


def test_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".state.json.{os.getpid()}.tmp").symlink_to(victim)
    live.write(tmp_path / "state.json", "x", 0o644)
    assert victim.read_text() == "mine" and (tmp_path / "state.json").read_text() == "x"


def test_mapping_has_a_file_per_card_by_the_drivers_index(tmp_path: Path):
    directory = tmp_path / "map"
    mapping = JobMapping(directory)
    state = look(
        Watcher(),
        [],
        1,
        grant(4),
        grant(12, job_class="offline"),
        grant(3, job_class=None, uuid=OTHER),
    )
    mapping.update(jobs_by_card(state))
    assert {p.name: p.read_text() for p in directory.iterdir()} == {"1": "4\n12\n", "0": "3\n"}
    before = (directory / "0").stat().st_ino
    mapping.update(
        jobs_by_card(look(Watcher(), [], 2, grant(12), grant(3, job_class=None, uuid=OTHER)))
    )
    assert (directory / "1").read_text() == "12\n" and (directory / "0").stat().st_ino == before


def test_mapping_empties_what_a_killed_daemon_left_and_keeps_foreign_files(tmp_path: Path):
    (tmp_path / "7").write_text("99\n")
    (tmp_path / "notes").write_text("mine")
    JobMapping(tmp_path).update({"0": [1]})
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "7": "",
        "notes": "mine",
        "0": "1\n",
    }
