"""Shared by tests of qgpud/1: questions to the daemon of a fake node, and who asks."""

from __future__ import annotations

import os
from typing import Any

from daemon_support import hook_env

from enforcer.daemon.requests.answers import Asks
from enforcer.daemon.requests.reply import Peer, Reply
from simulator.fakes import FakeNode

ME = os.getuid()


def peer(uid: int = ME, groups: frozenset[int] = frozenset(), pid: int | None = None) -> Peer:
    number = os.getpid() if pid is None else pid
    return Peer(number, uid, os.getgid(), groups, lambda: os.pidfd_open(number))


def uuid(node: FakeNode, index: int = 0) -> str:
    return node.nvml.cards()[index].uuid


def ask(asks: Asks, op: str, who: Peer | None = None, **question: Any) -> dict[str, Any]:
    reply: Reply = asks.answer({"op": op, **question}, who or peer())
    if reply.fd is not None:
        os.close(reply.fd)
    return reply.body


def run(asks: Asks, who: Peer | None = None, **question: Any) -> dict[str, Any]:
    return ask(
        asks,
        "run",
        who,
        **({"share": 30, "class": "offline", "mem": 1024, "card": None} | question),
    )


def env(job: int = 9, comment: str = "qgpu/1 class=online share=60 mem=40960") -> dict[str, str]:
    return hook_env(job, comment)
