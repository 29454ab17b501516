"""What one decision on memory orders, case by case; the model's test has what holds over time."""

from __future__ import annotations

from dataclasses import replace

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
    Room,
    Settings,
    State,
    Want,
)

SECOND = 10**9
RULES = Settings(hysteresis_ns=10 * SECOND, slack=1)


def offline(number: int, use: int, state: State = "resident", away: int = 0) -> Job:
    """A reclaimable job on card a; a higher number is younger."""
    return Job(number, False, {"a": Hold(80, use, away)}, number, state)


def wanting(job: Job, size: int, tried: int = -1, asked: bool = False) -> Job:
    """The same job with an allocation that waits on card a."""
    return replace(job, wants={"a": Want(size, tried, asked)})


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


def test_a_reserving_want_is_served_or_refused_for_good() -> None:
    online = wanting(Job(1, True, {"a": Hold(50, 10)}), 40)
    assert orders(40, [online]) == (Retry(1, "a"),)
    assert orders(10, [online, offline(2, 30)]) == (Leave(2, 1),)
    assert orders(10, [online, offline(2, 30, "leaving")]) == ()
    assert orders(10, [online]) == (Final(1, "a"),)


def test_a_want_above_the_cap_is_refused_at_once() -> None:
    online = wanting(Job(1, True, {"a": Hold(50, 11)}), 41)
    assert orders(10, [online, offline(2, 60)]) == (Final(1, "a"),)
    young = offline(2, 60)
    assert orders(80, [wanting(offline(1, 50), 32), young]) == (Final(1, "a"),)
    assert orders(80, [wanting(offline(1, 50), 31), young]) == (Retry(1, "a"),)


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


def test_a_card_without_an_answer_gives_and_takes_nothing() -> None:
    job = Job(1, False, {"b": Hold(80, 0, 10)}, 1, "checkpointed")
    assert orders(80, [job], [Claim(9, {"b": 10})]) == (Ready(9),)


# ---- who comes first ----------------------------------------------------------------------------


def test_wants_of_reserving_jobs_come_before_claims() -> None:
    online = wanting(Job(1, True, {"a": Hold(40)}), 40)
    found = orders(40, [online, offline(2, 30)], [Claim(9, {"a": 30})])
    assert found == (Retry(1, "a"), Leave(2, 9))


def test_claims_come_before_wants_of_reclaimable_jobs() -> None:
    assert orders(30, [wanting(offline(1, 0), 30)], [Claim(9, {"a": 30})]) == (Ready(9),)


def test_wants_of_reclaimable_jobs_come_before_returns() -> None:
    jobs = [wanting(offline(1, 10), 30), offline(2, 0, "checkpointed", 30)]
    found = decide([Card("a", 30)], jobs, [], 100 * SECOND, {2: Room(0)}, RULES)
    assert (found.orders, found.rooms) == ((Retry(1, "a"),), {})


def test_the_first_claim_comes_first() -> None:
    first, later = Claim(9, {"a": 50}, since_ns=1), Claim(8, {"a": 50}, since_ns=2)
    assert orders(50, [offline(1, 30)], [later, first]) == (Ready(9), Leave(1, 8))
    at_once = [Claim(9, {"a": 50}), Claim(8, {"a": 50})]
    assert orders(50, [offline(1, 30)], at_once) == (Ready(8), Leave(1, 9))


def test_the_oldest_reclaimable_job_comes_first() -> None:
    old = wanting(replace(offline(7, 0), since_ns=2), 30)
    young = wanting(replace(offline(1, 0), since_ns=5), 30)
    assert orders(30, [young, old]) == (Retry(7, "a"),)
    at_once = [replace(job, since_ns=5) for job in (old, young)]
    assert orders(30, at_once) == (Retry(1, "a"),)


def test_the_oldest_reserving_job_comes_first() -> None:
    first, second = (wanting(Job(n, True, {"a": Hold(40)}, n), 40) for n in (1, 2))
    assert orders(40, [second, first, offline(3, 40)]) == (Retry(1, "a"), Leave(3, 2))


def test_wants_on_several_cards_are_answered_in_a_fixed_order() -> None:
    job = Job(1, True, {"a": Hold(9), "b": Hold(9)}, wants={"b": Want(9), "a": Want(9)})
    assert two_cards(9, 9, job) == (Retry(1, "a"), Retry(1, "b"))


# ---- nothing is promised twice ------------------------------------------------------------------


def test_two_claims_do_not_count_on_the_same_bytes() -> None:
    claims = [Claim(8, {"a": 50}), Claim(9, {"a": 50})]
    assert orders(0, [offline(1, 50), offline(2, 50)], claims) == (Leave(2, 8), Leave(1, 9))
    assert orders(50, [offline(1, 50)], claims) == (Ready(8), Leave(1, 9))


def test_what_one_claim_makes_leave_beyond_its_need_serves_the_next() -> None:
    claims = [Claim(8, {"a": 50}), Claim(9, {"a": 20})]
    assert orders(0, [offline(1, 80), offline(2, 10)], claims) == (Leave(1, 8),)


