"""What Slurm's Prolog and Epilog are told, as one typed value.

slurmd sets these variables itself; but the tag passed through slurmctld and the values through a client and a
socket, so everything is checked again. A missing tag is no error here: whether a job may have a card without
one is the daemon's decision.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gres.schema import TagField
from gres.tag import Tag, TagError, looks_like_tag, parse_tag

MAX_VALUE = 4096
MAX_GPUS = 64
_VARIABLE: dict[TagField, str] = {"extra": "SLURM_JOB_EXTRA", "comment": "SLURM_JOB_COMMENT"}


class HookEnvError(ValueError):
    """The hook's environment cannot be used; the text is a sentence that names the variable."""


@dataclass(frozen=True)
class HookJob:
    """One job on one node, as a hook sees it. `problem` says why a tag that is there cannot be used."""

    job_id: int
    uid: int
    gid: int
    node: str
    gpus: tuple[int, ...]
    tag: Tag | None
    problem: str = ""


def _number(env: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = env.get(name, "")
    if not re.fullmatch(r"[0-9]{1,10}", text) or not low <= int(text) <= high:
        raise HookEnvError(f"{name} is '{text[:40]}', but must be a whole number from {low} to {high}")
    return int(text)


def parse_gpus(text: str) -> tuple[int, ...]:
    """GPU indexes of "0,1" or "0-3,5" in Slurm's order. Raises HookEnvError with a sentence."""
    indexes: list[int] = []
    for item in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", item)
        if match is None:
            raise HookEnvError(f"SLURM_JOB_GPUS is '{text[:80]}', but '{item[:20]}' is no index")
        indexes += range(int(match[1]), int(match[2] or match[1]) + 1)
        if len(indexes) > MAX_GPUS:
            raise HookEnvError(f"SLURM_JOB_GPUS names more than {MAX_GPUS} cards")
    if len(set(indexes)) != len(indexes):
        raise HookEnvError(f"SLURM_JOB_GPUS is '{text[:80]}' and names a card twice")
    return tuple(indexes)


def _tag(env: Mapping[str, str], order: tuple[TagField, ...]) -> tuple[Tag | None, str]:
    for field in order:
        text = env.get(_VARIABLE[field], "")
        if not looks_like_tag(text):
            continue
        try:
            return parse_tag(text), ""
        except TagError as error:
            return None, str(error)
    return None, ""


def parse_hook_env(env: Mapping[str, str], field: TagField | None = None) -> HookJob:
    """Typed view of a hook's environment.

    The tag is taken from SLURM_JOB_EXTRA, else from SLURM_JOB_COMMENT; `field` restricts it to one of them.
    Raises HookEnvError with a sentence when job, user or cards cannot be read.
    """
    for name, value in env.items():
        if len(value) > MAX_VALUE and name in (*_VARIABLE.values(), "SLURM_JOB_GPUS", "SLURMD_NODENAME"):
            raise HookEnvError(f"{name} is longer than {MAX_VALUE} characters")
    node = env.get("SLURMD_NODENAME", "")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", node):
        raise HookEnvError(f"SLURMD_NODENAME is '{node[:80]}', which is not a node name")
    tag, problem = _tag(env, ("extra", "comment") if field is None else (field,))
    return HookJob(
        job_id=_number(env, "SLURM_JOB_ID", 1, 2**32 - 1),
        uid=_number(env, "SLURM_JOB_UID", 0, 2**32 - 2),
        gid=_number(env, "SLURM_JOB_GID", 0, 2**32 - 2),
        node=node,
        gpus=parse_gpus(env.get("SLURM_JOB_GPUS", "")),
        tag=tag,
        problem=problem,
    )
