"""Answers to qgpud/1 questions: cards and their live settings, programs without Slurm, the daemon's
state.
"""

from __future__ import annotations

import functools
import grp
import logging
import os
import pwd
from collections.abc import Callable, Mapping
from typing import Any, cast

from enforcer.daemon.arbiter.port import ArbiterError, ArbiterRefusedError
from enforcer.daemon.audit.procs import uids_of
from enforcer.daemon.granting.driver import BrokenNodeError
from enforcer.daemon.injecting.way import described
from enforcer.daemon.log import emit
from enforcer.daemon.node import NodeService
from enforcer.daemon.requests.jobs import JOB_ASKS, JobAsk
from enforcer.daemon.requests.livecards import Snapshot
from enforcer.daemon.requests.move import MoveError
from enforcer.daemon.requests.reclass import ReclassError
from enforcer.daemon.requests.reply import Peer, RefusedError, Reply
from enforcer.daemon.requests.runs import (
    Offer,
    RunRefusedError,
    RunRequest,
    admit,
    allowed_ids,
    is_run,
    may_run,
    room,
)
from enforcer.daemon.requests.sealed import sealed_copy
from enforcer.fdwait import readable_within
from enforcer.nvml.port import NvmlError
from enforcer.rate import may_hold
from enforcer.wire.abi import pack_grant
from gres.config.levels import CardPlan, CardPlanError
from gres.config.site import CLASSES, JobClass
from gres.grant.identity import IdentityError
from gres.grant.store import Grant
from gres.units import MIB

# Programs without Slurm: half of the arbiter's places of a card (QP_MAX_TENANTS), so that the 100
# shares that Slurm gives of it always find one.
MAX_RUNS = 128


