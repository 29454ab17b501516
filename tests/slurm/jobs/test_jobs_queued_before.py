"""Jobs that were queued before qgpu's job_submit was active: whole cards start as such, parts of
cards do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from jobs_support import Live

from cli.sandbox import wait


@pytest.fixture
def install(live: Live) -> Iterator[Callable[[], None]]:
    """A slurmctld without job_submit; the call installs it."""
    path = live.sandbox.layout.etc / "slurm-qgpu.conf"
    text = path.read_text()
    path.write_text(text.replace("JobSubmitPlugins=lua\n", ""))
    assert path.read_text() != text
    live.sandbox.restart_controller()

    def now() -> None:
        path.write_text(text)
        live.sandbox.restart_controller()

    yield now
    if path.read_text() != text:
        now()


def told(live: Live, verb: str, *jobs: int) -> None:
    """`scontrol hold` or `release`. slurmctld refuses it until the database knows the job.

    Where slurmctld ends before it has that answer, its successor waits for it for ever. So jobs
    are held before it is restarted.
    """
    refusals: set[str] = set()
    for job in jobs:

        def done(job: int = job) -> bool:
            answer = live.run("scontrol", verb, str(job))
            refusals.add(answer.stderr.strip())
            return answer.returncode == 0

        try:
            live.until(done, 45, f"{verb} of job {job}")  # its slack fits into a test's time
        except AssertionError as error:
            log = wait.tail(live.sandbox.layout.log("slurmctld"), 20)
            raise AssertionError(f"{error}\n{refusals}\n{log}") from None


def test_whole_cards_start_and_parts_do_not(live: Live, install: Callable[[], None]) -> None:
    script = "echo cards $SLURM_JOB_GPUS fd ${QGPU_GRANT_FD-none}"
    on = ("-H", "-w", live.nodes[0])
    whole = {
        name: live.submit(script, *options, *on)
        for name, options in {
            "one": ("--gres=gpu:1",),
            "typed": ("--gres=gpu:h200:2", "--comment=mine\n   JOB_GRES=shard:1"),
            "per-job": ("--gpus=1",),
        }.items()
    }
    array = live.submit(script, "--gres=gpu:1", "--array=1-2", *on, output="%A_%a.out")
    part = live.submit(script, "--gres=shard:30", *on)
    lying = live.submit(script, "--gres=shard:30", "--job-name=x\n1 gres/gpu=1", *on)
    jobs = (*whole.values(), array, part, lying)
    told(live, "hold", *jobs)
    install()
    assert [live.tag(job) for job in (whole["one"], part)] == [None, None] or live.tag(
        part
    ) == "(null)"
    told(live, "release", *jobs)
    for name, job in whole.items():
        (text,) = live.finish(job, seconds=60)
        assert text.endswith("fd none\n") and live.state(job) == "COMPLETED", (name, text)
    live.wait_gone(array, 60)
    for task in (1, 2):
        assert live.output(f"{array}_{task}").endswith("fd none\n")
    for job in (part, lying):
        (text,) = live.finish(job, seconds=60)
        assert "holds a GPU of" in text and "--gres=qgpu:30" in text and "fd" not in text
        assert live.state(job) == "FAILED"
    assert live.drained() == ""


def test_a_new_job_goes_the_usual_way(live: Live) -> None:
    job = live.submit("echo fd ${QGPU_GRANT_FD-none}", "--gres=gpu:1")
    assert live.finish(job) == ["fd none\n"]
