"""A job opens the card that it was moved to, and not the one that Slurm booked: in its batch
script, in a step that runs, and in one that starts later.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
from jobs_support import Live

from enforcer.daemon.audit.steps import Steps
from enforcer.daemon.devices.control import JobDevices
from enforcer.daemon.devices.port import Device
from enforcer.wire.layout import GRANT_CARD_MOVED, GrantPage
from gres.grant.identity import device_number
from gres.grant.store import GrantStore

PROBE = """
for card in DIR/dev/qgpusim?; do
    if (: <>$card) 2>&1 | grep -q 'not permitted'; then echo denied; else echo open; fi
done | paste -sd' '
"""
# Each writes again and again what it can open.
JOB = """
again() { while sleep 0.1; do bash probe.sh > $1.new; mv $1.new $1.now; done; }
export -f again
srun --overlap bash -c 'again step' &
again batch
"""
BATCH, STEP = "batch", "step"


class Moved:
    """A job of alice with one of a node's two cards, as this test moves it."""

    def __init__(self, live: Live) -> None:
        self.live, self.home = live, live.sandbox.layout.home("alice")
        for name in (BATCH, STEP):
            (self.home / f"{name}.now").unlink(missing_ok=True)
        job = live.submit(JOB, "--gres=qgpu:30", "--qos=offline", f"--nodelist={self.first(live)}")
        self.job = job
        self.node, self.booked = live.place(job)
        self.steps = Steps(live.paths(self.node).run_dir / "steps")
        self.devices = JobDevices(self.steps)
        files = (live.paths(self.node).sim_dir / f"dev/qgpusim{index}" for index in (0, 1))
        self.cards = [Device(*device_number(str(path))) for path in files]

    def first(self, live: Live) -> str:
        """Its node. The probe there names that node's cards."""
        node = live.nodes[0]
        probe = PROBE.replace("DIR", str(live.paths(node).sim_dir))
        (self.home / "probe.sh").write_text(probe)
        return node

    def opens(self, *programs: str) -> set[str]:
        """What these programs can open now."""
        paths = (self.home / f"{name}.now" for name in programs)
        return {path.read_text().strip() if path.exists() else "" for path in paths}

    def only(self, index: int) -> str:
        """What a program says that can open this card alone."""
        return " ".join("open" if index == card else "denied" for card in (0, 1))

    def until_only(self, index: int) -> None:
        """Wait until batch script and step can open this card alone."""
        wanted = {self.only(index)}
        what = f"card {index} alone being open to job {self.job}"
        self.live.until(lambda: self.opens(BATCH, STEP) == wanted, 20, what)

    def move(self, index: int) -> bool:
        """Make this the job's card."""
        return self.devices.apply(self.job, frozenset([self.cards[index]]), frozenset(self.cards))

    def mark(self, index: int) -> None:
        """Write in the job's grant that it was moved to this card."""
        store = GrantStore(self.live.paths(self.node).run_dir / "grants")
        page = GrantPage.from_buffer_copy((store.directory / f"{self.job}.grant").read_bytes())
        page.cards[0].index = index
        page.cards[0].flags |= GRANT_CARD_MOVED
        store.write_blob(self.job, bytes(page))

    def waits(self) -> bool:
        """Whether slurmd's log has a task that waits for its card."""
        log = Path(self.live.paths(self.node).log("slurmd"))
        line = f"job {self.job} was moved to another card: its task waits for"
        return line in log.read_text(errors="replace")


def test_a_moved_job_opens_its_new_card_alone(live: Live) -> None:
    job = Moved(live)
    job.until_only(job.booked)
    shells = ("bash", "slurm_script")
    found = [one.pid for one in psutil.process_iter(["name"]) if one.info["name"] in shells]
    inside = [pid for pid in found if job.steps.job_of(pid) == job.job]
    assert len(inside) >= 2 and job.devices.refusal(job.job, inside) == ""
    other = 1 - job.booked
    assert job.move(other)
    job.until_only(other)
    job.mark(other)
    assert starts_a_step(job, other) == job.only(other)
    job.until_only(other)
    job.move(job.booked)
    job.until_only(job.booked)


def starts_a_step(job: Moved, index: int) -> str:
    """What a new step can open. Its task starts once its cgroup is corrected."""
    words = ("srun", f"--jobid={job.job}", "--overlap", "bash", "probe.sh")
    with ThreadPoolExecutor(1) as pool:
        step: Future[str] = pool.submit(job.live.ask, *words, user="alice")
        job.live.until(lambda: job.waits() or step.done(), 20, "a task that waits for its card")
        assert job.waits(), step.result()
        job.live.until(lambda: job.move(index) or step.done(), 20, "a cgroup to be corrected")
        return step.result()
