"""What a submission asks for, what Slurm is told instead, or why it is refused (docs/specs/request.md).

This is the reference; slurm_plugin/lua/qgpu.lua does the same inside slurmctld. tests/cases/requests.yaml and
a property test hold them together, so a change here is a change there. The order of the checks decides which
sentence a user reads and is part of the behaviour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gres.entries import Entries, Entry, parse_entries
from gres.messages import sentence, shown
from gres.reservation import default_mem, shards
from gres.schema import CLASSES, JobClass
from gres.tables import Tables
from gres.tag import MAX_FIELD_BYTES, SEPARATOR, Tag, looks_like_tag, strip_tags, with_tag
from gres.units import MIB, suffix_factor

_HUGE = 10**15  # counts are read up to here, so that Lua's doubles stay exact
_SPELLINGS = (
    ("tres_per_job", "--gpus"),
    ("tres_per_task", "--tres-per-task"),
    ("tres_per_socket", "--gpus-per-socket"),
)
_OPTIONS = (
    ("cpus_per_tres", "--cpus-per-gpu", " --cpus-per-task=4"),
    ("mem_per_tres", "--mem-per-gpu", " --mem=16G"),
    ("tres_bind", "--gpu-bind", ""),
    ("tres_freq", "--gpu-freq", ""),
)


class RequestError(ValueError):
    """A refusal: `key` names the rule, the text is the sentence that the user reads."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


@dataclass(frozen=True)
class Submission:
    """The fields of a job submission that matter here, under Slurm's names; None where not given.

    `qgpu_mem` and `cards` are the options of the SPANK plugin as they were written, `nodes` and the two numbers of
    tasks the shape of the job; `decide` looks at none of these five, `gres.cards` does.
    """

    gres: str | None = None
    qos: str | None = None
    comment: str | None = None
    extra: str | None = None
    partition: str | None = None
    tres_per_job: str | None = None
    tres_per_task: str | None = None
    tres_per_socket: str | None = None
    cpus_per_tres: str | None = None
    mem_per_tres: str | None = None
    tres_bind: str | None = None
    tres_freq: str | None = None
    exclusive: bool = False
    qgpu_mem: str | None = None
    cards: str | None = None
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None


@dataclass(frozen=True)
class Decision:
    """What becomes of an accepted submission. Fields that stay as they are are None.

    `shards` is what Slurm books on the card, `cards` the number of whole cards per node (0 for a share). The last three
    are set where shares are asked for per task (slurm.multi_card).
    """

    gres: str | None = None
    comment: str | None = None
    extra: str | None = None
    tag: Tag | None = None
    model: str | None = None
    shards: int = 0
    cards: int = 0
    tres_per_task: str | None = None
    tasks_per_node: int = 0
    tasks: int = 0


@dataclass(frozen=True)
class _Share:
    """What the qgpu entry says."""

    entry: Entry
    model: str | None
    percent: int


def refuse(tables: Tables, key: str, token: str, **words: object) -> RequestError:
    """The refusal `key`, with the words that every sentence may use and those of this one."""
    common = {
        "token": shown(token),
        "min": tables.min_share,
        "max": tables.max_share,
        "example": tables.example,
        "low": tables.min_mem,
        "model": next(iter(tables.models)),
        "models": ", ".join(tables.models),
        "qos": next(iter(tables.qos_names), "none"),
        "qos_list": ", ".join(tables.qos_names) or "none",
        "partition": next(iter(tables.partitions), "none"),
    }
    return RequestError(key, sentence(key, {name: str(word) for name, word in {**common, **words}.items()}))


def most_cards(tables: Tables, model: str | None) -> int:
    """The most cards (of a model) that one node has."""
    return max(table.cards for name, table in tables.models.items() if model in (None, name))


