"""Parses what Slurm gives Prolog and Epilog, as one typed value.

slurmd sets these variables. But the tag passed through slurmctld, and the values through a client
and a socket, so all is checked again. A missing tag is no error here: the daemon decides whether a
job may have a card without one.

Two carriers bring class, share and memory: the tag, a text by job_submit.lua, and our native GRES
plugins, with the counts of slurmctld's allocation (docs/specs/native-gres.md). The native one wins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gres.config.schema import JobClass, TagField
from gres.grant.tag import Tag, TagError, looks_like_tag, parse_tag
from gres.printable import printable
from gres.units import MIB

MAX_VALUE = 4096  # characters of one variable: more is no value of Slurm's
MAX_GPUS = 64  # cards of one job on one node: Slurm's nodes have fewer
NATIVE = ("QGPU_NATIVE_CLASS", "QGPU_NATIVE_SHARE", "QGPU_NATIVE_MEM")
_CLASSES: dict[str, JobClass] = {"online": "online", "offline": "offline"}
_VARIABLE: dict[TagField, str] = {"extra": "SLURM_JOB_EXTRA", "comment": "SLURM_JOB_COMMENT"}
ALLOCATED = "QGPU_ALLOCATED"
UNKNOWN = "?"  # its value if slurmctld gave no answer or a shortened one
_READ = (*_VARIABLE.values(), *NATIVE, ALLOCATED, "SLURM_JOB_GPUS", "SLURMD_NODENAME")
_PARTS = ("gres/shard", "gres/mps", "gres/qgpu", "gres/vram")


class HookEnvError(ValueError):
    """The hook's environment cannot be used; the text is a sentence that names the variable."""


@dataclass(frozen=True)
class HookJob:
    """One job on one node, as a hook sees it.

    * `tag`: the promise, by either carrier
    * `problem`: why the promise is unusable
    * `overruled`: a tag that differs from the native plugin, and so does not count
    * `untagged`: without a tag, but with whole cards, like jobs queued before qgpu was installed
    * `unanswered`: without a tag, and slurmctld did not tell what it holds
    """

    job_id: int
    uid: int
    gid: int
    node: str
    gpus: tuple[int, ...]
    tag: Tag | None
    problem: str = ""
    overruled: str = ""
    untagged: bool = False
    unanswered: bool = False


class _NativeError(ValueError):
    """The native plugin's counts are no share; the text is a sentence."""


