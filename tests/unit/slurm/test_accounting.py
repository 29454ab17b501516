"""One contract for both ways to Slurm's accounting, with recorded answers; and which of them is
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from records_support import recorded
from records_support import sacct as fake_sacct

from slurm_plugin import records
from slurm_plugin.accounting import sacct
from slurm_plugin.accounting import source as accounting
from slurm_plugin.accounting.pyslurm import Pyslurm, fits, job_of
from slurm_plugin.accounting.sacct import SacctJob, Window
from slurm_plugin.accounting.source import Accounting, CommandLine, choose, major
from slurm_plugin.records import SlurmError

CASES = Path(__file__).parents[2] / "cases"
TEXT = (CASES / "sacct-22.05.txt").read_text()
ANSWERS: list[dict[str, Any]] = yaml.safe_load((CASES / "pyslurm-25.11.yaml").read_text())
# db.Job's attributes that may be used; asking for another one fails the test.
KNOWN = (
    "id",
    "array_id",
    "array_task_id",
    "array_tasks_waiting",
    "array_tasks_parallel",
    "cancelled_by",
    "heterogeneous_id",
    "heterogeneous_offset",
    "user_name",
    "state",
    "elapsed_time",
    "nodelist",
    "qos",
    "partition",
    "name",
    "account",
    "start_time",
    "end_time",
    "submit_time",
    "allocated_tres",
)


class Tres:
    """db.TrackableResources: plain attributes, and gres by name."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.cpu = self.mem = self.node = self.billing = None
        self.gres = {}
        for name, count in counts.items():
            if name.startswith("gres/"):
                self.gres[name.removeprefix("gres/")] = SimpleNamespace(count=count)
            else:
                setattr(self, name, SimpleNamespace(count=count))


def raw(**values: Any) -> Any:
    """A db.Job; what is not told is None, as there."""
    given = {"start_time": 1000, "end_time": 1010, "submit_time": 900, **values}
    if "tres" in given:
        given["allocated_tres"] = Tres(given.pop("tres"))
    assert set(given) <= set(KNOWN)
    return SimpleNamespace(**dict.fromkeys(KNOWN) | given)


@dataclass
class Filter:
    """db.JobFilter takes these words and no other."""

    ids: Any = None
    start_time: Any = None
    end_time: Any = None
    users: Any = None
    accounts: Any = None
    qos: Any = None
    truncate_time: Any = None


