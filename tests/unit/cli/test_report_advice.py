"""What `qgpu report` says of a job: one request with share and memory, and where memory was."""

from __future__ import annotations

from typing import Any

import pytest

from cli.report.advice import advice, advised_line
from cli.report.model import build
from enforcer.ledger.reclaims import Reclaim
from enforcer.ledger.schema import Usage
from gres.config.site import Config, parse_config
from gres.grant.store import RUN_BASE
from slurm_plugin.accounting.sacct import Detail, SacctJob

GIB, SECOND = 1 << 30, 10**9
UUID = "GPU-{}"
CONFIG = """version: 1
cluster: c
qos: {online: online, offline: offline}
limits: {max_share: 80}
models: {h200: {memory: 80GiB, reserve: 2GiB}, l4: {memory: 23GiB}}
nodes: [{names: "n[1-2]", model: h200, count: 2, files: "/dev/nvidia[0-1]"}MORE]
"""
ONE = parse_config(CONFIG.replace("MORE", "").replace(", l4: {memory: 23GiB}", ""))
AUTO = parse_config(CONFIG.replace("MORE", "").replace("2GiB}", "2GiB, idle_release: auto}"))
TWO = parse_config(
    CONFIG.replace("MORE", ', {names: n3, model: l4, count: 1, files: "/dev/nvidia0"}')
)


def row(begin: int = 0, seconds: int = 1000, **more: Any) -> Usage:
    """A grant of 40 % and 31.2 GiB, busy for 10 % of it, that held 20 GiB."""
    values: dict[str, Any] = dict.fromkeys(Usage._fields) | {
        "job_id": 12,
        "node": "n1",
        "uuid": UUID.format(0),
        "card_index": 0,
        "uid": 1000,
        "job_class": "online",
        "state": "active",
        "share": 40,
        "mem_cap": 31_948 << 20,
        "mem_total": 80 * GIB,
        "granted_at": begin * SECOND,
        "ended_at": (begin + seconds) * SECOND,
        "busy_ns": seconds * SECOND // 10,
        "busy_most_ns": SECOND,
        "launches": 9,
        "mem_peak": 20 * GIB,
        "mem_refused": 0,
        "denied": 0,
    }
    return Usage(**(values | more))


def said(
    rows: list[Usage], state: str = "COMPLETED", elapsed: int = 1000, config: Config | None = ONE
) -> list[str]:
    number = rows[0].job_id
    job = SacctJob(str(number), number, "alice", state, elapsed, ("n1",), "online", "", {})
    (report,) = build([job], rows, 99_000 * SECOND, config=config)
    return advice(report)