def test_a_claim_takes_its_cap_and_no_more() -> None:
    """What is kept for those that run is kept once."""
    jobs = [Job(1, True, {"a": Hold(20)}), offline(2, 5)]
    claims = [Claim(8, {"a": 20}), Claim(9, {"a": 20})]
    assert orders(60, jobs, claims) == (Ready(8), Ready(9))


def test_what_a_returning_job_takes_is_not_free() -> None:
    claim = Claim(9, {"a": 40})
    assert orders(50, [offline(1, 0, "returning", 30)], [claim]) == ()
    assert orders(50, [offline(1, 10, "returning", 30)], [claim]) == ()
    assert orders(60, [offline(1, 10, "returning", 30)], [claim]) == (Ready(9),)
    more_than_before = offline(1, 30, "returning", 20)
    assert orders(50, [more_than_before], [Claim(9, {"a": 55})]) == ()


def test_what_leaves_already_is_awaited_and_only_the_rest_leaves() -> None:
    claim, resident = Claim(9, {"a": 50}), [offline(2, 30), offline(3, 50)]
    for state in ("leaving", "unable"):
        assert orders(0, [offline(1, 50, state)], [claim]) == ()
        assert orders(0, [offline(1, 20, state), *resident], [claim]) == (Leave(2, 9),)
        online = wanting(Job(9, True, {"a": Hold(50)}), 50)
        assert orders(0, [offline(1, 20, state), *resident, online]) == (Leave(2, 9),)


def test_only_jobs_on_the_card_can_leave() -> None:
    """The others move already, are away, or hold nothing there."""
    claim = Claim(9, {"a": 60})
    assert orders(10, [offline(1, 20, "returning", 50)], [claim]) == ()
    for state in ("leaving", "unable"):
        assert orders(0, [offline(1, 50, state)], [claim]) == ()
    assert orders(10, [offline(1, 20, "checkpointed", 60)], [claim]) == (Ready(9),)
    assert orders(10, [offline(1, 0)], [claim]) == (Ready(9),)


def test_an_allocation_in_flight_is_not_asked_again_and_moves_nobody() -> None:
    online = wanting(Job(1, True, {"a": Hold(50, 10)}), 40, asked=True)
    assert orders(10, [online, offline(2, 30)]) == ()
    old = wanting(offline(1, 20), 30, asked=True)
    assert orders(10, [old, offline(2, 30)]) == ()


def test_a_job_that_must_leave_gets_nothing_more() -> None:
    """Else it would make a third one leave for what it is about to give up."""
    jobs = [wanting(offline(1, 30), 10), offline(2, 20)]
    assert orders(5, jobs, [Claim(9, {"a": 30})]) == (Leave(1, 9),)


def test_a_job_that_is_not_on_the_card_gets_nothing_more() -> None:
    for state in ("leaving", "returning", "checkpointed", "unable"):
        assert orders(80, [wanting(offline(1, 0, state), 10)]) == ()


# ---- what is kept for reserving jobs ------------------------------------------------------------


def test_what_a_reserving_job_asks_for_is_no_longer_kept() -> None:
    online = wanting(Job(1, True, {"a": Hold(40)}), 40)
    claim = Claim(9, {"a": 40})
    assert orders(80, [online, offline(2, 5)], [claim]) == (Retry(1, "a"), Ready(9))
    half = wanting(Job(1, True, {"a": Hold(40)}), 20)
    found = orders(60, [half, offline(2, 20)], [Claim(9, {"a": 30})])
    assert found == (Retry(1, "a"), Leave(2, 9))


def test_the_slack_of_a_cap_is_granted_but_not_kept() -> None:
    """A process may hold a little more than its cap: nothing less is kept for it than nothing."""
    edge = wanting(Job(1, True, {"a": Hold(50, 10)}), 41)
    assert orders(60, [edge]) == (Retry(1, "a"),)
    found = orders(60, [edge, offline(2, 20)], [Claim(9, {"a": 20})])
    assert found == (Retry(1, "a"), Leave(2, 9))
    above = Job(1, True, {"a": Hold(50, 51)})
    assert orders(19, [above, offline(2, 5)], [Claim(9, {"a": 20})]) == (Leave(2, 9),)


def test_a_reserving_want_does_not_wait_for_what_is_kept() -> None:
    """What is kept includes its own part; the caps of all fit beside each other."""
    online = wanting(Job(1, True, {"a": Hold(60)}), 40)
    assert orders(40, [online, offline(2, 20)]) == (Retry(1, "a"),)
    assert orders(20, [online, offline(2, 20), offline(3, 40)]) == (Leave(2, 1),)


def test_a_reserving_want_moves_older_jobs_too() -> None:
    online = wanting(Job(5, True, {"a": Hold(50)}, since_ns=5), 30)
    assert orders(0, [offline(1, 30), online]) == (Leave(1, 5),)


def test_a_reclaimable_want_leaves_alone_what_is_kept() -> None:
    online = Job(1, True, {"a": Hold(30)})
    assert orders(50, [online, wanting(offline(2, 20), 30)]) == ()
    assert orders(60, [online, wanting(offline(2, 20), 30)]) == (Retry(2, "a"),)
    assert orders(50, [online, wanting(offline(2, 20), 30), offline(3, 9)]) == ()
    assert orders(50, [online, wanting(offline(2, 20), 30), offline(3, 10)]) == (Leave(3, 2),)


