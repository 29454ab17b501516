"""Reads jobs of Slurm's accounting by pyslurm (25.11.2 and later, which first has TRES of a job).

Written from its published interface. Two traits matter: a number 0 comes as None (task 0 of an
array, a job of no length), and a job is found only by its plain number.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gres.config.hostlist import HostlistError, expand, fold
from slurm_plugin.accounting.sacct import SacctJob, Window
from slurm_plugin.records import SlurmError

PLAIN = ("cpu", "mem", "node", "billing")


def fits(module: Any) -> bool:
    """Whether this pyslurm has all that is used here; minor releases differ."""
    database = getattr(module, "db", None)
    wanted = (("Jobs", "load"), ("Job", "allocated_tres"), ("JobFilter", "truncate_time"))
    return all(hasattr(getattr(database, kind, None), name) for kind, name in wanted)


class Pyslurm:
    """The interface of accounting.py on an imported pyslurm."""

    def __init__(self, module: Any) -> None:
        self._db = module.db
        self._errors: tuple[type[Exception], ...] = (module.PyslurmError, ValueError, KeyError)

    def jobs(self, job_ids: Sequence[str]) -> list[SacctJob]:
        """Ask by plain numbers, and keep the requested tasks and parts."""
        numbers = sorted({int(text.partition("_")[0].partition("+")[0]) for text in job_ids})
        found = self._load(ids=numbers) if numbers else []
        asked = set(job_ids)
        return [job for job in found if asked & {job.job_id, str(job.raw_id), _head(job.job_id)}]

    def between(self, window: Window) -> list[SacctJob]:
        """Ask for a window."""
        chosen = {"users": window.users, "accounts": window.accounts, "qos": window.qos}
        limits = {name: list(values) for name, values in chosen.items() if values}
        return self._load(
            start_time=window.since,
            end_time=window.until,
            truncate_time=not window.listed,
            **limits,
        )

    def _load(self, **conditions: Any) -> list[SacctJob]:
        try:
            found = self._db.Jobs.load(self._db.JobFilter(**conditions))
        except self._errors as error:
            raise SlurmError(f"slurmdbd did not answer through pyslurm: {error}") from None
        return [
            job_of(raw)
            for raw in sorted(found.values(), key=lambda raw: (raw.submit_time or 0, raw.id))
        ]


def _head(job_id: str) -> str:
    return job_id.partition("_")[0].partition("+")[0]


def _name(raw: Any) -> str:
    """A job's name as sacct writes it: 12, 12_3 or 12+1."""
    if raw.array_id and not raw.array_tasks_waiting:
        return f"{raw.array_id}_{raw.array_task_id or 0}"
    if raw.array_id:
        return f"{raw.array_id}_[{_tasks(raw)}]"
    if raw.heterogeneous_id:
        return f"{raw.heterogeneous_id}+{raw.heterogeneous_offset or 0}"
    return str(raw.id)


def _tasks(raw: Any) -> str:
    """The waiting tasks of an array as sacct writes them: 0,3,5-9, with %2 of them at once.
    pyslurm has them as the bits of a number, 0x3E9.
    """
    text = str(raw.array_tasks_waiting)
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", text) is None:
        return text
    bits = int(text, 16)
    tasks = (str(bit) for bit in range(bits.bit_length()) if bits >> bit & 1)
    at_once = getattr(raw, "array_tasks_parallel", None)
    return fold(tasks).strip("[]") + (f"%{at_once}" if at_once else "")


def tres_of(raw: Any) -> Mapping[str, str]:
    """TRES by name, as sacct writes them, counts in their smallest unit (memory of the node is MiB
    here).
    """
    if raw is None:
        return MappingProxyType({})
    single: Iterable[tuple[str, Any]] = ((name, getattr(raw, name, None)) for name in PLAIN)
    gres = {f"gres/{name}": item for name, item in (raw.gres or {}).items()}
    found = {**{name: item for name, item in single if item is not None}, **gres}
    return MappingProxyType({name: _count(name, item) for name, item in found.items()})


def _count(name: str, item: Any) -> str:
    count = int(getattr(item, "count", item))
    return _mebibytes(count) if name == "mem" else str(count)


def _mebibytes(count: int) -> str:
    """MiB in the largest unit that divides them, as sacct writes memory."""
    units = "MGTP"
    while count and count % 1024 == 0 and len(units) > 1:
        count, units = count // 1024, units[1:]
    return f"{count}{units[0]}"


def _state(raw: Any) -> str:
    """A state as sacct writes it: pyslurm has the name of who cancelled the job apart."""
    state, name = raw.state or "", getattr(raw, "cancelled_by", None)
    if state != "CANCELLED" or not name:
        return state
    try:
        return f"{state} by {pwd.getpwnam(name).pw_uid}"
    except (KeyError, ValueError):
        return state


def _nodes(text: str | None) -> tuple[str, ...]:
    if not text or text == "None assigned":
        return ()
    try:
        return tuple(expand(text))
    except HostlistError:
        return (text,)


def job_of(raw: Any) -> SacctJob:
    """A pyslurm.db.Job as a SacctJob."""
    return SacctJob(
        job_id=_name(raw),
        raw_id=int(raw.id),
        user=raw.user_name or "",
        state=_state(raw),
        elapsed_s=raw.elapsed_time or 0,
        nodes=_nodes(raw.nodelist),
        qos=raw.qos or "",
        partition=raw.partition or "",
        tres=tres_of(raw.allocated_tres),
        name=raw.name or "",
        account=raw.account or "",
        start=raw.start_time,
        end=raw.end_time,
    )