def _number(env: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = env.get(name, "")
    if not re.fullmatch(r"[0-9]{1,10}", text) or not low <= int(text) <= high:
        raise HookEnvError(
            f"{name} is '{printable(text, 40)}', but must be a whole number from {low} to {high}"
        )
    return int(text)


def parse_gpus(text: str) -> tuple[int, ...]:
    """GPU indexes of "0,1" or "0-3,5" in Slurm's order. Raises HookEnvError with a sentence."""
    indexes: list[int] = []
    for item in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", item)
        if match is None:
            raise HookEnvError(
                f"SLURM_JOB_GPUS is '{printable(text, 80)}', but '{printable(item, 20)}'"
                " is no index"
            )
        indexes += range(int(match[1]), int(match[2] or match[1]) + 1)
        if len(indexes) > MAX_GPUS:
            raise HookEnvError(f"SLURM_JOB_GPUS names more than {MAX_GPUS} cards")
    if len(set(indexes)) != len(indexes):
        raise HookEnvError(f"SLURM_JOB_GPUS is '{printable(text, 80)}' and names a card twice")
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


def _each_card(env: Mapping[str, str], name: str, what: str, cards: int) -> int:
    """One card's part of a count that Slurm keeps for all cards of the job on this node."""
    text = env.get(name, "")
    if not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        raise _NativeError(
            f"Slurm allocated no {what} to it"
            if not text
            else f"Slurm allocated '{printable(text, 40)}' of {what} to it"
        )
    if int(text) % cards:
        raise _NativeError(
            f"Slurm allocated {text} of {what} to it, which {cards} cards cannot have equal parts"
            " of"
        )
    return int(text) // cards


def _parts(env: Mapping[str, str], said: Tag | None, gpus: int) -> int:
    """The number of cards behind Slurm's counts.

    A tag that agrees with the count has it for certain, as Slurm could split one card's share over
    two. Else it is the number of cards that the job holds.
    """
    if (
        said is not None
        and not said.whole
        and env.get("QGPU_NATIVE_SHARE") == str(said.share * said.cards)
    ):
        return said.cards
    return max(gpus, 1)


def _counts_whole(env: Mapping[str, str]) -> bool:
    """Whether Slurm's counts are those of whole cards: a hundred for each and no memory, or all
    that the node has, of both classes (--exclusive where gres.conf has no `explicit`).
    """
    if set(env.get("QGPU_NATIVE_CLASS", "").split(",")) == set(_CLASSES):
        return True
    share = env.get("QGPU_NATIVE_SHARE", "")
    return not env.get("QGPU_NATIVE_MEM") and re.fullmatch(r"[1-9][0-9]{0,3}00", share) is not None


def _native(env: Mapping[str, str], said: Tag | None, gpus: int) -> Tag | None:
    """The tag by slurmctld's allocation; None without a native plugin. Raises _NativeError."""
    if not any(env.get(name) for name in NATIVE):
        return None
    if said is not None and said.whole and _counts_whole(env):
        # SPANK still refuses a task that has shards
        return None
    cards = _parts(env, said, gpus)
    job_class = _CLASSES.get(env.get("QGPU_NATIVE_CLASS", ""))
    if job_class is None:
        name = printable(env.get("QGPU_NATIVE_CLASS", ""), 40) or "none"
        raise _NativeError(f"the class of its qgpu is '{name}', but must be online or offline")
    share = _each_card(env, "QGPU_NATIVE_SHARE", "qgpu", cards)
    mem = _each_card(env, "QGPU_NATIVE_MEM", "vram", cards)
    if share > 100:
        raise _NativeError(f"Slurm allocated {share} of qgpu of one card to it; the limit is 100")
    if mem % MIB:
        raise _NativeError(f"Slurm allocated {mem} bytes of vram to it, which is no number of MiB")
    # Slurm counts no host memory of ours. A false word here only lets the job's memory be taken.
    host, cpus = (said.host, said.cpus) if said is not None else (None, None)
    return Tag(job_class, share, mem // MIB, cards, host=host, cpus=cpus)


def _promise(
    env: Mapping[str, str], order: tuple[TagField, ...], gpus: int, native_only: bool
) -> tuple[Tag | None, str, str]:
    """(tag, problem, overruled) of both carriers."""
    said, problem = _tag(env, order)
    try:
        native = _native(env, said, gpus)
    except _NativeError as error:
        return None, str(error), ""
    if native is not None:
        return native, "", "" if native == said else str(said or problem)
    if native_only and said is not None and not said.whole:
        return (
            None,
            (
                f"it says '{said}', but a share counts here only as Slurm allocated it"
                " (slurm.native_gres), and Slurm's qgpu plugin said nothing about this job"
            ),
            "",
        )
    return said, problem, ""


def holds_whole_cards(allocated: str, gpus: int) -> bool:
    """Whether "cpu=1,mem=64M,gres/gpu=1", by slurmctld, means whole cards and no parts of cards.

    The job may hold more on other nodes than the `gpus` of this one. An unreadable count is no
    card.
    """
    counts: list[int] = []
    for entry in allocated.split(","):
        name, _, count = entry.partition("=")
        if name.startswith(_PARTS):
            return False
        if name == "gres/gpu" or name.startswith("gres/gpu:"):
            counts.append(int(count) if re.fullmatch(r"[0-9]{1,6}", count) else 0)
    return gpus > 0 and bool(counts) and min(counts) > 0 and max(counts) >= gpus


def parse_hook_env(
    env: Mapping[str, str], field: TagField | None = None, native_only: bool = False
) -> HookJob:
    """Parse a hook's environment. Raises HookEnvError if job, user or cards cannot be read.

    The tag comes from SLURM_JOB_EXTRA, else from SLURM_JOB_COMMENT; `field` selects one of them.
    The native plugin counts before any tag. With `native_only` a tag cannot promise a share at all
    (whole cards are Slurm's gres/gpu, which our plugin does not count). A job with cards and no tag
    has whole cards if slurmctld says so (`ALLOCATED`, which the hook client asked for).
    """
    for name, value in env.items():
        if len(value) > MAX_VALUE and name in _READ:
            raise HookEnvError(f"{name} is longer than {MAX_VALUE} characters")
    node = env.get("SLURMD_NODENAME", "")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", node):
        raise HookEnvError(f"SLURMD_NODENAME is '{printable(node, 80)}', which is not a node name")
    gpus = parse_gpus(env.get("SLURM_JOB_GPUS", ""))
    order: tuple[TagField, ...] = ("extra", "comment") if field is None else (field,)
    tag, problem, overruled = _promise(env, order, len(gpus), native_only)
    untagged = tag is None and not problem and holds_whole_cards(env.get(ALLOCATED, ""), len(gpus))
    return HookJob(
        job_id=_number(env, "SLURM_JOB_ID", 1, 2**32 - 1),
        uid=_number(env, "SLURM_JOB_UID", 0, 2**32 - 2),
        gid=_number(env, "SLURM_JOB_GID", 0, 2**32 - 2),
        node=node,
        gpus=gpus,
        tag=Tag() if untagged else tag,
        problem=problem,
        overruled=overruled,
        untagged=untagged,
        unanswered=tag is None and env.get(ALLOCATED) == UNKNOWN,
    )
