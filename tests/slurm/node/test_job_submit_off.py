"""slurmctld without qgpu's job_submit: `qgpu guard` holds what waits, and ends what runs with a
sentence.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jobs_support import Live

IDLE = """function slurm_job_submit(job_desc, part_list, uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture(params=["no-plugin", "own-script"])
def without_us(request: pytest.FixtureRequest, live: Live) -> Iterator[None]:
    """JobSubmitPlugins lacks lua, or the site's script does not call ours."""
    etc = live.sandbox.layout.etc
    path = etc / ("slurm-qgpu.conf" if request.param == "no-plugin" else "job_submit.lua")
    text = path.read_text()
    path.write_text(
        text.replace("JobSubmitPlugins=lua\n", "") if request.param == "no-plugin" else IDLE
    )
    assert path.read_text() != text
    live.sandbox.restart_controller()
    yield
    path.write_text(text)
    live.sandbox.restart_controller()


def test_jobs_that_job_submit_did_not_see(live: Live, without_us: None) -> None:
    waits = live.submit("true", "--gres=qgpu:30", "--begin=now+1hour")
    array = live.submit("true", "--gres=qgpu:30,vram:4G", "--array=1-3", "--begin=now+1hour")
    held = live.submit("true", "-H", "--gres=qgpu:10")
    plain = live.submit("sleep 600", "--begin=now+1hour")
    runs = live.submit("echo up; sleep 600", "--gres=qgpu:30")
    live.until(lambda: live.output(runs) == "up\n", 20, "the script")
    done = live.run("qgpu", "guard")
    assert done.returncode == 1
    for job, kind in ((waits, "hold"), (array, "hold"), (runs, "cancel")):
        assert f"{kind}: qgpu: job {job} asks for" in done.stderr
    live.wait_gone(runs)
    assert live.state(runs) == "CANCELLED"
    assert "JobSubmitPlugins" in live.output(runs) and f"job {runs} asks for" in live.output(runs)
    assert (live.reason(waits), live.reason(held), live.reason(plain)) == (
        "JobHeldAdmin",
        "JobHeldUser",
        "BeginTime",
    )
    assert live.reason(array) == "JobHeldAdmin"
    assert "it has no card" in live.run("scontrol", "show", "job", str(waits)).stdout
    assert live.run("qgpu", "guard").stderr == "", "held jobs are left as they are"
    live.cancel(waits, array, held, plain)


def test_what_passed_job_submit_is_left(live: Live) -> None:
    asked = [
        "qgpu:30",
        "qgpu:offline:30",
        "qgpu:h200:30",
        "qgpu:10,vram:4G",
        "qgpu:100",
        "gpu:1",
    ]
    accepted = [
        int(done.stdout)
        for gres in asked
        if not (
            done := live.run(
                "sbatch",
                "--parsable",
                "-H",
                f"--gres={gres}",
                "--wrap=true",
                user="alice",
                cwd="/tmp",
            )
        ).returncode
    ]
    assert len(accepted) >= 5
    done = live.run("qgpu", "guard", "--dry-run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    live.cancel(*accepted)