LESS = "job 12: it held at most 20.0 of 31.2 GiB and used at most 10 of its 40 %: --gres="
REFUSED = "job 12: 1 allocation(s) were refused at its cap of 4.0 GiB"
MORE = " or more, as it may need more after that."
NEVER = "job 12: it never used its card. Leave out --gres=qgpu if it does not need one."
SMALL = row(mem_cap=4 * GIB, mem_peak=GIB, denied=1, mem_refused=29 * GIB)
IDLE = {"launches": 0, "mem_peak": 0, "busy_ns": 0, "busy_most_ns": 0}


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([row()], f"{LESS}qgpu:15,vram:23G would do."),
        # an older ledger does not know the busiest seconds, and offline's share is no promise
        ([row(busy_most_ns=None)], None),
        ([row(job_class="offline")], None),
        (
            [row(busy_most_ns=None, mem_peak=GIB)],
            "job 12: it held at most 1.0 of 31.2 GiB: --gres=qgpu:40,vram:2G would do.",
        ),
        # half of its time on the card that others left idle
        (
            [row(busy_ns=800 * SECOND, busy_most_ns=9 * SECOND, mem_peak=GIB)],
            "job 12: it held at most 1.0 of 31.2 GiB and used 80 % of the card with its share of"
            " 40 %: --gres=qgpu:80,vram:2G would do.",
        ),
        ([row(busy_ns=900 * SECOND, busy_most_ns=9 * SECOND, mem_peak=GIB)], None),
        (
            [row(busy_ns=380 * SECOND, closed_share_ns=400 * SECOND)],
            "job 12: it used its share of 40 % and waited 40% of its time for more:"
            " --gres=qgpu:60,vram:31948M would do.",
        ),
        # two cards at once; the one that did more decides
        (
            [row(), row(uuid=UUID.format(1), card_index=1, mem_peak=28 * GIB)],
            LESS.replace("20.0", "28.0") + "qgpu:15,vram:31948M --qgpu-cards=2 would do.",
        ),
        # it never came to one of them
        (
            [row(), row(uuid=UUID.format(1), card_index=1, **IDLE)],
            [
                "job 12: it never used card 1 of n1: leave out --qgpu-cards, if it needs no more"
                " cards.",
                f"{LESS}qgpu:15,vram:23G would do.",
            ],
        ),
        # the run before needed more
        (
            [row(busy_most_ns=3 * SECOND, mem_peak=4 * GIB), row(5000, mem_peak=2 * GIB)],
            "job 12: it held at most 4.0 of 31.2 GiB: --gres=qgpu:40,vram:5G would do.",
        ),
        # it was refused more than the run after it held
        (
            [
                row(mem_cap=16 * GIB, mem_peak=GIB, denied=1, mem_refused=20 * GIB),
                row(5000, mem_peak=5 * GIB),
            ],
            LESS.replace("20.0", "5.0") + "qgpu:15,vram:23G would do.",
        ),
        # 10 % of another kind of card says nothing of this one
        ([row(mem_total=23 * GIB), row(5000)], None),
        # on its way it went to another card, and used that one only a little
        (
            [row(0, 500, ended_at=500 * SECOND), row(500, 500, card_index=1, **IDLE)],
            f"{LESS}qgpu:15,vram:23G would do.",
        ),
        ([row(**IDLE)], NEVER),
        ([row(0, 9, **IDLE)], None),
        ([row(mem_cap=3 * GIB, mem_peak=GIB // 4, share=9, busy_most_ns=0)], None),
        ([SMALL], f"{REFUSED}; with the largest it would have held 29.0 GiB: ask for"
         f" --gres=qgpu:40,vram:33G{MORE}"),
        ([SMALL._replace(mem_refused=77 * GIB)], f"{REFUSED}; with the largest it would have held"
         f" 77.0 GiB: ask for --gres=qgpu:40,vram:78G{MORE}"),
        ([SMALL._replace(mem_refused=79 * GIB)], f"{REFUSED}; with the largest it would have held"
         " 79.0 GiB, and shares have 78.0 GiB of a card: ask for --gres=gpu:1."),
        ([SMALL._replace(mem_refused=80 * GIB)], f"{REFUSED}; with the largest it would have held"
         " 80.0 GiB, and a card has 78.0 GiB for shares."),
        ([SMALL._replace(mem_refused=None)], f"{REFUSED}. How much it needed is not known. Ask for"
         " more with vram."),
        # the run before was refused more than the cap of this one
        ([SMALL, row(5000, mem_cap=8 * GIB, mem_peak=GIB)], REFUSED.replace("4.0", "8.0") +
         f"; with the largest it would have held 29.0 GiB: ask for --gres=qgpu:40,vram:33G{MORE}"),
        ([row(job_id=RUN_BASE)], LESS.replace("12", str(RUN_BASE)).replace("--gres=", "qgpu run")
         + " --share 15 --mem 23G would do."),
    ],
)  # fmt: skip
def test_one_line_names_share_and_memory(rows: list[Usage], line: str | list[str] | None) -> None:
    assert said(rows) == ([] if line is None else [line] if isinstance(line, str) else line)


def test_what_a_card_idled_is_said_once_for_all_jobs() -> None:
    jobs = [
        SacctJob(str(n), n, "alice", "RUNNING", 100, ("n1",), "offline", "", {}) for n in range(12)
    ]
    waited = {"closed_preempted_ns": 200 * SECOND, "closed_idle_ns": 100 * SECOND}
    rows = [row(job_id=n, job_class="offline", **waited) for n in range(12)]

    def told(config: Config) -> list[str]:
        lines = advice(*build(jobs, rows, 99_000 * SECOND, config=config))
        return [line for line in lines if "idle_release" in line]

    (line,) = told(ONE)
    begin = "card 0 of n1 was idle 50 % of the time that jobs 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2"
    assert line.startswith(f"{begin} more waited: idle_release. If ")
    (line,) = told(AUTO)
    assert line == f"{begin} more waited: idle_release, which is auto there."


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        ((), [f"{LESS.replace('20.0', '1.0')}qgpu:15,vram:2G would do."]),
        (
            ("gres/qgpu",),
            ["job 12: it held at most 1.0 of 31.2 GiB: --gres=qgpu:40,vram:2G would do."],
        ),
        (("gres/qgpu", "gres/vram"), []),
    ],
)
def test_what_steps_name_for_themselves_stays(parts: tuple[str, ...], lines: list[str]) -> None:
    job = SacctJob("12", 12, "alice", "COMPLETED", 1000, ("n1",), "online", "", {})
    details = {12: Detail(parts=frozenset(parts))}
    rows = [row(mem_peak=GIB)]
    assert advice(*build([job], rows, 99_000 * SECOND, details=details, config=ONE)) == lines


