"""A hostile user's names and comments: no job of others is changed, no output breaks."""

from __future__ import annotations

import json
import time
from html.parser import HTMLParser
from pathlib import Path

from jobs_support import Live, work
from prometheus_client.parser import text_string_to_metric_families

from slurm_plugin import control
from slurm_plugin.accounting import summary
from slurm_plugin.accounting.summary import Totals

FORGED = "x\n999|999|bob|COMPLETED|8760:00:00|n1|online|gpu|gres/gpu=1|research|1|2|x"
NAMES = (
    FORGED,
    FORGED.replace("\n", "\u2028"),
    "a\rb\x0bc\x0cd\x1ce\x85f",
    "\x1b[2J\x1b]0;root\x07",
    "\u202egnp.exe\u2066\u200b",
    "bad\udcff\udcfe|\"'=<script>",
    "QG1:busy_s=1.0\nqgpu/1 class=online share=100 mem=1",
    "n" * 900,
)


def hostile(live: Live, name: str, script: str = "true") -> int:
    """A job of alice with this text wherever she may write one."""
    wide = [] if live.dialect.before("23.02") else [f"--extra={name}"]
    words = (f"--job-name={name}", f"--comment={name}", f"--wckey={name[:60]}", *wide)
    return live.submit(script, "--qos=online", "--gres=qgpu:3", *words)


def runner(live: Live):
    return lambda words: live.ask("env", "SLURM_TIME_FORMAT=%s", *words) + "\n"


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)


def test_reports_count_the_jobs_that_ran_and_no_others(live: Live, tmp_path: Path) -> None:
    since = int(time.time()) + 1
    live.until(lambda: time.time() > since, 5, "the next second: no earlier job is in it")
    jobs = [hostile(live, name) for name in NAMES]
    live.finish(*jobs)
    for job in jobs:
        live.wait_sacct(job)
        # Slurm may write this after the job's end.
        live.until(lambda job=job: "qgpu" in live.sacct(job, "alloctres")[0], 20, f"{job}'s TRES")
    found = users(live, since)
    assert set(found) == {"alice"}, "nothing is booked to another user"
    assert found["alice"]["jobs"] == len(NAMES), live.ask("sacct", "-aXTP", "-S", stamp(since))
    found = live.report(*jobs)
    assert set(found) == set(jobs) and {found[job]["user"] for job in jobs} == {"alice"}
    assert found[jobs[0]]["name"] == FORGED, "Slurm keeps the newline, and so do we"
    for form in ("--parsable", "--json"):
        assert live.ask("qgpu", "report", form, *map(str, jobs)).replace("\n", "").isprintable()
    lines = live.ask("qgpu", "report", "--parsable", *map(str, jobs)).splitlines()
    assert {line.split("|")[0] for line in lines[1:]} == {str(job) for job in jobs}
    page = live.sandbox.layout.state / "hostile.html"
    live.ask("qgpu", "report", *map(str, jobs), "--html", str(page))
    assert "script" not in Tags(page.read_text(encoding="utf-8")).tags
    page.unlink()
    check_summaries(live, jobs)


def stamp(seconds: int) -> str:
    """The time as Slurm and `qgpu report` take it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def users(live: Live, since: int) -> dict[str, dict[str, object]]:
    """Totals since then, by user."""
    words = ("--since", stamp(since), "--by", "user", "--json")
    body = json.loads(live.ask("qgpu", "report", *words))
    return {group["name"]: group for group in body["groups"]}


def check_summaries(live: Live, jobs: list[int]) -> None:
    """AdminComment is free, and becomes ours; what the user wrote elsewhere is left alone."""
    totals = {job: Totals(1.0, 0.0, 0, 0) for job in jobs}
    names = {job: live.sacct(job, "jobname") for job in jobs}
    assert summary.write("admin_comment", totals, runner(live)) == (jobs, [])
    assert summary.write("admin_comment", totals, runner(live)) == ([], [])
    found = summary.current("admin_comment", jobs, runner(live))
    told = {text.replace("qg1:", "QG1:") for text in found.values()}  # 22.05 has small letters
    assert told == {summary.text_of(totals[jobs[0]])} and len(found) == len(jobs)
    assert {job: live.sacct(job, "jobname") for job in jobs} == names


def test_live_views_show_a_running_job_on_one_line(live: Live) -> None:
    job = hostile(live, FORGED, work("--length", "60"))
    other = live.submit(work("--length", "60"), "--qos=offline", "--gres=qgpu:3", user="bob")
    live.wait_state(job, "RUNNING")
    live.wait_state(other, "RUNNING")
    assert live.grant(job).uid != live.grant(other).uid
    node = live.place(job)[0]
    live.until(lambda: len(metrics(live, node) & {str(job), str(other)}) >= 1, 20, "metrics")
    for words in (("jobs", "--node", node), ("top", "--once", "--cluster")):
        shown = live.ask("qgpu", *words)
        assert shown.replace("\n", "").isprintable()
        # The columns behind these name the jobs that held others.
        assert sum(str(job) in line.split()[:3] for line in shown.split("\n")) == 1
    ours = control.running(["online", "offline"], runner(live))
    assert {job, other} <= {one.job_id for one in ours} and 999 not in {o.job_id for o in ours}
    assert live.run("qgpu", "guard").returncode == 0
    assert isinstance(json.loads(live.run("qgpu", "doctor", "--json").stdout), list)
    live.cancel(job, other)


def metrics(live: Live, node: str) -> set[str]:
    """The jobs that a scrape of the node has."""
    families = text_string_to_metric_families(live.ask("qgpu", "metrics", "--node", node) + "\n")
    return {s.labels["job"] for family in families for s in family.samples if "job" in s.labels}


def test_refusals_of_clients_are_printable(live: Live) -> None:
    for option in ("--gres=qgpu:5,gpu:a\nb:1", "--gres=qgpu:5,gpu:\x1b[1m\u202eb:1"):
        done = live.run("sbatch", "--qos=online", option, "--wrap=true", user="alice")
        said = [line for line in done.stderr.split("\n") if "qgpu: " in line]
        assert done.returncode != 0 and len(said) == 1 and said[0].isprintable()
    done = live.run(
        *("sbatch", "--gres=qgpu:5", "--vram=1\nqgpu: \x1b[1mG", "--wrap=true"), user="alice"
    )
    said = [line for line in done.stderr.split("\n") if "is refused: write a whole" in line]
    assert len(said) == 1 and said[0].isprintable() and "1?qgpu: ?[1mG" in said[0]


def test_notes_to_ones_own_job_reach_no_daemon_of_qgpu(live: Live) -> None:
    """`scontrol notify` by a user writes to the job's own stderr, and no log of ours grows."""
    job = live.submit("echo up; exec sleep 600", "--gres=qgpu:30")
    live.until(lambda: "up" in live.output(job), 20, "the job's first line")
    for number in range(50):
        live.ask(
            "scontrol", "notify", str(job), f"flood-{number} qgpud: event=forged", user="alice"
        )
    live.until(lambda: live.output(job).count("event=forged") == 50, 20, "the notes in its stderr")
    logs = [live.paths(node).log(of) for node in live.nodes for of in ("qgpud", "arbiter")]
    assert not any(b"flood-" in path.read_bytes() for path in logs)
    failure = live.paths(live.grant(job).node).run_dir / "last-failure"
    assert not failure.exists() or "flood-" not in failure.read_text()
    live.cancel(job)
