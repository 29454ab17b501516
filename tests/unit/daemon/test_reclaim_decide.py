"""What one decision on memory orders, case by case; the model's test has what holds over time."""

from __future__ import annotations

from enforcer.reclaim.choose import EXACT, choose
from enforcer.reclaim.decide import decide
from enforcer.reclaim.model import (
    Card,
    Claim,
    Final,
    Hold,
    Job,
    Leave,
    Order,
    Ready,
    Retry,
    Return,
    Settings,
    State,
    Want,
)

SECOND = 10**9
RULES = Settings(hysteresis_ns=10 * SECOND, slack=1)


def offline(number: int, use: int, state: State = "resident", away: int = 0) -> Job:
    """A reclaimable job on card a; a higher number is younger."""
    return Job(number, False, {"a": Hold(80, use, away)}, number, state)


def wanting(job: Job, size: int, **more: int | bool) -> Job:
    return Job(
        job.job_id,
        job.reserving,
        job.cards,
        job.since_ns,
        wants={"a": Want(size, **more)},  # type: ignore[arg-type]
    )


def orders(
    free: int, jobs: list[Job], claims: list[Claim] | None = None, now: int = 0
) -> tuple[Order, ...]:
    return decide([Card("a", free)], jobs, claims or [], now, {}, RULES).orders


def test_a_claim_waits_for_those_that_leave_and_starts_when_all_is_free() -> None:
    claim = Claim(9, {"a": 50})
    assert orders(20, [offline(1, 60)], [claim]) == (Leave(1, 9),)
    assert orders(20, [offline(1, 60, "leaving")], [claim]) == ()
    assert orders(80, [offline(1, 0, "checkpointed", 60)], [claim]) == (Ready(9),)


def test_a_claim_starts_where_nobody_could_give_more() -> None:
    """Memory of others (the driver, a program without a grant) does not stop a job."""
    assert orders(10, [Job(1, True, {"a": Hold(20, 20)})], [Claim(9, {"a": 50})]) == (Ready(9),)


def test_a_claim_counts_what_reserving_jobs_have_not_used() -> None:
    other = Job(1, True, {"a": Hold(20, 5)})
    assert orders(60, [other, offline(2, 15)], [Claim(9, {"a": 50})]) == (Leave(2, 9),)
    assert orders(65, [other, offline(2, 10)], [Claim(9, {"a": 50})]) == (Ready(9),)


def test_fewest_bytes_leave_and_the_youngest_of_equals() -> None:
    jobs = [offline(1, 30), offline(2, 20), offline(3, 20), offline(4, 70)]
    assert orders(0, jobs, [Claim(9, {"a": 20})]) == (Leave(3, 9),)
    assert {o.job_id for o in orders(0, jobs, [Claim(9, {"a": 50})])} == {1, 3}


def test_a_crowd_is_chosen_from_the_youngest_first() -> None:
    jobs = [offline(number, 1) for number in range(1, EXACT + 9)]
    chosen = {job.job_id for job in choose({"a": 3}, jobs)}
    assert chosen == {EXACT + 8, EXACT + 7, EXACT + 6}


def test_a_reserving_want_is_served_or_refused_for_good() -> None:
    online = wanting(Job(1, True, {"a": Hold(50, 10)}), 40)
    assert orders(40, [online]) == (Retry(1, "a"),)
    assert orders(10, [online, offline(2, 30)]) == (Leave(2, 1),)
    assert orders(10, [online, offline(2, 30, "leaving")]) == ()
    assert orders(10, [online]) == (Final(1, "a"),)


def test_a_want_above_the_cap_is_refused_at_once() -> None:
    online = wanting(Job(1, True, {"a": Hold(50, 11)}), 41)
    assert orders(10, [online, offline(2, 60)]) == (Final(1, "a"),)


def test_a_retry_that_was_refused_needs_more_than_was_free() -> None:
    """A driver may refuse what seems to fit: one job after the other leaves, then it stands."""
    online = Job(1, True, {"a": Hold(50, 10)})
    tried = wanting(online, 30, tried=35)
    assert orders(35, [tried, offline(2, 1), offline(3, 5)]) == (Leave(2, 1),)
    assert orders(35, [tried]) == (Final(1, "a"),)
    assert orders(36, [tried]) == (Retry(1, "a"),)
    assert orders(36, [wanting(online, 30, asked=True)]) == ()


def test_a_reclaimable_want_moves_younger_ones_only_where_that_suffices() -> None:
    old, young = wanting(offline(1, 20), 30), offline(3, 20)
    assert orders(10, [old, young]) == (Leave(3, 1),)
    assert orders(5, [old, young]) == ()
    assert orders(10, [offline(1, 20), wanting(offline(3, 20), 30)]) == ()
    reserving = Job(2, True, {"a": Hold(30, 30)})
    assert orders(10, [wanting(offline(1, 20), 30), reserving]) == ()


def test_room_must_last_and_the_first_to_leave_returns_first() -> None:
    def away(number: int, size: int, left: int) -> Job:
        return Job(number, False, {"a": Hold(80, 0, size)}, number, "checkpointed", left)

    jobs = [away(1, 60, left=7), away(2, 10, left=3)]
    first = decide([Card("a", 65)], jobs, [], 100, {}, RULES)
    assert (first.orders, first.room_since) == ((), {2: 100})
    later = decide([Card("a", 65)], jobs, [], 100 + 10 * SECOND, first.room_since, RULES)
    assert later.orders == (Return(2),)
    gone = decide([Card("a", 5)], jobs, [], 100 + 11 * SECOND, first.room_since, RULES)
    assert (gone.orders, gone.room_since) == ((), {})


def test_a_card_without_an_answer_gives_and_takes_nothing() -> None:
    job = Job(1, False, {"b": Hold(80, 0, 10)}, 1, "checkpointed")
    assert orders(80, [job], [Claim(9, {"b": 10})]) == (Ready(9),)