def test_where_cards_differ_the_model_is_named() -> None:
    assert said([row()], config=TWO) == [f"{LESS}qgpu:h200:15,vram:23G would do."]


@pytest.mark.parametrize(
    ("state", "elapsed", "less", "never"),
    [
        ("COMPLETED", 100, True, True),
        ("TIMEOUT", 100, True, True),
        ("CANCELLED by 1000", 100, False, False),
        ("CANCELLED by 1000", 600, True, True),
        ("FAILED", 1000, False, False),
        ("NODE_FAIL", 1000, False, False),
        ("PENDING", 0, False, False),
        ("REQUEUED", 100, False, False),
        ("RUNNING", 100, False, False),
        ("RUNNING", 1000, False, True),
    ],
)
def test_the_state_of_the_job_says_whether_there_is_something_to_learn(
    state: str, elapsed: int, less: bool, never: bool
) -> None:
    assert bool(said([row()], state, elapsed)) == less
    assert said([row(**IDLE)], state, elapsed) == [NEVER] * never
    assert len(said([SMALL], state, elapsed)) == 1, "a refusal is news at any time"


def test_suspended_is_a_part_of_the_time_that_it_ran() -> None:
    away = {"job_class": "offline", "closed_preempted_ns": 7_700_000_000}
    (line,) = said([row(0, 11, **away)], elapsed=9)
    assert line.startswith("job 12: online jobs suspended it for 86% of the time that it ran.")
    # of the last run alone, and of two cards that are suspended together once
    both = [row(5000, 9, uuid=UUID.format(n), **away) for n in (0, 1)]
    assert "86%" in said([row(0, 11), *both], elapsed=9)[0]


def left(at: int, **more: Any) -> Reclaim:
    """An interval of the job on the first card."""
    return Reclaim(12, UUID.format(0), 0, at * SECOND)._replace(bytes=22 * GIB, **more)


