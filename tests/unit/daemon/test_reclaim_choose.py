"""Which jobs leave: the fewest bytes that suffice; of equals, and of a crowd, the youngest."""

from __future__ import annotations

from enforcer.reclaim.choose import choose
from enforcer.reclaim.model import Hold, Job


def job(number: int, a: int = 0, b: int = 0, since: int | None = None) -> Job:
    """A job that holds so much of each card; a higher number is younger."""
    holds = {"a": Hold(80, a), "b": Hold(80, b)}
    return Job(number, False, holds, number if since is None else since)


def chosen(short: dict[str, int], *jobs: Job) -> set[int]:
    return {job.job_id for job in choose(short, jobs)}


def crowd(first: int) -> list[Job]:
    """Thirteen jobs with one byte of card a each: too many to compare all choices."""
    return [job(number, a=1) for number in range(first, first + 13)]


# ---- up to twelve: all choices are compared -----------------------------------------------------


def test_bytes_of_other_cards_count_too() -> None:
    """A job leaves as a whole, from all its cards."""
    assert chosen({"a": 20}, job(1, a=20, b=30), job(2, a=40)) == {2}
    assert chosen({"a": 20}, job(1, a=20, b=10), job(2, a=40)) == {1}


def test_each_card_gets_what_it_lacks() -> None:
    jobs = job(1, a=30), job(2, b=30), job(3, a=10, b=10)
    assert chosen({"a": 20, "b": 20}, *jobs) == {1, 2}
    assert chosen({"a": 10, "b": 10}, *jobs) == {3}
    assert chosen({"b": 20}, *jobs) == {2}


def test_all_leave_where_all_together_do_not_suffice() -> None:
    jobs = job(1, a=30), job(2, a=10, b=30)
    assert chosen({"a": 41}, *jobs) == {1, 2}
    assert chosen({"a": 80, "b": 30}, *jobs) == {1, 2}
    assert chosen({"a": 5, "b": 80}, *jobs) == {2}


def test_nobody_leaves_where_nothing_is_lacking_or_nothing_is_held() -> None:
    assert chosen({"a": 0}, job(1, a=30)) == set()
    assert chosen({"a": -5}, job(1, a=30)) == set()
    assert chosen({"a": 20}, job(1, b=30)) == set()
    assert chosen({"a": 20}) == set()


def test_a_job_without_bytes_there_stays() -> None:
    assert chosen({"a": 20}, job(1, a=30), job(2)) == {1}
    assert chosen({"a": 20}, job(1, a=30), job(2, b=1)) == {1}


def test_of_equals_the_youngest_leave_and_the_oldest_of_all_stays() -> None:
    assert chosen({"a": 20}, job(1, a=20), job(2, a=20)) == {2}
    assert chosen({"a": 20}, job(1, a=20, since=9), job(2, a=20)) == {1}
    pairs = job(1, a=10), job(2, a=15), job(3, a=15), job(4, a=20)
    assert chosen({"a": 30}, *pairs) == {2, 3}


def test_of_jobs_that_came_at_once_the_higher_number_leaves() -> None:
    assert chosen({"a": 20}, job(1, a=20, since=5), job(2, a=20, since=5)) == {2}
    assert chosen({"a": 20}, job(2, a=20, since=5), job(1, a=20, since=5)) == {2}


# ---- more: the youngest first -------------------------------------------------------------------


def test_from_thirteen_jobs_on_the_youngest_leave() -> None:
    few = [job(number, a=1) for number in range(1, 11)]
    twelve = [*few, job(11, a=10), job(12, a=40)]
    assert chosen({"a": 10}, *twelve) == {11}
    assert chosen({"a": 10}, *twelve, job(13), job(14, b=40)) == {11}, "these two hold nothing"
    assert chosen({"a": 10}, *few, job(11, a=10), job(12, a=1), job(13, a=40)) == {13}


def test_a_crowd_leaves_until_it_suffices() -> None:
    jobs = crowd(1)
    assert chosen({"a": 3}, *jobs) == {11, 12, 13}
    assert chosen({"a": 1}, *jobs, job(20, a=1, since=0)) == {13}
    same = [job(number, a=1, since=5) for number in (3, 1, 2, *range(4, 14))]
    assert chosen({"a": 2}, *same) == {12, 13}


def test_of_a_crowd_those_stay_that_would_free_another_card() -> None:
    """The next youngest holds only what is enough by then."""
    jobs = [*crowd(1), job(30, b=10), job(31, a=10), job(32, a=20)]
    assert chosen({"a": 10, "b": 10}, *jobs) == {30, 32}


def test_of_a_crowd_those_stay_that_are_not_needed_the_largest_first() -> None:
    jobs = [*crowd(1), job(30, a=20), job(31, a=12), job(32, a=10)]
    assert chosen({"a": 30}, *jobs) == {30, 32}
    assert chosen({"a": 20}, *crowd(1), job(30, a=20), job(31, a=19)) == {30}
