"""The main job, act by act. Each act prints what happened and checks its promises."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from cli.demo import measure
from cli.demo.draw import axis, line
from cli.demo.jobs import Cluster, Job, wait_for
from cli.demo.promises import Promises
from enforcer.nvml.driver import PynvmlNvml
from simulator.judge import evaluate as ev

# The simulated card executes one iteration a nanosecond; on a real one the program calibrates
# itself.
KERNEL = ("--kernel-us", "200", "--iters", "200000", "--kernels-per-request", "5")
STEADY = ("--kernel-us", "5000", "--iters", "5000000", "--no-sync-each", "--length", "300")
LIGHT = (
    "--kernel-us",
    "500",
    "--iters",
    "500000",
    "--busy",
    "0.02",
    "--idle",
    "0.48",
    "--length",
    "300",
)
BURSTS, BUSY_S, IDLE_S = 4, 2, 2
SOLO_S = 2.0  # seconds in which the offline job runs alone, for its rate

# What a user might well type, and a piece of the sentence that answers it.
BAD_REQUESTS = (
    (("--gres=qgpu:130",), "130"),
    (("--gres=qgpu:0",), "qgpu:0"),
    (("--gres=qgpu:30,vram:500G",), "500G"),
    (("--gres=qgpu:30,gpu:1",), "gpu"),
    (("--gres=qgpu:b300:30",), "b300"),
)


@dataclass
class Story:
    """The acts, in order; later ones use the jobs that earlier ones started."""

    cluster: Cluster
    promises: Promises
    console: Console
    jobs: dict[str, Job] = field(default_factory=dict)

    def act(self, title: str) -> None:
        """Print the headline of an act."""
        self.console.print(f"\n[bold]{title}[/]", highlight=False)

    def start(
        self, name: str, user: str, qos: str, gres: str, *work: str, on: str = "", minutes: int = 10
    ) -> Job:
        """Submit a job and wait until it runs."""
        options = ["-t", str(minutes), *(["-w", on] if on else [])]
        job = self.cluster.submit(user, name, qos, gres, work, options)
        self.jobs[name] = job
        self.cluster.wait_state(job, ["RUNNING"])
        return job

    # -- act 1 ------------------------------------------------------------

    def placement(self) -> None:
        """Jobs of both classes, submitted by ordinary users, and where Slurm put them."""
        self.act("1. Jobs are placed by Slurm")
        length = str(BURSTS * (BUSY_S + IDLE_S) - IDLE_S)
        duty = ("--log-requests", "--busy", str(BUSY_S), "--idle", str(IDLE_S), "--length", length)
        serve = self.start("serve", "alice", "online", "qgpu:60", *KERNEL, *duty)
        self.start("chat", "alice", "online", "qgpu:80", *LIGHT)
        self.start("fold", "bob", "offline", "qgpu:50,vram:60G", *STEADY)
        self.start("render", "bob", "offline", "qgpu:20,vram:60G", *LIGHT)
        big = self.cluster.submit("alice", "big", "online", "qgpu:80", LIGHT)
        self.jobs["big"] = big
        # The first burst runs alone: that is what online's latency is compared with.
        self.cluster.wait_logged(serve, "the first burst", lambda: measure.bursts_ended(serve) >= 1)
        train_s = (BURSTS - 1) * (BUSY_S + IDLE_S) + SOLO_S
        training = (*KERNEL, "--no-sync-each", "--length", str(train_s))
        # Short enough to end before `big` could begin, or Slurm would hold the place for `big`.
        self.start("train", "bob", "offline", "qgpu:30,vram:20G", *training, minutes=1)
        running = {job.id for name, job in self.jobs.items() if name != "big"}
        log = self.cluster.sandbox.layout.log("slurmctld")
        wait_for(
            "a grant for each running job", lambda: running <= self.cluster.grants().keys(), 20, log
        )
        self._show_placement()

    def _show_placement(self) -> None:
        grants = self.cluster.grants()
        table = Table(
            "job", "name", "user", "class", "share", "memory cap", "node", "card", box=None
        )
        places = {}
        for name, job in self.jobs.items():
            grant = grants.get(job.id)
            if grant is None:
                table.add_row(
                    str(job.id), name, job.user, "", "", "", f"waits: {self.cluster.state(job)}", ""
                )
                continue
            card = grant.cards[0]
            places[name] = (grant.node, card.index)
            cap = f"{card.mem_cap / 2**30:.1f} GiB"
            row = (str(job.id), name, job.user, str(grant.job_class), f"{card.share} %", cap)
            table.add_row(*row, grant.node, str(card.index))
        self.console.print(table)
        self._check_placement(places)

    def _check_placement(self, places: dict[str, tuple[str, int]]) -> None:
        check = self.promises.check
        same = "serve" in places and places.get("serve") == places.get("train")
        check("online serve and offline train share one card", same, str(places.get("serve")))
        others = {places.get(n) for n in ("chat", "fold", "render")} - {None}
        apart = len(others) == 3 and places.get("serve") not in others
        check(
            "the three other jobs are on the three other cards", apart, f"{sorted(others, key=str)}"
        )
        state = self.cluster.wait_reason(self.jobs["big"], ["Resources", "Priority", "RUNNING"])
        check("a job that fits on no card waits", state.startswith("PENDING"), state)

    # -- act 2 ------------------------------------------------------------

    def alternation(self) -> None:
        """The online job alternates work and silence; the offline job fills the silence."""
        self.act(f"2. Online works {BUSY_S} s, sleeps {IDLE_S} s; offline takes what is left")
        serve, train = self.jobs["serve"], self.jobs["train"]
        node = self.cluster.sandbox.node(self.cluster.grants()[train.id].node)
        self.cluster.wait_end(serve)
        self.cluster.wait_end(train)
        seen = measure.pair(node, serve, train, SOLO_S)
        bucket = 200 * ev.NS_PER_MS
        for name, spans in (("online ", seen.online_spans), ("offline", seen.offline_spans)):
            series = ev.rate_series(spans, seen.start, seen.end, bucket)
            self.console.print(f"  {name} {line(series, self.console.encoding)}", highlight=False)
        width = len(ev.rate_series([], seen.start, seen.end, bucket))
        self.console.print(f"  seconds {axis(width, bucket / 1e9)}", highlight=False)
        self._check_alternation(seen)

    def _check_alternation(self, seen: measure.Pair) -> None:
        check = self.promises.check
        closes, frees, backs = seen.gate_close_us, seen.card_free_us, seen.handback_ms
        check(
            "an offline gate closes within 1 ms of online's launch (simulated)",
            *measure.below(closes, 1000, "us"),
        )
        check(
            "the card is free of offline within 2 ms (simulated)", *measure.below(frees, 2000, "us")
        )
        check(
            "offline is back within 105 ms of online's last kernel",
            *measure.below(backs, 105, "ms"),
        )
        check(
            "offline stands still while online is busy",
            seen.offline_during_online <= 0.01,
            f"{100 * seen.offline_during_online:.2f} % of that time",
        )
        relative = seen.harvest / seen.solo if seen.solo else 0.0
        check(
            "offline takes at least 95 % of the time that online leaves (median of the gaps)",
            relative >= 0.95,
            f"{100 * relative:.1f} % of its solo rate (solo: busy {100 * seen.solo:.1f} % of the"
            " time)",
        )
        ratio = seen.p99_beside_us / seen.p99_alone_us
        check(
            "online's p99 stays within 10 % of its p99 alone (quietest burst)",
            ratio <= 1.10,
            f"{seen.p99_beside_us:.0f} us beside, {seen.p99_alone_us:.0f} us alone, ratio"
            f" {ratio:.3f}",
        )

    # -- act 3 ------------------------------------------------------------

    def cap(self) -> None:
        """A job that allocates past its cap, and its neighbour."""
        self.act("3. A job runs over its memory cap")
        fold = self.jobs["fold"]
        place = self.cluster.grants()[fold.id]
        work = ("--alloc-past", "8G", *KERNEL, "--length", "1")
        greedy = self.cluster.submit(
            "bob", "greedy", "offline", "qgpu:5,vram:4G", work, ["-t", "1", "-w", place.node]
        )
        self.jobs["greedy"] = greedy
        self.cluster.wait_end(greedy)
        told = greedy.out.read_text() + greedy.err.read_text()
        check = self.promises.check
        named = "CUDA_ERROR_OUT_OF_MEMORY" in told
        check(
            "the program gets CUDA_ERROR_OUT_OF_MEMORY", named, "it did" if named else told[-300:]
        )
        lines = [text for text in greedy.err.read_text().split("\n") if text.startswith("qgpu: ")]
        check("one clear line on its stderr", len(lines) == 1, lines[0] if lines else "none")
        now = time.monotonic_ns()
        node = self.cluster.sandbox.node(place.node)
        wait_for(
            "progress of the neighbour",
            lambda: measure.ran_after(node, fold, now),
            5,
            node.log("arbiter"),
        )
        state = self.cluster.state(fold)
        check(
            "its neighbour runs on",
            state.startswith("RUNNING"),
            f"fold is {state.split()[0]}, with new kernels",
        )

    # -- act 4 ------------------------------------------------------------

    def sudden_death(self) -> None:
        """kill -9 in the middle of a launch."""
        self.act("4. kill -9 of a tenant in the middle of its launches")
        fold = self.jobs["fold"]
        place = self.cluster.grants()[fold.id]
        work = (*KERNEL, "--no-sync-each", "--memory", "3G", "--length", "60")
        victim = self.start(
            "victim", "bob", "offline", "qgpu:50,vram:4G", *work, on=place.node, minutes=1
        )
        node = self.cluster.sandbox.node(place.node)
        self.cluster.wait_logged(victim, "its process id", lambda: victim.pid is not None)
        pid = victim.pid or 0
        wait_for("the first kernels", lambda: measure.ran_after(node, victim, 0), 10, victim.err)
        uuid = self.cluster.grants()[victim.id].cards[0].uuid
        os.environ["QGPU_SIM_DIR"] = str(node.sim_dir)
        nvml = PynvmlNvml(str(self.cluster.sandbox.layout.opt / "sim/libnvidia-ml.so.1"))
        killed = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        while any(p.pid == pid for p in nvml.processes(uuid)):
            if time.monotonic_ns() - killed > 10**10:
                break
        freed_ms = (time.monotonic_ns() - killed) / 1e6
        nvml.close()
        settle = killed + 700 * ev.NS_PER_MS
        wait_for(
            "the neighbour's progress",
            lambda: measure.ran_after(node, fold, settle),
            5,
            node.log("arbiter"),
        )
        check = self.promises.check
        check(
            "its memory is free within 100 ms", freed_ms <= 100, f"after {freed_ms:.1f} ms, by NVML"
        )
        rate = measure.busy_fraction(node, fold, killed + 100 * ev.NS_PER_MS, settle)
        check(
            "100 ms later its neighbour has the card",
            rate >= 0.95,
            f"busy {100 * rate:.1f} % of the next 600 ms",
        )

    # -- act 5 ------------------------------------------------------------

    def refusals(self) -> None:
        """Bad requests, each answered by sbatch with a sentence."""
        self.act("5. Bad requests are refused with a sentence")
        for options, token in BAD_REQUESTS:
            said = self.cluster.refused("alice", "--qos=online", *options)
            sentence = next(
                (text for text in said.split("\n") if "qgpu" in text and token in text), ""
            )
            words = sentence.removeprefix("sbatch: error: ")
            self.promises.check(
                f"sbatch {' '.join(options)}", bool(sentence), words or said or "accepted"
            )

    # -- act 6 ------------------------------------------------------------

    def accounts(self) -> None:
        """sacct and qgpu report of every job."""
        self.act("6. What Slurm and qgpu say afterwards")
        running: Sequence[Job] = [self.jobs[n] for n in ("chat", "fold", "render", "big")]
        self.cluster.cancel(*running)
        for job in self.jobs.values():
            self.cluster.wait_end(job)
        ids = [str(job.id) for job in self.jobs.values()]
        sandbox = self.cluster.sandbox
        columns = "JobID%6,JobName%8,User%6,QOS%8,State%12,Elapsed%9,AllocTRES%-125"
        sacct = ["sacct", "-X", "-j", ",".join(ids), "-o", columns]

        def in_database() -> bool:
            states = sandbox.run([*sacct[:-1], "State,QOS", "-n"]).stdout
            return not any(word in states for word in ("RUNNING", "PENDING", "Unknown"))

        wait_for("all ends being in the database", in_database, 20, sandbox.layout.log("slurmdbd"))
        self.console.print(sandbox.run(sacct).stdout, highlight=False, markup=False, soft_wrap=True)
        width = f"COLUMNS={self.console.width}"
        report = sandbox.run(["env", width, "qgpu", "report", *ids])
        self.console.print(report.stdout, highlight=False, markup=False, soft_wrap=True)
        self._check_accounts(ids)

    def _check_accounts(self, ids: Sequence[str]) -> None:
        rows = measure.report_rows(
            self.cluster.sandbox.run(["qgpu", "report", "--json", *ids]).stdout
        )
        train, greedy = rows.get(self.jobs["train"].id), rows.get(self.jobs["greedy"].id)
        check = self.promises.check
        times = train.preemptions if train else None
        counted = times is not None and 1 <= times < BURSTS
        check("the report counts how often train was preempted", counted, f"{times} times")
        denied = greedy.denied if greedy else None
        check("the report counts greedy's refused allocations", bool(denied), f"{denied}")