TOOK = {"leave_ns": SECOND, "return_ns": 2 * SECOND}
FAILED = "unable: lock failed"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (
            [left(10, back_at=25 * SECOND, why="job 7", result="returned", **TOOK)],
            [],
            [
                "its memory was away from its card 1 time(s), 15 s in all.",
                "22.0 GiB left card 0 of n1 at AT, for job 7: it was back after 15.0 s"
                " (leaving 1.0 s, returning 2.0 s).",
            ],
        ),
        (
            [left(10, back_at=12 * SECOND, why="moved by root", result="moved", leave_ns=SECOND)],
            [left(12, why="moved from GPU-0", back_at=20 * SECOND, result="returned", **TOOK)],
            [
                "its memory was away from its card 1 time(s), 10 s in all.",
                "22.0 GiB left card 0 of n1 at AT, as root moved it: it was back on card 1 of n1"
                " after 10.0 s (leaving 1.0 s, returning 2.0 s).",
            ],
        ),
        (
            [left(10, back_at=12 * SECOND, why="job 7", result="moved", leave_ns=SECOND)],
            [left(12, why="moved from GPU-0", leave_ns=0)],
            [
                "22.0 GiB left card 0 of n1 at AT, for job 7: it is away (leaving 1.0 s).",
            ],
        ),
        (
            [left(10, why="job 7", back_at=20 * SECOND, result=FAILED)],
            [],
            ["22.0 GiB were to leave card 0 of n1 at AT, for job 7: it stayed (unable: lock"
             " failed)."],
        ),
        (
            [left(10, why="job 7", back_at=20 * SECOND, result=FAILED, leave_ns=SECOND)],
            [],
            [
                "its memory was away from its card 1 time(s), 10 s in all.",
                "22.0 GiB left card 0 of n1 at AT, for job 7: it did not return (unable: lock"
                " failed) (leaving 1.0 s).",
            ],
        ),
        (
            [left(10, why="job 7", back_at=20 * SECOND, result="ended")],
            [],
            ["22.0 GiB were to leave card 0 of n1 at AT, for job 7: its processes ended before"
             " that."],
        ),
        (
            [left(10, why="job 7", back_at=20 * SECOND, result="undone")],
            [],
            ["22.0 GiB were to leave card 0 of n1 at AT, for job 7: it stayed."],
        ),
        (
            [left(10, why="job 7")],
            [],
            ["22.0 GiB were to leave card 0 of n1 at AT, for job 7: it is on its way."],
        ),
    ],
)  # fmt: skip
def test_each_absence_is_said_as_it_was(
    first: list[Reclaim], second: list[Reclaim], words: list[str]
) -> None:
    from datetime import datetime

    rows = [row(0, 12), row(12, 1000, card_index=1, uuid=UUID.format(1))]
    job = SacctJob("12", 12, "alice", "RUNNING", 100, ("n1",), "offline", "", {})
    away = {rows[0].key: first, rows[1].key: second}
    (report,) = build([job], rows, 99_000 * SECOND, reclaims=away)
    when = datetime.fromtimestamp(10).strftime("%Y-%m-%dT%H:%M:%S")
    assert advice(report) == [f"job 12: {line.replace('AT', when)}" for line in words]


def test_the_memory_of_two_cards_leaves_together() -> None:
    rows = [row(uuid=UUID.format(n), card_index=n) for n in (0, 1)]
    one = left(10, why="job 7", back_at=20 * SECOND, result="returned", leave_ns=SECOND)
    away = {item.key: [one] for item in rows}
    job = SacctJob("12", 12, "alice", "RUNNING", 100, ("n1",), "offline", "", {})
    (report,) = build([job], rows, 99_000 * SECOND, reclaims=away)
    count, line = advice(report)
    assert "1 time(s), 10 s" in count and "44.0 GiB left cards 0, 1 of n1" in line


def test_the_list_names_as_many_jobs_as_fit_into_its_width() -> None:
    jobs = [str(number) for number in range(1000, 1014)]
    line = advised_line(jobs, 80)
    assert len(line) <= 80 and line.endswith(",1012,1013")
    assert "next time (last 5 of 14): qgpu report 1009," in line
    assert advised_line(jobs, None).count(",") == 9
    assert advised_line(jobs, 10).endswith("(last 1 of 14): qgpu report 1013")
    assert advised_line(jobs[:1], 80) == "* what to ask for next time: qgpu report 1000"
