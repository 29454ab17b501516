"""What tests of qgpud share: the words of its hooks, and a daemon that serves in a thread."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from enforcer.daemon.node import NodeService
from enforcer.daemon.server import Server
from simulator.fakes import FakeNode

SHARE = "qgpu/1 class=online share=30 mem=12288"


def hook_env(
    job: int = 9, comment: str = SHARE, gpus: str = "0", uid: int = 1000
) -> dict[str, str]:
    """The variables that slurmd gives a Prolog of the job."""
    base = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(uid), "SLURM_JOB_GID": "100"}
    return base | {"SLURMD_NODENAME": "n1", "SLURM_JOB_COMMENT": comment, "SLURM_JOB_GPUS": gpus}


class Quiet(Server):
    """Without signal handlers, which Python allows in the main thread only."""

    def _signals(self):  # type: ignore[no-untyped-def]
        return contextlib.nullcontext()


class Serving:
    """A server in a thread; signals stay with the main thread, so `stop` ends it."""

    def __init__(self, node: FakeNode, owner: int = os.geteuid()) -> None:
        self.node = node
        ready = threading.Event()
        # SQLite objects belong to the thread that made them: everything is made, and given back,
        # there.
        self._thread = threading.Thread(target=self._run, args=(ready, owner), daemon=True)
        self._thread.start()
        assert ready.wait(30)

    def _run(self, ready: threading.Event, owner: int) -> None:
        service = self.node.service()
        service.start()
        self.server = Quiet(service, self.node.clock, owner)
        self.server.run(ready.set)
        self.node.retire(service)

    @property
    def path(self) -> Path:
        return self.server.path

    def stop(self) -> None:
        self.server.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


def new_arbiter(node: FakeNode, service: NodeService) -> None:
    """The arbiter was killed, and its successor has no process."""
    node.arbiter.procs = []
    node.arbiter.overheads.clear()
    node.arbiter.restart()
    service.lose_arbiter("x")
    service.reach_arbiter()


def sampled(service: NodeService) -> None:
    """The cards are sampled once, a second after the last time."""
    service.ports.clock.advance(1)  # type: ignore[attr-defined]
    service.sample_cards()
