"""`cores` of qgpu.yaml, Cores= of gres.conf: a job that is bound to its card has cores near it."""

from __future__ import annotations

import re
from pathlib import Path

from jobs_support import Live
from test_jobs_sites import running, site

from gres.config.hostlist import expand

NEAR = [range(32), range(32, 64)]  # cores of the two sockets, by card


def near_cards(text: str) -> str:
    """The first card lies at the first socket, the second at the second."""
    changed, count = re.subn(r'(files: "[^"]*")', r'\1, cores: ["0-31", "32-63"]', text)
    assert count, text
    return changed


def two_sockets(etc: Path) -> None:
    conf = etc / "slurm.conf"
    text = conf.read_text()
    old = "SocketsPerBoard=1 CoresPerSocket=64"
    assert old in text, text
    conf.write_text(text.replace(old, "SocketsPerBoard=2 CoresPerSocket=32"))


def cores_of(live: Live, job: int) -> set[int]:
    """Processors that Slurm allocated; each core of the sandbox's nodes has one."""
    found = re.search(r"CPU_IDs=(\S+)", live.ask("scontrol", "-d", "show", "job", str(job)))
    assert found
    return {int(name) for name in expand(f"[{found[1]}]")}


def test_a_bound_share_has_cores_near_its_card(live: Live) -> None:
    node = ("-w", live.nodes[0])
    bound = ("--gres-flags=enforce-binding", "-c", "4", *node)
    with site(live, near_cards, two_sockets):
        jobs = [running(live, "offline", "qgpu:60", *bound) for _ in range(2)]
        assert sorted(live.place(job)[1] for job in jobs) == [0, 1]
        for job in jobs:
            cores, near = cores_of(live, job), set(NEAR[live.place(job)[1]])
            # Later versions take a core for each of the 60 shards, as far as there are any.
            wanted = 4 if live.dialect.before("24.11") else len(near)
            assert cores <= near and len(cores) == wanted, (job, cores)
        # Cores near one card are all in use: what is bound goes to the other card.
        live.cancel(*jobs)
        live.empty()
        full = live.submit("exec sleep 600", "-c", "32", "--gres=qgpu:1", *node, bound[0])
        live.wait_state(full, "RUNNING")
        other = running(live, "offline", "qgpu:1", *bound)
        assert live.place(other)[1] != live.place(full)[1]
        assert cores_of(live, other) <= set(NEAR[live.place(other)[1]])
