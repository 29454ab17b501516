"""A job of many steps at once: its records are bounded, and no other job notices."""

from __future__ import annotations

from jobs_support import Live, work
from steps_support import records_of

MAX_STEPS_PER_JOB = 32
STEPS = MAX_STEPS_PER_JOB + 8


def records(live: Live, node: str, job: int) -> int:
    """How many slurmstepds of the job are on record."""
    return len(records_of(live.paths(node).run_dir, job))


def test_a_job_of_many_steps_hides_no_other_job(live: Live) -> None:
    """alice's steps beyond the bound work all the same, as does bob's job beside them."""
    each = f"srun -n1 --overlap {work('--requests', '5')} >/dev/null && echo done"
    hold = "srun -n1 --overlap sh -c 'echo up; exec sleep 600' &\n" * STEPS
    many = live.submit(
        f"{hold}until [ -e go ]; do sleep 0.2; done; {each}; rm go; wait", "--gres=qgpu:30"
    )
    node, _ = live.place(many)
    live.until(lambda: live.output(many).count("up") == STEPS, 60, f"{STEPS} steps")
    assert records(live, node, many) == MAX_STEPS_PER_JOB
    other = live.submit(
        f"srun {work('--requests', '5')} >/dev/null && echo done",
        *("--gres=qgpu:30", f"--nodelist={node}"),
        user="bob",
    )
    live.wait_gone(other, 60)
    assert live.output(other, "bob") == "done\n"
    (live.sandbox.layout.home("alice") / "go").touch()
    live.until(lambda: "done" in live.output(many), 30, "a step beyond the bound")
    live.cancel(many)
    live.until(lambda: records(live, node, many) == 0, 30, "the end of the records")