# ---- reclaimable jobs among each other ----------------------------------------------------------


def test_a_reclaimable_want_waits_for_what_leaves_already() -> None:
    old = wanting(offline(1, 20), 30)
    assert orders(0, [old, offline(2, 30, "leaving")]) == ()
    young = [offline(3, 10), offline(4, 30)]
    assert orders(0, [old, offline(2, 20, "leaving"), *young]) == (Leave(3, 1),)


def test_a_reclaimable_want_that_was_refused_again_needs_more() -> None:
    old = wanting(offline(1, 20), 30, tried=35)
    assert orders(35, [old]) == ()
    assert orders(36, [old]) == (Retry(1, "a"),)
    assert orders(10, [old, offline(2, 25)]) == ()
    assert orders(10, [old, offline(2, 26)]) == (Leave(2, 1),)


def test_what_one_reclaimable_job_is_promised_no_other_counts_on() -> None:
    old, young = wanting(offline(1, 0), 30), wanting(offline(2, 0), 30)
    assert orders(30, [old, young]) == (Retry(1, "a"),)
    middle = wanting(offline(3, 0), 20)
    found = orders(0, [old, middle, offline(5, 30), offline(6, 20)])
    assert found == (Leave(5, 1), Leave(6, 3))


def test_a_reclaimable_job_that_waits_in_vain_stops_no_other() -> None:
    old, young = wanting(offline(1, 0), 60), wanting(offline(2, 0), 10)
    assert orders(10, [old, young]) == (Retry(2, "a"),)


def test_of_jobs_that_came_at_once_the_higher_number_is_younger() -> None:
    low, high = (replace(offline(number, 30), since_ns=5) for number in (1, 2))
    assert orders(0, [wanting(low, 30), high]) == (Leave(2, 1),)
    assert orders(0, [low, wanting(high, 30)]) == ()


def test_who_came_first_is_the_older_whatever_its_number() -> None:
    early, late = replace(offline(7, 30), since_ns=2), replace(offline(1, 30), since_ns=5)
    assert orders(0, [wanting(early, 30), late]) == (Leave(1, 7),)
    assert orders(0, [early, wanting(late, 30)]) == ()


# ---- several cards ------------------------------------------------------------------------------


def spread(number: int, state: State = "resident", **uses: int) -> Job:
    """A reclaimable job on the cards that are named."""
    return Job(number, False, {uuid: Hold(80, use) for uuid, use in uses.items()}, number, state)


def two_cards(
    free_a: int, free_b: int, *jobs: Job, claims: tuple[Claim, ...] = ()
) -> tuple[Order, ...]:
    cards = [Card("a", free_a), Card("b", free_b)]
    return decide(cards, jobs, claims, 0, {}, RULES).orders


def test_a_claim_on_two_cards_makes_jobs_of_each_leave() -> None:
    claim = Claim(9, {"a": 50, "b": 50})
    assert two_cards(10, 30, spread(1, a=0, b=50), claims=(claim,)) == (Leave(1, 9),)
    found = two_cards(0, 0, spread(1, a=50), spread(2, b=50), claims=(claim,))
    assert set(found) == {Leave(1, 9), Leave(2, 9)}
    assert two_cards(50, 0, spread(1, a=50), spread(2, b=50), claims=(claim,)) == (Leave(2, 9),)


def test_a_claim_waits_while_one_of_its_cards_may_gain() -> None:
    claim = Claim(9, {"a": 50, "b": 50})
    assert two_cards(10, 0, spread(1, "leaving", b=50), claims=(claim,)) == ()
    assert two_cards(50, 10, spread(1, a=20), claims=(claim,)) == (Ready(9),)


def test_bytes_on_another_card_do_not_serve_a_want() -> None:
    old = wanting(spread(1, a=20), 30)
    assert two_cards(20, 0, old, spread(2, b=50)) == ()
    assert two_cards(20, 0, old, spread(2, a=5, b=50)) == ()
    assert two_cards(20, 0, old, spread(2, a=10, b=50)) == (Leave(2, 1),)


def test_a_card_without_an_answer_does_not_hide_the_others() -> None:
    half = {"gone": Hold(20), "a": Hold(20)}
    claim = [Claim(9, {"a": 50})]
    assert orders(60, [Job(1, True, half), offline(2, 15)], claim) == (Leave(2, 9),)
    both = {"gone": Hold(80, 10), "a": Hold(80, 50)}
    assert orders(0, [Job(1, False, both, 1)], claim) == (Leave(1, 9),)


def test_a_want_on_a_card_that_is_not_the_jobs_or_does_not_answer_waits() -> None:
    elsewhere = Job(1, True, {"a": Hold(80)}, wants={"b": Want(10)})
    assert two_cards(80, 80, elsewhere) == ()
    silent = Job(1, True, {"gone": Hold(80)}, wants={"gone": Want(10)})
    assert orders(80, [silent]) == ()
