"""Time that online jobs took: what a job gets back, what bounds it, and when it is requeued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from records_support import answer

from cli.jobs import extensions
from gres.config.schema import SuspendedSettings
from gres.config.site import ConfigError, parse_config
from gres.grant.extension import Action, Given, RunningJob, decide
from gres.units import Duration
from slurm_plugin import control
from slurm_plugin.control import parse_limit
from slurm_plugin.records import SlurmError

EXTEND = SuspendedSettings(extend_time=True)
JOB = RunningJob(7, "offline", start=1000, limit_s=600, most_s=86400)


def look(
    job: RunningJob, lost: float, given: Given | None, rule: SuspendedSettings = EXTEND, **more: int
) -> tuple[Action | None, Given]:
    return decide(job, lost, given, rule, more.get("now", job.start + 60), more.get("ahead", 0))


def limited(job: RunningJob, limit: int) -> RunningJob:
    return RunningJob(job.job_id, job.qos, job.start, limit, job.most_s)


def test_the_limit_grows_by_what_was_lost_in_whole_minutes_and_once() -> None:
    action, given = look(JOB, 61, None)
    assert action == Action("extend", 7, 720) and given == Given(1000, given_s=120, suspended_s=61)
    assert look(limited(JOB, 720), 61, given) == (None, given)
    assert look(limited(JOB, 720), 119, given)[0] is None, "two minutes were given already"
    assert look(limited(JOB, 720), 121, given)[0] == Action("extend", 7, 780)


def test_a_foreign_change_stays() -> None:
    given = Given(1000, given_s=120, suspended_s=61)
    assert look(limited(JOB, 3600), 130, given)[0] == Action("extend", 7, 3660)


def test_a_job_that_lost_nothing_gets_nothing() -> None:
    assert look(JOB, 0, None) == (None, Given(1000))


def test_a_job_near_its_limit_gets_time_until_the_next_pass_once() -> None:
    action, given = look(JOB, 120, None, now=1000 + 590, ahead=300)
    assert action == Action("extend", 7, 600 + 120 + 300)
    # it was suspended all the time since then, and is near its limit again: what it lost, and the
    # same ahead
    action, given = look(limited(JOB, 1020), 420, given, now=1000 + 890, ahead=300)
    assert action == Action("extend", 7, 600 + 420 + 300)
    assert look(limited(JOB, 1320), 420, given, now=1000 + 1300, ahead=300)[0] is None, (
        "it runs now"
    )


@pytest.mark.parametrize(("most", "wanted"), [(660, 660), (600, None), (500, None), (None, 720)])
def test_the_partition_bounds_it(most: int | None, wanted: int | None) -> None:
    job = RunningJob(7, "offline", 1000, 600, most)
    action, given = look(job, 120, None)
    assert action == (Action("extend", 7, wanted) if wanted else Action("bounded", 7))
    if not wanted:
        assert look(job, 120, given)[0] is None, "said once"


def test_without_a_limit_there_is_nothing_to_extend() -> None:
    assert look(RunningJob(7, "offline", 1000, None), 5000, None)[0] is None


def test_a_job_that_lost_too_much_is_requeued_and_begins_anew() -> None:
    rule = SuspendedSettings(extend_time=True, max_suspended=Duration(100 * 10**9))
    assert look(JOB, 99, None, rule)[0] == Action("extend", 7, 720)
    action, given = look(JOB, 101, Given(1000, 120, 99), rule)
    assert action == Action("requeue", 7) and given.requeued == 1
    again = RunningJob(7, "offline", start=5000, limit_s=600)
    action, given = look(again, 10, given, rule)
    assert action == Action("extend", 7, 660), "nothing of the run before counts"
    assert given == Given(5000, 60, 10, requeued=1)


def test_texts_of_slurm() -> None:
    assert [parse_limit(text) for text in ("10:00", "1:00:00", "2-03:04:05", "UNLIMITED")] == [
        600,
        3600,
        183845,
        None,
    ]
    rows = [
        {"%A": "7", "%q": "offline", "%l": "10:00", "%S": "1000", "%P": "gpu"},
        {"%A": "8", "%q": "offline", "%l": "UNLIMITED", "%S": "N/A", "%P": "gpu"},
        {"%A": "9", "%q": "online", "%l": "10:00", "%S": "1000", "%P": "gpu"},
    ]
    assert control.running(["offline"], slurm(rows)) == [JOB]
    assert control.partitions(slurm(rows)) == {"gpu": 86400, "free": None}
    for bad in ({"%A": "x"}, {"%l": "10"}):
        with pytest.raises(SlurmError):
            control.running(["offline"], slurm([rows[0] | bad]))
    with pytest.raises(SlurmError):
        control.running(["offline"], lambda _: "slurm_load_jobs error: x")


def slurm(rows: list[dict[str, str]]) -> Callable[[Sequence[str]], str]:
    """A cluster with these jobs and two partitions."""
    partitions = [{"%R": "gpu", "%l": "1-00:00:00"}, {"%R": "free", "%l": "infinite"}]
    return lambda command: answer(command, partitions if command[0] == "sinfo" else rows)


def test_the_file_keeps_what_is_young_and_is_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "extensions.json"
    assert extensions.load(path) == {}
    new = Given(2 * 10**9, 60, 50, 0, 1)
    extensions.save(path, {1: Given(5), 2: new}, 10**8, 0o644)
    assert extensions.load(path) == {2: new}
    path.write_text("{}")
    with pytest.raises(ValueError, match="cannot be used"):
        extensions.load(path)
    assert extensions.known(path)[1] and extensions.known(None) == ({}, [])


CONFIG = """version: 1
cluster: one
qos: {{online: online, offline: offline}}
default_class: {default}
suspended: {{{suspended}}}
models: {{h200: {{memory: 80GiB}}}}
nodes: [{{names: n1, model: h200, count: 1, files: /dev/nvidia0}}]
"""


@pytest.mark.parametrize(
    ("suspended", "default", "says"),
    [
        (
            "online: {extend_time: true}",
            "offline",
            "'online', which is online: only offline jobs are suspended",
        ),
        ("other: {extend_time: true}", "null", "'other', which has no class"),
        ("offline: {}", "offline", "nothing is asked for"),
        ("offline: {max_suspended: 0s}", "offline", "below 1s"),
        ("offline: {extend: true}", "offline", "did you mean extend_time?"),
    ],
)
def test_settings_that_cannot_be_meant(suspended: str, default: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        parse_config(CONFIG.format(suspended=suspended, default=default))


def test_settings() -> None:
    found = parse_config(
        CONFIG.format(suspended="other: {extend_time: true, max_suspended: 4h}", default="offline")
    )
    assert found.suspended["other"].max_suspended == Duration(4 * 3600 * 10**9)