class Database:
    """pyslurm.db of a cluster with the recorded jobs; remembers what was asked."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.asked: list[Filter] = []
        self.JobFilter = Filter  # its words are attributes of the class, as there
        self.Job = SimpleNamespace(allocated_tres=property())
        self.Jobs = SimpleNamespace(load=self._load)
        self._fails = fails

    def _load(self, wanted: Filter) -> dict[Any, Any]:
        self.asked.append(wanted)
        if self._fails:
            raise self._fails
        jobs = [raw(**answer) for answer in ANSWERS]
        ids = wanted.ids
        return {job.id: job for job in jobs if ids is None or job.id in ids or job.array_id in ids}


class PyslurmError(Exception):
    pass


def module(**database: Any) -> Any:
    return SimpleNamespace(
        db=Database(**database), PyslurmError=PyslurmError, __version__="25.11.2"
    )


def command(monkeypatch: pytest.MonkeyPatch) -> Accounting:
    monkeypatch.setattr(records, "run", fake_sacct(recorded(TEXT)))
    return CommandLine()


@pytest.fixture(params=["command", "pyslurm"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Accounting:
    return command(monkeypatch) if request.param == "command" else Pyslurm(module())


def plain(job: SacctJob) -> tuple[Any, ...]:
    """What the recording of 2022 has as well."""
    return (*job[:8], dict(job.tres))


WANTED = [
    ("2", 2, "online", 2, {"gres/gpu": "1"}),
    (
        "3",
        3,
        "offline",
        6,
        {"gres/qgpu:offline": "50", "gres/qgpu": "50", "gres/vram": "2147483648"},
    ),
    (
        "4",
        4,
        "online",
        4,
        {"gres/qgpu:online": "30", "gres/qgpu": "30", "gres/vram": "25124929536"},
    ),
    ("1_1", 5, "offline", 2, {"gres/qgpu:offline": "10", "gres/shard": "10", "mem": "64M"}),
    ("1_2", 1, "offline", 2, {"gres/qgpu:offline": "10", "cpu": "1", "node": "1", "billing": "1"}),
]


def test_both_tell_the_same_jobs(backend: Accounting) -> None:
    found = {job.job_id: job for job in backend.between(Window(0, 2000))}
    assert set(found) == {wanted[0] for wanted in WANTED}
    for job_id, number, qos, elapsed, tres in WANTED:
        job = found[job_id]
        assert (job.raw_id, job.qos, job.elapsed_s) == (number, qos, elapsed)
        assert (job.user, job.state, job.nodes, job.partition) == (
            "alice",
            "COMPLETED",
            ("hooktest-n1",),
            "gpu",
        )
        assert tres.items() <= dict(job.tres).items()


def test_they_do_not_differ_in_a_single_field(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {job.job_id: plain(job) for job in command(monkeypatch).between(Window(0, 2000))}
    two = {job.job_id: plain(job) for job in Pyslurm(module()).between(Window(0, 2000))}
    assert one == two


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (["3"], ["3"]),
        (["1"], ["1_1", "1_2"]),
        (["1_2"], ["1_2"]),
        (["2", "1_1"], ["1_1", "2"]),
        (["9"], []),
        ([], []),
    ],
)
def test_jobs_by_number(backend: Accounting, asked: list[str], wanted: list[str]) -> None:
    assert sorted(job.job_id for job in backend.jobs(asked)) == wanted


def test_what_pyslurm_leaves_out() -> None:
    first = job_of(raw(id=8, array_id=8, array_task_id=None, elapsed_time=None, nodelist=None))
    assert (first.job_id, first.elapsed_s, first.nodes, first.tres) == ("8_0", 0, (), {})
    waits = job_of(raw(id=9, array_id=9, array_tasks_waiting="1-3", start_time=None, end_time=None))
    assert (waits.job_id, waits.elapsed_s, waits.start) == ("9_[1-3]", 0, None)
    assert job_of(raw(id=11, heterogeneous_id=10, heterogeneous_offset=1)).job_id == "10+1"
    assert job_of(raw(id=10, heterogeneous_id=10)).job_id == "10+0"
    assert job_of(raw(id=12, nodelist="n[1-2]")).nodes == ("n1", "n2")


def test_what_pyslurm_writes_otherwise() -> None:
    """Seen on 26.05 (tests/slurm/jobs/test_jobs_pyslurm.py)."""
    waiting = {"id": 9, "array_id": 9, "array_tasks_waiting": "0x13E9"}
    assert job_of(raw(**waiting)).job_id == "9_[0,3,5-9,12]"
    assert job_of(raw(**waiting, array_tasks_parallel=2)).job_id == "9_[0,3,5-9,12%2]"
    assert job_of(raw(**waiting | {"array_tasks_waiting": "0x8"})).job_id == "9_[3]"
    ended = job_of(raw(id=9, state="CANCELLED", cancelled_by="root"))
    assert ended.state == "CANCELLED by 0"
    assert job_of(raw(id=9, state="CANCELLED", cancelled_by="no such")).state == "CANCELLED"
    assert job_of(raw(id=9, state="COMPLETED", cancelled_by="root")).state == "COMPLETED"
    for count, text in ((64, "64M"), (131072, "128G"), (3968, "3968M"), (2**20, "1T"), (0, "0M")):
        assert job_of(raw(id=9, tres={"mem": count})).tres["mem"] == text


def test_a_window_asks_slurmdbd_for_what_sacct_would() -> None:
    found = module()
    Pyslurm(found).between(Window(5, 9, users=("alice",), accounts=("a", "b"), qos=("online",)))
    assert found.db.asked == [Filter(None, 5, 9, ["alice"], ["a", "b"], ["online"], True)]


# Recorded on 24.11 (the figures of jobs 1 and 13 to 15 are the same on 22.05), but for what the
# names say.
STEPS = """JobIDRaw|TotalCPU|TRESUsageInTot|ReqTRES|AllocTRES
1|00:02.242||billing=2,cpu=2,gres/qgpu:online=30,gres/qgpu=30,mem=1G,node=1|
1.batch|00:02.240|cpu=00:00:01,energy=0,fs/disk=161973,mem=318164K,pages=0,vmem=814316K||
1.extern|00:00.001|cpu=00:00:00,energy=0,fs/disk=4148,mem=1812K,pages=0,vmem=420816K||
7|00:00.009||cpu=1|
7.batch|00:00:00|||
8|00:00:00||cpu=1|
8.batch|00:00:00|cpu=00:00:00,energy=0,mem=0,vmem=4K||
9|2-01:00:00.500||cpu=64|
9.0|1-00:00:00|mem=1.5G||
9.1|1-01:00:00.500|mem=2048||
12|00:00:00|||gres/qgpu=60,gres/vram=16G,node=2
12.0|00:00:00|||gres/qgpu=30,gres/vram=8G,node=1
13|00:00:00|||gres/qgpu=30,gres/vram=8589934592,node=1
13.extern|00:00:00|||gres/qgpu=1,node=1
13.0|00:00:00|||gres/qgpu=30,gres/vram=8589934592,node=1
13.1|00:00:00|||node=1
14|00:00:00|||gres/qgpu=30,gres/vram=8589934592,node=1
14.0|00:00:00|||gres/qgpu=30,node=1
15|00:00:00|||gres/qgpu=30,gres/vram=8589934592,node=1
15.0|00:00:00|||gres/qgpu=15,gres/vram=1073741824,node=1
"""


def test_what_steps_used_of_the_host() -> None:
    found = sacct.details(Window(0, 9, listed=True), fake_sacct(recorded(STEPS)))
    assert [(job, detail.cpu_s, detail.mem_peak) for job, detail in found.items() if job < 10] == [
        (1, pytest.approx(2.241), 318164 << 10),
        (7, None, None),
        (8, None, None),
        (9, 176400.5, 3 << 29),
    ]
    assert found[1].asked["gres/qgpu:online"] == "30"
    named = {job: sorted(detail.parts) for job, detail in found.items() if detail.parts}
    assert named == {14: ["gres/qgpu"], 15: ["gres/qgpu", "gres/vram"]}


def test_many_jobs_take_several_calls_and_none_counts_twice() -> None:
    asked: list[int] = []
    answers = fake_sacct(
        [{"JobIDRaw": str(n), "JobID": f"1_{n}", "JobName": f"n{n}"} for n in (1, 8)]
    )

    def run(command: Sequence[str]) -> str:
        words = command[command.index("-j") + 1]
        asked.append(words.count(",") + 1)
        assert len(words) < 128 << 10
        return answers(command)

    ids = ["1", *(str(n) for n in range(2 * 10**9, 2 * 10**9 + 2500)), "1_8"]
    found = sacct.jobs(ids, run)
    assert [(job.raw_id, job.name) for job in found] == [(1, "n1"), (8, "n8")]
    assert asked == [1000, 1000, 502, 2]


def test_tasks_that_wait_are_found_by_their_array() -> None:
    rows = [
        {"JobIDRaw": "10", "JobID": "10_[3-9%1]", "JobName": "waits", "State": "PENDING"},
        {"JobIDRaw": "11", "JobID": "10_1", "JobName": "runs", "State": "RUNNING"},
    ]
    answers = fake_sacct(rows)

    def found(*ids: str) -> list[str]:
        return [job.job_id for job in sacct.jobs(ids, answers) if job.name]

    assert found("10_3") == ["10_[3-9%1]"] and found("10_1") == ["10_1"]
    assert found("10_1", "10_4") == ["10_1", "10_[3-9%1]"]
    assert found("12_1") == []


@pytest.mark.parametrize(
    "error", [PyslurmError("no connection"), ValueError("QoS 'x' does not exist")]
)
def test_its_errors_are_sentences(error: Exception) -> None:
    with pytest.raises(SlurmError, match="slurmdbd did not answer through pyslurm"):
        Pyslurm(module(fails=error)).jobs(["3"])


def never() -> Any:
    raise AssertionError("it must not be loaded: it would end this process where it does not fit")


@pytest.mark.parametrize(
    ("installed", "slurm", "load", "kind"),
    [
        (None, "slurm 25.11.1", never, CommandLine),
        ("25.11.2", "slurm 25.11.0-rc1", module, Pyslurm),
        ("25.11.2", "slurm-wlm 24.11.5", never, CommandLine),
        ("25.11.2", "", never, CommandLine),
        ("25.5.0", "slurm 25.05.2", module, Pyslurm),
        ("18.8.1.1", "slurm 18.08.8", lambda: SimpleNamespace(), CommandLine),
        ("odd", "slurm odd", never, CommandLine),
    ],
)
def test_which_is_taken(
    monkeypatch: pytest.MonkeyPatch,
    installed: str | None,
    slurm: str,
    load: Callable[[], Any],
    kind: type,
) -> None:
    monkeypatch.delenv(accounting.OFF, raising=False)
    assert isinstance(choose(lambda: installed, lambda: slurm, load), kind)
    monkeypatch.setenv(accounting.OFF, "1")
    assert isinstance(choose(lambda: installed, lambda: slurm, never), CommandLine)


def test_one_that_cannot_be_loaded_or_lacks_something_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(accounting.OFF, raising=False)

    def broken() -> Any:
        raise ImportError("libslurmfull.so: cannot open shared object file")

    assert isinstance(choose(lambda: "25.11.2", lambda: "slurm 25.11.0", broken), CommandLine)
    old = module()
    old.db.Job = SimpleNamespace()
    assert not fits(old) and fits(module())


def test_versions() -> None:
    texts = ("slurm 25.11.2", "slurm-wlm 22.05.8", "25.5.0", "slurm 24.11.5-rc1", "", "x")
    assert [major(text) for text in texts] == ["25.11", "22.05", "25.05", "24.11", None, None]