class Asks:
    """The questions. `owner` is the uid that may change things: root."""

    def __init__(self, service: NodeService, owner: int = 0) -> None:
        self._service, self.owner = service, owner
        run = service.config.run
        self._users = allowed_ids(run.allow_users, lambda name: pwd.getpwnam(name).pw_uid, "user")
        self._groups = allowed_ids(
            run.allow_groups, lambda name: grp.getgrnam(name).gr_gid, "group"
        )
        self._table: dict[str, Callable[[dict[str, Any], Peer], Reply]] = {
            "status": self._status,
            "cards": self._cards,
            "card-set": self._card_set,
            "card-reset": self._card_reset,
            **{op: functools.partial(self._job, ask) for op, ask in JOB_ASKS.items()},
            "run": self._run,
        }

    def answer(self, question: dict[str, Any], peer: Peer) -> Reply:
        """Reply to one question; a refusal is a reply too."""
        action = self._table.get(str(question.get("op")))
        try:
            if action is None:
                raise RefusedError(
                    f"qgpud does not know '{question.get('op')}'; is it older than this qgpu?"
                )
            reply = action(question, peer)
        except (RefusedError, ReclassError, MoveError, RunRefusedError, CardPlanError) as error:
            return Reply({"ok": False, "error": str(error)})
        except (NvmlError, IdentityError, BrokenNodeError) as error:
            return Reply({"ok": False, "error": f"this node cannot serve it: {error}"})
        return Reply({"ok": True, **reply.body}, reply.fd)

    def allows(self, peer: Peer) -> bool:
        """Whether the peer is root or may run programs by the configuration."""
        return peer.uid == self.owner or may_run(
            peer.uid, {peer.gid, *peer.groups}, self._users, self._groups
        )

    # ---- what there is --------------------------------------------------------------------------

    def _status(self, question: dict[str, Any], peer: Peer) -> Reply:
        service = self._service
        service.memory.check(patient=not self._is_root(peer))
        return Reply(
            {
                "node": service.node.name,
                "config": service.config_digest,
                "arbiter": service.connected,
                "grants": len(service.grants),
                **service.memory.describe(service.grants.values()),
                "hardware": self._hardware(),
                "moves": service.devices.fault() if service.config.reclaim.move else "",
                "reclaim": service.reclaimer.figures() if service.reclaimer.enabled else None,
                **described(service.config, service.node),
            }
        )

    def _hardware(self) -> dict[str, dict[str, object]]:
        service = self._service
        return service.hardware.describe(
            [t.hardware for t in service.sampler.tenants if t.hardware is not None]
        )

    def _offers(self, recent: bool = False) -> list[Offer]:
        """The cards now; with `recent`, or a moment ago."""
        node, view = self._service.node, self._service.view
        found = view.recent() if recent else view.configured()
        return [Offer(index, info, node.cards[index].usable) for index, info in found]

    def _governed(self, offer: Offer, job_class: JobClass) -> bool:
        return self._service.plan(offer.index, offer.info.uuid).governed(job_class)

    def _cards(self, question: dict[str, Any], peer: Peer) -> Reply:
        hardware, offers = self._hardware(), self._offers(recent=not self._is_root(peer))
        return Reply({"cards": [self._card(offer, hardware) for offer in offers]})

    def _card(self, offer: Offer, hardware: Mapping[str, dict[str, object]]) -> dict[str, Any]:
        service = self._service
        plan = service.plan(offer.index, offer.info.uuid)
        left = room(offer, service.grants.values(), service.config, self._governed)
        return {
            "index": offer.index,
            "uuid": offer.info.uuid,
            "model": service.node.cards[offer.index].model,
            "name": offer.info.name,
            "mem_total": offer.info.mem_total // MIB,
            "mem_usable": offer.usable,
            "mem_left": left.mem,
            "share_left": left.share,
            "grants": left.grants,
            "whole": left.whole,
            "settings": plan.values(),
            "sources": plan.sources,
            "saved": sorted(service.live.saved.get(offer.info.uuid, {})),
            "hardware": hardware.get(offer.info.uuid),
        }

    # ---- live settings --------------------------------------------------------------------------

    def _find(self, question: dict[str, Any]) -> Offer:
        wanted = str(question.get("card", ""))
        offers = self._offers()
        for offer in offers:
            if wanted in (str(offer.index), offer.info.uuid):
                return offer
        known = ", ".join(f"{o.index} ({o.info.uuid})" for o in offers) or "none that answers"
        raise RefusedError(
            f"'{wanted[:60]}' is no card of {self._service.node.name}; it has {known}"
        )

    def _job(self, ask: JobAsk, question: dict[str, Any], peer: Peer) -> Reply:
        self._root_only(peer, ask.verb, ask.what)
        return Reply(ask.answer(self._service, question, peer.uid, self._find))

    def _is_root(self, peer: Peer) -> bool:
        return peer.uid in (0, self.owner)

    def _root_only(self, peer: Peer, what: str, of: str = "a card") -> None:
        if not self._is_root(peer):
            raise RefusedError(f"only root may {what} {of}; uid {peer.uid} asked")

    def _card_set(self, question: dict[str, Any], peer: Peer) -> Reply:
        self._root_only(peer, "change")
        offer = self._find(question)
        values = question.get("values")
        if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
            raise RefusedError("values must be an object of texts, for example slice=1ms")
        save = bool(question.get("save"))
        return self._change(
            offer, lambda uuid: self._service.live.set(uuid, values, save), save, peer
        )

    def _card_reset(self, question: dict[str, Any], peer: Peer) -> Reply:
        self._root_only(peer, "reset")
        return self._change(self._find(question), self._service.live.reset, False, peer)

    def _change(self, offer: Offer, action: Callable[[str], None], save: bool, peer: Peer) -> Reply:
        """Change the settings and send them to the arbiter; if it refuses, all is as before."""
        live, uuid = self._service.live, offer.info.uuid
        old, undo = self._service.plan(offer.index, uuid), live.snapshot(uuid)
        try:
            action(uuid)
        except OSError as error:
            raise RefusedError(
                f"{live.path} cannot be written: {error.strerror}; nothing was changed"
            ) from None
        new = self._service.plan(offer.index, uuid)
        try:
            reached = self._tell(uuid, new)
        except ArbiterRefusedError as error:
            raise RefusedError(f"{error}; {self._undo(offer, undo)}") from None
        before, after = old.values(), new.values()
        changed = [key for key in after if before[key] != after[key]]
        for key in changed:
            emit(
                logging.INFO,
                "card-set",
                card=uuid,
                key=key,
                before=before[key],
                after=after[key],
                uid=peer.uid,
                saved=save or None,
            )
        rows = [{"key": key, "before": before[key], "after": after[key]} for key in changed]
        return Reply(
            {"card": self._card(offer, self._hardware()), "changed": rows, "reached": reached}
        )

    def _undo(self, offer: Offer, undo: Snapshot) -> str:
        """Restore the settings; the sentence for the user about it."""
        live = self._service.live
        try:
            live.restore(offer.info.uuid, undo)
        except OSError as error:
            return (
                f"what held before holds again, but {live.path} still has the change and cannot be"
                f" written ({error.strerror}): make room there and run qgpu card reset"
                f" {offer.index} before qgpud restarts"
            )
        return "nothing was changed"

    def _tell(self, uuid: str, plan: CardPlan) -> bool:
        """Whether the arbiter has it now; an absent one gets it with the next full list."""
        if not self._service.connected:
            return False
        try:
            self._service.ports.arbiter.card(uuid, plan)
        except ArbiterError as error:
            self._service.lose_arbiter(str(error))
            return False
        return self._service.order_hardware({uuid: plan})

    # ---- programs without Slurm -----------------------------------------------------------------

    def _run(self, question: dict[str, Any], peer: Peer) -> Reply:
        self._check_peer(peer)
        self._check_count(peer)
        request = _run_request(question, peer)
        service = self._service
        if unfit := service.memory.run_fault():
            raise RefusedError(unfit)
        grant = admit(
            request,
            service.config,
            service.node,
            self._offers(),
            list(service.grants.values()),
            self._governed,
            service.view.paths(),
            service.ports.clock.realtime_ns(),
        )
        self._make(grant, peer)
        path = service.store.directory / f"{grant.job_id}.grant"
        body = {"job_id": grant.job_id, "path": str(path), "shim": grant.shim_path}
        card = grant.cards[0]
        body |= {
            "uuid": card.uuid,
            "index": card.index,
            "mem_cap": card.mem_cap,
            "share": card.share,
        }
        node = service.node
        return Reply(body, sealed_copy(pack_grant(grant, managed=node.managed, usable=node.usable)))

    def _check_count(self, peer: Peer) -> None:
        """Limit the programs; on cards without isolation nothing else bounds them."""
        running = [g for g in self._service.grants.values() if is_run(g.job_id)]
        mine = sum(grant.uid == peer.uid for grant in running)
        if not may_hold(0 if self._is_root(peer) else mine, len(running), MAX_RUNS):
            raise RunRefusedError(
                f"{len(running)} programs without Slurm run on {self._service.node.name}, {mine} of"
                f" them yours; {MAX_RUNS} may, nobody more than are free: wait until one ends"
            )

    def _check_peer(self, peer: Peer) -> None:
        if not self.allows(peer):
            raise RefusedError(
                f"uid {peer.uid} may not run programs without Slurm on {self._service.node.name}:"
                " submit a job"
                " with sbatch --gres=qgpu:30, or have root add you to run.allow_users in qgpu.yaml"
            )

    def _check_program(self, peer: Peer, pidfd: int) -> None:
        """Check that the program may have its own grant. Raises RefusedError."""
        uids, job = uids_of(peer.pid), self._service.steps.job_of(peer.pid)
        if readable_within(pidfd, 0):  # /proc may describe another process with its pid
            raise RefusedError("the program that asked is gone")
        if uids != {peer.uid}:
            raise RefusedError("a setuid program may not ask for a grant")
        if job is not None:
            raise RefusedError(
                f"you are inside job {job}, which has its own grant: start the program without"
                " qgpu run"
            )

    def _make(self, grant: Grant, peer: Peer) -> None:
        service = self._service
        try:
            pidfd = peer.pidfd()
        except OSError:
            raise RefusedError("the program that asked is gone") from None
        try:
            self._check_program(peer, pidfd)
        except RefusedError:
            os.close(pidfd)
            raise
        try:
            service.runs.hold(grant.job_id, peer.pid, pidfd)
            answer = service.admit(grant)
        except OSError as error:
            service.end(grant.job_id, "failed")
            raise RefusedError(f"the grant cannot be written: {error}") from None
        if answer is None:
            raise RefusedError(service.abandon(grant.job_id, "run the program again").message)
        if answer.status:
            service.runs.drop(grant.job_id)
            raise RefusedError(answer.message)


def _run_request(question: dict[str, Any], peer: Peer) -> RunRequest:
    share, mem, card = question.get("share"), question.get("mem"), question.get("card")
    job_class = question.get("class")
    if isinstance(share, bool) or not isinstance(share, int):
        raise RefusedError(
            f"share is {share!r}, but must be whole percent; write for example --share 30"
        )
    if mem is not None and (
        isinstance(mem, bool) or not isinstance(mem, int) or not 0 < mem < 2**33
    ):
        raise RefusedError(f"mem is {mem!r}, but must be whole MiB; write for example --mem 8G")
    if job_class not in CLASSES:
        raise RefusedError(f"class is {job_class!r}, but must be one of {', '.join(CLASSES)}")
    if card is not None and not isinstance(card, str):
        raise RefusedError("card must be an index or a UUID; write for example --card 0")
    return RunRequest(share, cast(JobClass, job_class), mem, card, peer.uid, peer.gid)
