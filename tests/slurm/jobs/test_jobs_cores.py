"""`cores` of qgpu.yaml, Cores= of gres.conf: a job that is bound to its card has cores near it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs_support import Live, sentence_of
from test_jobs_sites import running, site

from gres.config.hostlist import expand

BIND = "--gres-flags=enforce-binding"
NODE_OF_4 = ("-n", "4", "--ntasks-per-node=4")
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


def enforced(etc: Path) -> None:
    """Clients ask for binding by themselves, as the cluster's default."""
    two_sockets(etc)
    conf = etc / "slurm.conf"
    text = conf.read_text()
    assert "\nSelectTypeParameters=CR_Core_Memory\n" in text, text
    conf.write_text(text.replace("CR_Core_Memory", "CR_Core_Memory,ENFORCE_BINDING_GRES"))


def check_near(live: Live, job: int, count: int) -> None:
    cores, near = cores_of(live, job), set(NEAR[live.place(job)[1]])
    assert cores <= near and len(cores) == count, (job, cores)


def test_a_bound_share_has_cores_near_its_card(live: Live) -> None:
    if not live.dialect.before("24.11"):
        pytest.skip("refused there: see below")
    node = ("-w", live.nodes[0])
    bound = (BIND, "-c", "4", *node)
    with site(live, near_cards, two_sockets):
        jobs = [running(live, "offline", "qgpu:60", *bound) for _ in range(2)]
        assert sorted(live.place(job)[1] for job in jobs) == [0, 1]
        for job in jobs:
            check_near(live, job, 4)
        # Cores near one card are all in use: what is bound goes to the other card.
        live.cancel(*jobs)
        live.empty()
        full = live.submit("exec sleep 600", "-c", "32", "--gres=qgpu:1", *node, BIND)
        live.wait_state(full, "RUNNING")
        other = running(live, "offline", "qgpu:1", *bound)
        assert live.place(other)[1] != live.place(full)[1]
        assert cores_of(live, other) <= set(NEAR[live.place(other)[1]])


def refused(live: Live, *options: str) -> None:
    for client in (["sbatch", "--wrap=true"], ["salloc", "--no-shell"], ["srun", "true"]):
        words = [client[0], "--gres=qgpu:10", *options, client[1]]
        done = live.run(*words, user="alice")
        said = sentence_of(done.stderr)
        assert done.returncode, done
        assert said.startswith(f"{BIND} is refused together with qgpu:10: without"), done


def test_where_a_bound_share_would_book_all_cores_it_is_refused(live: Live) -> None:
    if live.dialect.before("24.11"):
        pytest.skip("books as many as asked for: see above")
    refused(live, BIND, "-c", "4")  # all of the node's, since no card has cores
    with site(live, near_cards, two_sockets):
        refused(live, BIND)
        refused(live, BIND, "-n", "4")
        for tasks in (("--ntasks-per-node=1", "-c", "4"), ("-n", "1", "-c", "4"), NODE_OF_4):
            check_near(live, running(live, "offline", "qgpu:10", BIND, *tasks), 4)
    with site(live, near_cards, enforced):
        refused(live)
        free = running(live, "offline", "qgpu:10", "-c", "4", "--gres-flags=disable-binding")
        assert len(cores_of(live, free)) == 4
        check_near(live, running(live, "offline", "qgpu:10", *NODE_OF_4), 4)
