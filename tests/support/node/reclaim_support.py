"""A node whose offline jobs may be made to leave: real processes, and a helper that is a script.

The script keeps the state of each process in a file. It refuses, hangs or changes its mind where
the test put a file that says so.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon_support import hook_env

from enforcer.daemon.arbiter.port import ProcessUse
from enforcer.daemon.granting.hookproto import Answer, Later
from enforcer.daemon.node import NodeService
from enforcer.daemon.reclaim.child import Done, Process
from enforcer.ledger.read import reading, usage_of_jobs
from enforcer.ledger.reclaims import Reclaim, reclaims_of
from enforcer.nvml.port import GpuProcess
from gres.config.site import parse_config
from simulator.fakes import CONFIG, GIB, FakeNode

USER = 1000
SCRIPT = """#!/bin/sh
D=${0%/*}
echo "$*" >> $D/calls
shift 2
there=" "
while [ "${1#--}" != "$1" ]; do
  [ "$1" != --there ] || there="$there$2 "
  shift 2
done
action=$1
step=$action
[ $action != return ] || step=restore
shift
[ ! -e $D/hang ] && [ ! -e $D/hang.$action ] || exec sleep 600
while [ -e $D/slow ]; do sleep 0.02; done
failed=0
for pid; do
  state=running
  [ ! -e $D/state.$pid ] || read -r state < $D/state.$pid
  if [ -e $D/refuse.$action.$pid ] && [ "${there#* $pid }" = "$there" ]; then
    read -r state code name < $D/refuse.$action.$pid
    echo "$pid $state $step $code $name"
    failed=1
    continue
  fi
  case $action in
    leave) state=checkpointed ;;
    return) state=running ;;
  esac
  echo $state > $D/state.$pid
  echo "$pid $state - 0 CUDA_SUCCESS"
done
exit $failed
"""
CLASSES = """
classes: {{offline: {{memory: reclaimable}}}}
reclaim: {{deadline: 60s, operation: 60s, hysteresis: 10s, unable: {unable},
          helper: {helper}{more}}}
"""


class FakeChild:
    """A command that ends when the test says so."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.done: Done | None = None

    pid = 0

    def fileno(self) -> None:
        return None

    def poll(self) -> Done | None:
        return self.done

    def drop(self) -> None:
        pass


class FakeQueue:
    """Slurm's queue: it notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[FakeChild] = []
        self.said: list[tuple[int, str]] = []

    def tell(self, job_id: int, text: str) -> FakeChild:
        self.said.append((job_id, text))
        child = FakeChild("tell")
        child.done = Done(0)
        return child

    def requeue(self, job_id: int) -> FakeChild:
        return self._ask(f"requeue {job_id}")

    def cancel(self, job_id: int) -> FakeChild:
        return self._ask(f"cancel {job_id}")

    def _ask(self, words: str) -> FakeChild:
        self.asked.append(FakeChild(words))
        return self.asked[-1]


class Lab:
    """The node, its helper's directory, and the processes of its jobs."""

    def __init__(
        self, node: FakeNode, directory: Path, unable: str = "requeue", more: str = ""
    ) -> None:
        self.node, self.directory = node, directory
        self.helper = directory / "helper"
        self.helper.write_text(SCRIPT)
        self.helper.chmod(0o755)
        text = CONFIG.format(directory=node.directory, deadline="10s")
        node.config = parse_config(
            text + CLASSES.format(unable=unable, helper=self.helper, more=more)
        )
        self.queue = node.queue = FakeQueue()
        self.told: list[tuple[int, str]] = []
        self.held: dict[int, tuple[str, int]] = {}  # bytes by pid, and the card
        self.services: list[NodeService] = []
        self.programs: list[subprocess.Popen[bytes]] = []
        self.card, self.other = (info.uuid for info in node.nvml.cards())

    def start(self) -> NodeService:
        """A daemon, also a second one after a crash."""
        service = self.node.service()
        service.reclaimer.moves.tell = lambda job, uid, text: self.told.append((job, text))
        service.start()
        self.services.append(service)
        return service

    def crash(self, service: NodeService) -> NodeService:
        """A second daemon after the first one was killed; its helpers live."""
        service.reclaimer.moves.close()
        self.node.arbiter.restart()
        self.node.arbiter.held.clear()
        self.node.retire(service)
        return self.start()

    def helper_process(self, service: NodeService) -> subprocess.Popen[bytes]:
        """The one helper that runs."""
        (operation,) = service.reclaimer.moves.operations()
        assert isinstance(operation.child, Process)
        return operation.child._process

    def close(self) -> None:
        """End all that runs."""
        for service in self.services:
            for operation in service.reclaimer.moves.operations():
                if isinstance(operation.child, Process):
                    operation.child.kill()
                    operation.child.drop()
        for program in self.programs:
            program.kill()
            program.wait()

    def prolog(self, service: NodeService, job: int, gib: int, kind: str) -> Answer | Later | None:
        """The Prolog of a job with so much memory; an offline one may be made to leave."""
        tag = f"qgpu/1 class={kind} share=10 mem={gib * 1024}"
        return service.prolog(hook_env(job, tag + (" host=0" if kind == "offline" else "")))

    def offline(self, service: NodeService, job: int, gib: int) -> int:
        """An offline job that holds all of its cap; its process."""
        assert self.prolog(service, job, gib, "offline") == Answer(0)
        return self.program(job, gib)

    def program(self, job: int, gib: int) -> int:
        """A process of the job that holds so much."""
        program = subprocess.Popen(["/bin/sleep", "600"], user=USER)
        self.programs.append(program)
        self.node.jobs_of_pids[program.pid] = job
        self.node.arbiter.procs.append(ProcessUse(job, self.card, program.pid, gib * GIB))
        self.hold(program.pid, gib)
        return program.pid

    def hold(self, pid: int, gib: int, card: str = "") -> None:
        """The driver counts so much for the process on the card, by default the first; 0: it does
        not list it.
        """
        self.held[pid] = (card or self.card, gib * GIB)
        if not gib:
            del self.held[pid]
        for info in self.node.nvml.cards():
            held = self.held.items()
            here = [GpuProcess(pid, size) for pid, (uuid, size) in held if uuid == info.uuid]
            self.node.nvml.put(info.uuid, *here)

    def refuse(self, action: str, pid: int, answer: str) -> None:
        """From now on the helper cannot do that: the state, CUDA's number and its name."""
        (self.directory / f"refuse.{action}.{pid}").write_text(answer + "\n")

    def set(self, pid: int, state: str) -> None:
        """Where the process is by the helper."""
        (self.directory / f"state.{pid}").write_text(state + "\n")

    def calls(self) -> list[str]:
        """What the helper was asked, without its options and the processes."""
        known = ("state", "leave", "return")
        return [next(word for word in line if word in known) for line in self.lines()]

    def lines(self) -> list[list[str]]:
        """The words of each call of the helper."""
        path = self.directory / "calls"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def settle(self, service: NodeService) -> None:
        """Let each helper that runs end, and take its end."""
        while service.reclaimer.moves.operations():
            self.step(service)

    def step(self, service: NodeService) -> None:
        """The same for those that run now."""
        for operation in service.reclaimer.moves.operations():
            fd = operation.child.fileno()
            if fd is not None:
                poller = select.poll()
                poller.register(fd, select.POLLIN)
                assert poller.poll(30_000), "the helper does not end"
        service.reclaimer.tick()

    def leaves(self, service: NodeService, *pids: int) -> None:
        """What the running helper moves away is gone from the card, as the driver counts."""
        for pid in pids:
            self.hold(pid, 0)
        self.settle(service)
        service.reclaimer.tick()

    def rows(self, job: int) -> list[Reclaim]:
        """The job's intervals in the ledger."""
        with reading(self.node.directory / "state/ledger.sqlite") as database:
            usages = [usage for _, usage in usage_of_jobs(database, [job])]
            return [row for usage in usages for row in reclaims_of(database, usage.key)]


@contextmanager
def lab(node: FakeNode, unable: str = "requeue", more: str = "") -> Iterator[Lab]:
    """A laboratory in a directory that no other user could replace."""
    directory = Path(f"/var/lib/qgpu-test-{os.getpid()}")
    directory.mkdir(mode=0o755)
    made = None
    try:
        made = Lab(node, directory, unable, more)
        yield made
    finally:
        if made is not None:
            made.close()
        shutil.rmtree(directory)


def leave(made: Lab, service: NodeService, gib: int = 60) -> int:
    """Job 1 has left for job 9, which started; the process of job 1."""
    pid = made.offline(service, 1, gib)
    assert isinstance(made.prolog(service, 9, 50, "online"), Later)
    made.leaves(service, pid)
    assert made.prolog(service, 9, 50, "online") == Answer(0)
    return pid
