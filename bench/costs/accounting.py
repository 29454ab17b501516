"""Accounting: what a sample costs qgpud, how long reports take, what a
scrape and `qgpu top` cost.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness.figures import Figure
from enforcer.ledger.read import reading, usage_of_jobs
from enforcer.ledger.store import Ledger, Sample
from enforcer.reporting import state as live
from enforcer.reporting.metrics import NodeCollector, Publisher
from enforcer.reporting.state import Card, Seen, Watcher
from gres.config.schema import JobClass
from gres.grant.store import Grant, GrantCard
from simulator.judge import evaluate as ev

SECOND = 10**9
START = int(time.time()) - 86400
CARDS, PER_CARD = 8, 16
CONFIG = """version: 1
cluster: bench
run_dir: {directory}
state_dir: {directory}
default_class: offline
models: {{h: {{memory: 80GiB}}}}
nodes: [{{names: n1, model: h, count: 8, files: "/dev/nvidia[0-7]"}}]
"""


def _uuid(card: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{card:012d}"


def _grant(job: int) -> Grant:
    card = job % CARDS
    kind: JobClass = "online" if job // CARDS % 2 else "offline"
    found = GrantCard(_uuid(card), card, card, 6, 4 << 30, 80 << 30)
    return Grant(
        job, 1000, 100, "n1", "active", kind, START * SECOND, "", (found,), "/r", "/d", "/s"
    )


def _samples(step: int) -> list[Sample]:
    return [
        Sample(
            job,
            _uuid(job % CARDS),
            1,
            5,
            busy_ns=step * job,
            launches=step,
            mem_used=job,
            close_hist=(step,),
        )
        for job in range(1, CARDS * PER_CARD + 1)
    ]


def _writes(directory: Path, runs: int) -> Iterator[Figure]:
    """One sample of a full node into the ledger, per tenant, in the thread that answers Prologs."""
    ledger = Ledger(directory / "write.sqlite")
    for job in range(1, CARDS * PER_CARD + 1):
        ledger.open_grant(_grant(job))
    took, cpu = [], []
    for step in range(runs):
        samples = _samples(step)
        began, worked = time.perf_counter(), time.thread_time()
        ledger.record(samples, (START + 2 * step) * SECOND)
        took.append((time.perf_counter() - began) * 1e6)
        cpu.append((time.thread_time() - worked) * 1e3)
        # a daemon pauses for 2 s; without a pause the disk of the last sample would be measured
        time.sleep(0.02)
    ledger.close()
    each = [value / (CARDS * PER_CARD) for value in took]
    whole = statistics.median(took) / 1000
    work = f"{statistics.median(cpu):.1f} ms of CPU"
    spread = f"(per tenant of {CARDS * PER_CARD}; the look: median {whole:.1f} ms, {work})"
    yield Figure(
        "ledger_write_us_p99",
        ev.percentile(each, 99),
        "us",
        250,
        "<=",
        runs,
        spread,
        simulated=False,
    )


def _fill(path: Path, rows: int, jobs: int) -> None:
    """A ledger of many ended grants, written the quick way."""
    Ledger(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA synchronous = OFF")
    dice = random.Random(1)
    database.executemany(
        "INSERT INTO usage (job_id, node, uuid, card_index, uid, class, state, share, mem_cap,"
        " mem_total, granted_at, ended_at, end_reason, busy_ns, launches, mem_peak, denied,"
        " preemptions, closed_preempted_ns, closed_share_ns, sampled_at) VALUES (?, 'n1', ?, 0, ?,"
        " 'offline', 'active', 30, 1, 2, ?, ?, 'epilog', ?, 1, 1, 0, 0, 5, 5, ?)",
        (
            (
                1 + row % jobs,
                _uuid(0),
                1000 + row % 50,
                at,
                at + 60 * SECOND,
                dice.randrange(60 * SECOND),
                at,
            )
            for row in range(rows)
            for at in (START * SECOND + row,)
        ),
    )
    database.commit()
    database.close()


def _query(directory: Path, quick: bool) -> Iterator[Figure]:
    """One job out of many; the whole command beside it."""
    rows = 50_000 if quick else 200_000
    path = directory / "many.sqlite"
    _fill(path, rows, rows)
    took = []
    dice = random.Random(2)
    for _ in range(50):
        began = time.perf_counter()
        with reading(path) as database:
            found = list(usage_of_jobs(database, [dice.randrange(1, rows)]))
        took.append((time.perf_counter() - began) * 1000)
        if len(found) != 1:
            raise RuntimeError(f"{len(found)} rows of one job")
    fake = _sacct(directory, 1)
    walls = [_command(["report", "7", "--ledger", str(path)], directory, fake)[0] for _ in range(3)]
    spread = (
        f"(worst of 50; the whole command {statistics.median(walls) * 1000:.0f} ms, {rows} rows)"
    )
    yield Figure("report_query_ms", max(took), "ms", 20, "<=", 50, spread, simulated=False)


def _sacct(directory: Path, jobs: int) -> Path:
    """A sacct that answers with a number of jobs at once."""
    place = directory / f"bin{jobs}"
    place.mkdir(exist_ok=True)
    out, names = io.StringIO(), io.StringIO()
    tres = "cpu=1,gres/qgpu:offline=30,gres/qgpu=30,gres/vram=4G"
    for job in range(7, 7 + jobs) if jobs == 1 else range(1, jobs + 1):
        user = f"user{job % 50}"
        out.write(
            f"{job}|{job}|{user}|COMPLETED|00:01:"
            f"00|n1|offline|gpu|{tres}|acct|{START}|{START + 60}|\n"
        )
        names.write(f"{job}|train|\n")
    (place / "answer").write_text(out.getvalue())
    (place / "names").write_text(names.getvalue())
    (place / "steps").write_text("7.batch|00:01|mem=1M||\n")
    script = place / "sacct"
    script.write_text(
        "#!/bin/sh\nfile=answer\n"
        "for word; do case $word in --delimiter=*) end=${word#*=};; *JobName*) file=names;; "
        "*TotalCPU*) file=steps; esac; "
        f'done\nexec sed "s/|/$end/g" {place}/$file\n'
    )
    script.chmod(0o755)
    return place


def _command(words: list[str], directory: Path, path: Path | None = None) -> tuple[float, str]:
    """Wall seconds and output of one `qgpu` command."""
    (directory / "qgpu.yaml").write_text(CONFIG.format(directory=directory))
    environment = {**os.environ, "QGPU_CONFIG": str(directory / "qgpu.yaml")}
    if path is not None:
        environment["PATH"] = f"{path}:{environment['PATH']}"
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - began, done.stdout


def _groups(directory: Path, quick: bool) -> Iterator[Figure]:
    """Totals of a day with 100 000 jobs."""
    jobs = 100_000
    path = directory / "groups.sqlite"
    _fill(path, jobs, jobs)
    place = _sacct(directory, jobs)
    walls: list[float] = []
    cpu: list[float] = []
    for _ in range(2 if quick else 3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall, out = _command(
            ["report", "--since", "7d", "--by", "user", "--json", "--ledger", str(path)],
            directory,
            place,
        )
        total = json.loads(out)["total"]
        if (total["jobs"], total["measured"], round(total["granted_s"])) != (jobs, jobs, jobs * 18):
            raise RuntimeError(f"the totals are wrong: {total}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(wall)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    work = f"{statistics.median(cpu):.2f} s of CPU"
    spread = f"({jobs} jobs, {min(walls):.2f} to {max(walls):.2f} s, {work})"
    yield Figure(
        "report_group_s",
        statistics.median(walls),
        "s",
        3,
        "<=",
        len(walls),
        spread,
        simulated=False,
    )


def _node() -> tuple[Watcher, list[Grant], list[Card]]:
    grants = [_grant(job) for job in range(1, CARDS * PER_CARD + 1)]
    cards = [Card(_uuid(n), n, "h200", 80 << 30, 5 << 30, 50, n) for n in range(CARDS)]
    return Watcher(), grants, cards


def _look(node: tuple[Watcher, list[Grant], list[Card]], step: int) -> live.NodeState:
    watcher, grants, cards = node
    seen = [Seen(sample, 1) for sample in _samples(step)]
    return watcher.sample("n1", grants, seen, cards, (1 + step) * SECOND, time.time_ns())


def _scrape(runs: int) -> Iterator[Figure]:
    """8 cards with 16 tenants each, every job labelled."""
    node = _node()
    state = _look(node, 1)
    publisher = Publisher(NodeCollector(lambda: state, True, time.time))
    took, cpu = [], []
    for _ in range(runs):
        began, worked = time.perf_counter(), time.thread_time()
        text = publisher.text()
        took.append((time.perf_counter() - began) * 1000)
        cpu.append((time.thread_time() - worked) * 1000)
    if text.count(b"qgpu_busy_seconds_total{") != CARDS * PER_CARD:
        raise RuntimeError("a scrape lacks tenants")
    work = f"{ev.percentile(cpu, 95):.1f} ms of CPU"
    spread = f"(p95; {work}; median {statistics.median(took):.1f} ms, {len(text) // 1024} KiB)"
    yield Figure(
        "metrics_scrape_ms", ev.percentile(took, 95), "ms", 20, "<=", runs, spread, simulated=False
    )


def _top(directory: Path, quick: bool) -> Iterator[Figure]:
    """`qgpu top` on a terminal at 1 Hz, on a full node whose state changes each second; start-up
    left out.
    """
    import pty
    import threading

    node = _node()
    path = directory / live.FILE_NAME
    live.write(path, _look(node, 1).to_json(), 0o644)
    (directory / "qgpu.yaml").write_text(CONFIG.format(directory=directory))
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cli.main",
            "top",
            "--node",
            "n1",
            "--config",
            str(directory / "qgpu.yaml"),
        ],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "60"},
    )
    os.close(follower)

    def drain() -> None:
        try:
            while os.read(leader, 65536):
                pass
        except OSError:
            return

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        time.sleep(3)
        before, began = _cpu(process.pid), time.monotonic()
        for step in range(5 if quick else 8):
            live.write(path, _look(node, 2 + step).to_json(), 0o644)
            time.sleep(1)
        if process.poll() is not None:
            raise RuntimeError("qgpu top ended by itself")
        percent = 100 * (_cpu(process.pid) - before) / (time.monotonic() - began)
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    yield Figure(
        "top_cpu_percent",
        percent,
        "%",
        3,
        "<=",
        1,
        f"({CARDS} cards, {CARDS * PER_CARD} tenants)",
        simulated=False,
    )


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of accounting."""
    with tempfile.TemporaryDirectory(prefix="qgpu-bench-") as work:
        directory = Path(work)
        yield from _writes(directory, 100 if quick else 200)
        yield from _query(directory, quick)
        yield from _groups(directory, quick)
        yield from _scrape(50 if quick else 200)
        yield from _top(directory, quick)
