"""Which jobs that left return, in what order, and what room they need."""

from __future__ import annotations

from dataclasses import replace

from enforcer.reclaim.decide import decide
from enforcer.reclaim.model import Card, Decision, Hold, Job, Return, Room, Settings, State

SECOND = 10**9
RULES = Settings(hysteresis_ns=10 * SECOND)


def away(number: int, size: int, left: int = 0) -> Job:
    """A job that left card a with so much."""
    return Job(number, False, {"a": Hold(80, 0, size)}, number, "checkpointed", left)


def room(free: int, *jobs: Job) -> set[int]:
    """Those for which there is room."""
    return set(decide([Card("a", free)], jobs, [], 0, {}, RULES).rooms)


def test_room_must_last_and_the_first_to_leave_returns_first() -> None:
    jobs = [away(1, 60, left=7), away(2, 10, left=3)]
    first = decide([Card("a", 65)], jobs, [], 100, {}, RULES)
    assert (first.orders, first.rooms) == ((), {2: Room(100)})
    later = decide([Card("a", 65)], jobs, [], 100 + 10 * SECOND, first.rooms, RULES)
    assert (later.orders, later.rooms) == ((Return(2),), {2: Room(100)}), "and again if it must"
    gone = decide([Card("a", 5)], jobs, [], 100 + 11 * SECOND, first.rooms, RULES)
    assert (gone.orders, gone.rooms) == ((), {})


def test_a_job_returns_once_all_its_cards_have_room() -> None:
    holds = {"a": Hold(80, 0, 20), "b": Hold(80, 0, 20)}
    job = Job(1, False, holds, 1, "checkpointed")
    for free_a, free_b, room in ((20, 20, {1: Room(5)}), (19, 20, {}), (20, 19, {})):
        cards = [Card("a", free_a), Card("b", free_b)]
        assert decide(cards, [job], [], 5, {}, RULES).rooms == room
    assert decide([Card("a", 80)], [job], [], 5, {}, RULES).rooms == {}


def test_a_return_needs_what_it_took_away_beside_what_is_kept() -> None:
    online = Job(9, True, {"a": Hold(50, 20)})
    assert room(59, online, away(1, 30)) == set()
    assert room(60, online, away(1, 30)) == {1}
    assert room(0, Job(2, False, {"a": Hold(80, 30)}, 2, "leaving"), away(1, 30)) == set()
    assert room(25, away(1, 10), away(2, 10)) == {1, 2}


def test_only_what_is_away_returns() -> None:
    """What an operation moves is not ordered anything; nor is what holds its memory."""
    states: tuple[State, ...] = ("resident", "leaving", "returning", "unable")
    for state in states:
        assert room(80, replace(away(1, 10), state=state)) == set()


def test_all_cards_are_closed_behind_the_first_that_has_no_room() -> None:
    assert room(50, away(1, 60, left=3), away(2, 10, left=7)) == set()
    both = {"a": Hold(80, 0, 60), "b": Hold(80, 0, 10)}
    first = Job(1, False, both, 1, "checkpointed", 3)
    other = Job(2, False, {"b": Hold(80, 0, 10)}, 2, "checkpointed", 7)
    cards = [Card("a", 50), Card("b", 80)]
    assert decide(cards, [first, other], [], 0, {}, RULES).rooms == {}


def test_room_that_lasted_is_not_waited_with_for_one_that_has_room_too() -> None:
    """The first to leave may be away last: it had more to move."""
    jobs, rooms = [away(1, 60, left=3), away(2, 10, left=7)], {1: Room(SECOND), 2: Room(0)}
    found = decide([Card("a", 70)], jobs, [], 10 * SECOND, rooms, RULES)
    assert (found.orders, found.rooms) == ((Return(2),), rooms)
    short = decide([Card("a", 69)], jobs, [], 10 * SECOND, rooms, RULES)
    assert (short.orders, short.rooms) == ((), {1: Room(SECOND)}), "that room is not taken"


def test_of_jobs_that_left_at_once_the_lower_number_returns_first() -> None:
    assert room(30, away(2, 30, left=5), away(1, 30, left=5)) == {1}
    assert room(30, away(2, 30, left=4), away(1, 30, left=5)) == {2}


def two_cards(a: int, b: int, job: Job, now: int, rooms: dict[int, Room]) -> Decision:
    return decide([Card("a", a), Card("b", b)], [job], [], now, rooms, RULES)


def test_a_job_returns_to_another_card_only_where_its_own_has_no_room() -> None:
    hold = {"a": Hold(80, 0, 50)}
    stays = Job(1, False, hold, 1, "checkpointed", 3)
    moves = replace(stays, elsewhere=("b", "c"))
    assert two_cards(40, 90, stays, 0, {}).rooms == {}
    assert two_cards(60, 90, moves, 0, {}).rooms == {1: Room(0)}
    found = two_cards(40, 90, moves, 7, {})
    assert found.rooms == {1: Room(7, "b")}
    later = 7 + 10 * SECOND
    assert two_cards(40, 90, moves, later, dict(found.rooms)).orders == (Return(1, "b"),)
    assert two_cards(60, 90, moves, later, dict(found.rooms)).rooms == {1: Room(later)}
    # what reserving jobs have not used of the other card is theirs
    other = Job(2, True, {"b": Hold(50, 5)})
    assert decide([Card("a", 0), Card("b", 90)], [moves, other], [], 0, {}, RULES).rooms == {}


def test_the_fuller_of_two_other_cards_is_not_chosen_and_the_choice_stands() -> None:
    cards = [Card("a", 0), Card("b", 60), Card("c", 70)]
    job = Job(1, False, {"a": Hold(80, 0, 50)}, 1, "checkpointed", 3, elsewhere=("b", "c"))
    assert decide(cards, [job], [], 0, {}, RULES).rooms == {1: Room(0, "c")}
    assert decide(cards, [job], [], 5, {1: Room(0, "b")}, RULES).rooms == {1: Room(0, "b")}


def test_a_job_that_root_wants_elsewhere_returns_nowhere_else() -> None:
    job = Job(1, False, {"a": Hold(80, 0, 50)}, 1, "checkpointed", 3, wanted="b")
    assert two_cards(90, 40, job, 0, {}).rooms == {}
    assert two_cards(90, 60, job, 0, {}).rooms == {1: Room(0, "b")}


def test_one_that_waits_for_another_card_closes_it_for_those_that_left_later() -> None:
    first = Job(1, False, {"a": Hold(80, 0, 50)}, 1, "checkpointed", 3, wanted="b")
    later = Job(2, False, {"b": Hold(80, 0, 10)}, 2, "checkpointed", 4)
    found = decide([Card("a", 90), Card("b", 40)], [first, later], [], 0, {}, RULES)
    assert found.rooms == {}