def _percent(entry: Entry, word: str, model: str | None, tables: Tables) -> int:
    """The number of a qgpu entry, checked against everything but max_share."""
    if word == "" or word in tables.models:
        raise refuse(tables, "share_missing", entry.text)
    if not re.fullmatch(r"[0-9]+", word):
        raise refuse(tables, "share_text", entry.text, word=shown(word))
    digits = word.lstrip("0") or "0"
    cards = most_cards(tables, model)
    most = 1 if tables.whole_by_shard else cards
    if len(digits) > 6:
        raise refuse(tables, "cards_many", entry.text, cards=cards, top=100 * most)
    percent = int(digits)
    if percent < tables.min_share:
        raise refuse(tables, "share_low", entry.text)
    if percent > 100 and percent % 100:
        up = 100 * min(percent // 100 + 1, most)
        raise refuse(tables, "share_multiple", entry.text, up=up)
    if percent > 100 * cards:
        raise refuse(tables, "cards_many", entry.text, cards=cards, top=100 * most)
    return percent


def _share(entry: Entry, tables: Tables) -> _Share:
    parts = entry.parts
    if parts and parts[0] in CLASSES:
        raise refuse(tables, "class_by_hand", entry.text)
    if len(parts) < 2:
        return _Share(entry, None, _percent(entry, parts[0] if parts else "", None, tables))
    if len(parts) > 2:
        raise refuse(tables, "parts", entry.text)
    if parts[0] not in tables.models:
        raise refuse(tables, "model_unknown", entry.text, word=shown(parts[0]))
    return _Share(entry, parts[0], _percent(entry, parts[1], parts[0], tables))


def _with_marker(share: _Share, shared: list[Entry], tables: Tables) -> _Share:
    """Accept the one `shard:1` or `shard:MODEL:1` that our cli_filter adds for srun, nothing else."""
    for entry in shared:
        model = entry.parts[0] if len(entry.parts) == 2 else share.model
        fits = (
            entry.name == "shard" and len(shared) == 1 and entry.parts[-1:] == ("1",) and len(entry.parts) < 3
        )
        if not fits or (share.model and model != share.model):
            raise refuse(tables, "by_hand", entry.text)
        if model is not None and model not in tables.models:
            raise refuse(tables, "model_unknown", entry.text, word=shown(model))
        share = replace(share, model=model)
    return share


def _bytes(word: str) -> int | None:
    """Bytes of a Slurm count, at most 2^53; None if it is none."""
    match = re.fullmatch(r"([0-9]+)([A-Za-z]*)", word)
    factor = suffix_factor(match[2]) if match else None
    if match is None or factor is None:
        return None
    digits = match[1].lstrip("0") or "0"
    return 2**53 if len(digits) > 15 else min(int(digits) * factor, 2**53)


def _mem(entry: Entry, share: _Share, tables: Tables) -> int:
    """MiB of a qgpu_mem entry, rounded up."""
    word = ":".join(entry.parts)
    size = _bytes(word)
    if size is None:
        raise refuse(tables, "mem_text", entry.text, word=shown(word))
    if size < tables.min_mem * MIB:
        raise refuse(tables, "mem_low", entry.text, share=share.percent)
    mem = -(-size // MIB)
    usable = tables.models[share.model].usable if share.model else tables.smallest
    if mem <= usable:
        return mem
    raise _mem_high(entry, share, mem, tables)


def _mem_high(entry: Entry, share: _Share, mem: int, tables: Tables) -> RequestError:
    """Too much for the card; where a larger model would do, or is the largest there is, it is named."""
    sizes = sorted((table.usable, name) for name, table in tables.models.items())
    fitting = [name for usable, name in sizes if usable >= mem]
    if not share.model and fitting:
        words = {"usable": sizes[0][0], "model": fitting[0], "share": share.percent}
        return refuse(tables, "mem_high_untyped", entry.text, **words)
    model = share.model or (sizes[-1][1] if sizes[-1][0] > sizes[0][0] else None)
    usable = tables.models[model].usable if model else sizes[0][0]
    return refuse(tables, "mem_high", entry.text, usable=usable, ask=_typed("qgpu", model, share.percent))


def job_class(qos: str | None, token: str, tables: Tables) -> JobClass:
    """Class of a QOS (or of a list of them). Raises RequestError if it has none, or two."""
    names = [name for name in (qos or "").split(",") if name] or ["(none)"]
    found = {
        tables.qos.get(name.lower()) or tables.default_class for name in names
    }  # to Slurm Online is online
    if None in found:
        raise refuse(tables, "qos_unmapped", token, word=shown(qos or "(none)"))
    if len(found) > 1:
        raise refuse(tables, "qos_mixed", token, word=shown(qos or ""))
    return "online" if "online" in found else "offline"


def _check_options(job: Submission, token: str, tables: Tables) -> None:
    for name, option, instead in _OPTIONS:
        if getattr(job, name):
            raise refuse(tables, "option", token, option=option, instead=instead)


def managed(partition: str | None, tables: Tables) -> bool:
    """Whether any of a job's partitions is ours."""
    if not tables.partitions:
        return True
    return any(name in tables.partitions for name in (partition or "").split(","))


def _gres(own: list[str], rest: list[Entry]) -> str:
    return ",".join([*own, *(entry.text for entry in rest)])


def _typed(name: str, model: str | None, count: object) -> str:
    return f"{name}:{model}:{count}" if model else f"{name}:{count}"


def _decide_share(job: Submission, entries: Entries, share: _Share, tables: Tables) -> Decision:
    token = share.entry.text
    if share.percent > tables.max_share:
        raise refuse(tables, "share_high", token)
    mem = _mem(entries.mem[0], share, tables) if entries.mem else None
    cls = job_class(job.qos, token, tables)
    if job.exclusive:
        raise refuse(tables, "exclusive", token)
    _check_options(job, token, tables)
    usable = tables.models[share.model].usable if share.model else tables.smallest
    if mem is None:
        mem = default_mem(share.percent, usable)
        if mem < tables.min_mem:
            raise refuse(tables, "mem_default_low", token, mem=mem)
    booked = shards(share.percent, mem, usable, tables.compute[cls])
    own = [f"qgpu:{cls}:{share.percent}", _typed("shard", share.model, booked), f"qgpu_mem:{mem}M"]
    tag = Tag(cls, share.percent, mem)
    return Decision(gres=_gres(own, entries.rest), tag=tag, model=share.model, shards=booked)


def _decide_qgpu(
    job: Submission, entries: Entries, shared: list[Entry], gpu: list[Entry], tables: Tables
) -> Decision:
    entry = entries.qgpu[0]
    if not managed(job.partition, tables):
        raise refuse(tables, "partition", entry.text, word=shown(job.partition or "(default)"))
    share = _with_marker(_share(entry, tables), shared, tables)
    if gpu:
        raise refuse(tables, "gpu_and_qgpu", entry.text, other=shown(gpu[0].text))
    if share.percent < 100 or (share.percent == 100 and entries.mem):
        return _decide_share(job, entries, share, tables)
    cards = share.percent // 100
    lone = tables.whole_by_shard and not job.exclusive
    if entries.mem and not (lone and cards > 1):
        raise refuse(tables, "mem_whole", entries.mem[0].text, other=shown(entry.text))
    if lone:
        return _decide_lone(job, entry, share.model, cards, entries.rest, tables)
    own = [_typed("gpu", share.model, cards)]
    return Decision(gres=_gres(own, entries.rest), tag=Tag(), model=share.model, cards=cards)


def _decide_lone(
    job: Submission, entry: Entry, model: str | None, cards: int, rest: list[Entry], tables: Tables
) -> Decision:
    """A whole card, booked as all its shards."""
    if cards != 1:
        raise refuse(tables, "whole_many", entry.text)
    if model is not None and model not in tables.models:
        raise refuse(tables, "model_unknown", entry.text, word=shown(model))
    _check_options(job, entry.text, tables)
    return Decision(gres=_gres([_typed("shard", model, 100)], rest), tag=Tag(), model=model, cards=1)


def _lone(gpu: list[Entry], shared: list[Entry], entries: Entries) -> tuple[Entry, str | None, int]:
    """The entry, model and number of whole cards per node; 0 where it is more than --gres=gpu:1 can say."""
    entry, own = (gpu[0], entries.gpu) if gpu else (shared[0], entries.shared)
    if len(gpu) + len(shared) != 1 or own != [entry] or len(entry.parts) > 2:
        return entry, None, 0
    number = re.fullmatch(r"0*(1|100)", entry.parts[-1]) if entry.parts else None
    if number:
        model = entry.parts[0] if len(entry.parts) == 2 else None
        return entry, model, int((number[1] == "1") == (entry.name == "gpu"))
    named = len(entry.parts) == 1 and not re.fullmatch("[0-9]+", entry.parts[0])
    return entry, entry.parts[0] if named else None, int(not entry.parts or named)


def _books_whole(shared: list[Entry], entries: Entries, tables: Tables) -> bool:
    """Whether that is what our cli_filter writes for a whole card, or what such a job was given."""
    lone = len(shared) == 1 and shared == entries.shared and shared[0].name == "shard"
    return tables.whole_by_shard and lone and shared[0].parts[-1:] == ("100",) and len(shared[0].parts) < 3


def _named_as_model(gpu: list[Entry]) -> list[Entry]:
    """`--gpus=qgpu:30` arrives as gpu:qgpu:30, which Slurm would take for a card model that no node has."""
    return [entry for entry in gpu if entry.parts[:1] == ("qgpu",)]


def _decide(job: Submission, tables: Tables) -> Decision:
    entries = parse_entries(job.gres)
    spelled = [(parse_entries(getattr(job, name)), option) for name, option in _SPELLINGS]
    for entry in _named_as_model(entries.gpu):
        raise refuse(tables, "spelling", entry.text, option="--gpus-per-node")
    for found, option in spelled:
        for entry in (*found.qgpu, *found.mem, *_named_as_model(found.gpu)):
            raise refuse(tables, "spelling", entry.text, option=option)
    for key, group in (("doubled", entries.qgpu), ("doubled_mem", entries.mem)):
        if len(group) > 1:
            raise refuse(tables, key, group[1].text)
    shared = [entry for found in (entries, *(found for found, _ in spelled)) for entry in found.shared]
    gpu = [entry for found in (entries, *(found for found, _ in spelled)) for entry in found.gpu]
    if entries.qgpu:
        return _decide_qgpu(job, entries, shared, gpu, tables)
    if entries.mem:
        raise refuse(tables, "mem_alone", entries.mem[0].text)
    if not managed(job.partition, tables):
        return Decision()
    if not (shared or gpu):  # with --exclusive Slurm gives the job all cards of its nodes
        return Decision(tag=Tag(node=True) if job.exclusive else None)
    if shared and (gpu or not _books_whole(shared, entries, tables)):
        raise refuse(tables, "by_hand", shared[0].text)
    if gpu and (job.exclusive or not tables.whole_by_shard):
        return Decision(tag=Tag())
    entry, model, cards = _lone(gpu, shared, entries)
    return _decide_lone(job, entry, model, cards, entries.rest, tables)


def _clean(text: str | None) -> str | None:
    """New content of a field that must not look like a tag; None where it may stay."""
    return strip_tags(text) if text and looks_like_tag(text) else None


def tagged(tag: Tag, text: str | None, tables: Tables) -> str:
    """The tag field's new content. Raises RequestError where the user's text leaves no room."""
    new = with_tag(tag, text or "")
    if len(new.encode("utf-8", "surrogateescape")) > MAX_FIELD_BYTES:
        size = len(strip_tags(text or "").encode("utf-8", "surrogateescape"))
        room = MAX_FIELD_BYTES - len(str(tag)) - len(SEPARATOR)
        raise refuse(tables, "text_long", "", field=tables.tag_field, bytes=size, room=room)
    return new


def decide(job: Submission, tables: Tables) -> Decision:
    """Judge one submission. Raises RequestError with the sentence for the user when it is refused."""
    decision = _decide(job, tables)
    fields = {"comment": _clean(job.comment), "extra": _clean(job.extra)}
    if decision.tag is not None:
        fields[tables.tag_field] = tagged(decision.tag, getattr(job, tables.tag_field), tables)
    return replace(decision, comment=fields["comment"], extra=fields["extra"])
