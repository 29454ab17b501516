"""Any submission: what the rules of docs/specs/request.md make of it, the same in every Lua
version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
from examples_support import examples
from gres_support import LUA_VERSIONS, Outcome, outcome, tables
from hypothesis import given
from hypothesis import strategies as st

from gres.grant.tag import Tag, looks_like_tag, parse_tag
from gres.request.reservation import shards
from gres.request.tables import Tables
from slurm_plugin.submission import Submission

MAX_FIELD_BYTES = 1024  # what slurmctld accepts in comment and extra

# No NUL: Slurm's strings are C strings. Surrogates that encode no byte cannot come out of one
# either.
TEXT = st.text(st.characters(min_codepoint=1, exclude_categories=("Cs",)), max_size=12)
NAMES = [
    "qgpu",
    "qgpu",
    "qgpu",
    "vram",
    "vram",
    "gpu",
    "shard",
    "mps",
    "tmpdisk",
    "license/x",
    "",
]
NUMBER = st.one_of(
    st.integers(-3, 420).map(str),
    st.integers(0, 2**70).map(str),
    st.sampled_from(["00", "030", "100", "200", "1", "0", "30%", "0.3", "1e2", "100 ", "+1"]),
)
SIZE = st.builds(
    lambda number, unit: f"{number}{unit}",
    st.one_of(st.integers(0, 200), st.integers(0, 2**66), st.integers(60_000_000, 70_000_000)),
    st.sampled_from(
        [
            "",
            "K",
            "M",
            "M",
            "G",
            "G",
            "g",
            "GiB",
            "GB",
            "mb",
            "T",
            "P",
            "PB",
            "X",
            "Gib/s",
            "B",
            "iB",
        ]
    ),
)
WORD = st.one_of(
    NUMBER, SIZE, st.sampled_from(["h200", "a100", "l4", "online", "offline", "H200", ""]), TEXT
)
PREFIX = st.sampled_from(["", "", "gres:", "gres/", "gres:gres:"])
ENTRY = st.builds(
    lambda prefix, name, parts, sep: prefix + sep.join([name, *parts]),
    PREFIX,
    st.one_of(st.sampled_from(NAMES), TEXT),
    st.lists(WORD, max_size=3),
    st.sampled_from([":", ":", ":", "="]),
)
PLAIN = st.builds(lambda share, size: f"qgpu:{share},vram:{size}", st.integers(0, 300), SIZE)
TRES = st.one_of(PLAIN, st.lists(ENTRY, max_size=4).map(",".join))
TAGGISH = st.sampled_from(
    [
        "qgpu/1 whole",
        " qgpu/1 class=online share=9 mem=9",
        ";",
        "; ",
        "qgpu/",
        "text",
        "\t",
        "x" * 500,
    ]
)
FIELD = st.none() | st.lists(st.one_of(TAGGISH, TEXT), max_size=4).map("".join)
QOS = st.sampled_from(
    [None, "online", "offline", "burst", "prod", "batch", "", ",", "online,offline", "prod,x"]
)
WILD = st.builds(
    Submission,
    gres=st.none() | TRES,
    qos=QOS | TEXT,
    comment=FIELD,
    extra=FIELD,
    partition=st.sampled_from([None, "", "gpu", "gpu2", "cpu", "cpu,gpu"]),
)
# Well-formed requests, of which many are accepted: memory and share reach every boundary of the
# clusters.
MEM = st.one_of(
    st.integers(60, 145_000),
    st.sampled_from([63, 64, 24576, 24577, 39936, 39937, 79872, 79873, 141312]),
)
TAME = st.builds(
    lambda model, share, mem, rest, **fields: Submission(
        gres=f"qgpu:{model}{share}" + (f",vram:{mem}M" if mem else "") + rest,
        partition="gpu",
        **fields,
    ),
    model=st.sampled_from(["", "", "h200:"]),
    share=st.integers(1, 100),
    mem=st.none() | MEM,
    rest=st.sampled_from(["", "", ",tmpdisk:1G", ",shard:1", ",gres/x:y"]),
    qos=st.sampled_from(["online", "offline", "prod", "batch"]),
    comment=FIELD,
    extra=FIELD,
)
SPELLED = st.builds(
    replace,
    TAME | WILD,
    tres_per_job=st.none() | TRES,
    tres_per_task=st.none() | TRES,
    tres_per_socket=st.none() | TRES,
    cpus_per_tres=st.sampled_from([None, "", "gres:gpu:1"]),
    tres_bind=st.sampled_from([None, "", "gres:gpu:closest"]),
    exclusive=st.sampled_from([None, None, "node", "user", "mcs", "topo"]),
)
SUBMISSION = st.one_of(TAME, TAME, WILD, SPELLED)


COUNT = st.none() | st.integers(1, 4)
SEVERAL = st.builds(
    replace,
    SUBMISSION,
    vram=st.sampled_from([None, None, "4G", "8", "x", "1T"]),
    cards=st.sampled_from([None, "1", "2", "3", "0", "17", "x", "02", "0x2", "1e0", " 2", "100"]),
    nodes=COUNT,
    tasks=COUNT,
    tasks_per_node=COUNT,
)

# A share or whole cards as somebody means them, and one of the ways to write that down.
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "GiB": 2**30, "g": 2**30, "T": 2**40}
UNITS |= {"KB": 10**3, "MB": 10**6, "mb": 10**6, "GB": 10**9}
FOREIGN = ["tmpdisk:1G", "gres/x:y", "craynetwork:1"]


@dataclass(frozen=True)
class Meant:
    model: str | None
    share: int
    size: tuple[int, str] | None
    rest: tuple[str, ...]
    qos: str | None

    @property
    def mem(self) -> int | None:
        """MiB, rounded up."""
        return self.size and -(-self.size[0] * UNITS[self.size[1]] // 2**20)

    @property
    def model_part(self) -> str:
        return f"{self.model}:" if self.model else ""


def sizes(unit: str) -> st.SearchStrategy[tuple[int, str]]:
    """Around the limits of the clusters, from less than min_mem to more than the largest card."""
    factor = UNITS[unit]
    limits = [64, 2048, 64, 2048, 24576, 39936, 79872, 141312]
    edge = st.builds(
        lambda mib, more: max(mib * 2**20 // factor + more, 0),
        st.sampled_from(limits),
        st.sampled_from([-1, 0, 1]),
    )
    return st.tuples(st.one_of(edge, edge, st.integers(0, 150 * 2**30 // factor)), st.just(unit))


MEANT = st.builds(
    Meant,
    model=st.sampled_from([None, None, None, "h200", "h200", "a100", "l4", "spare"]),
    share=st.one_of(
        st.integers(0, 130), st.sampled_from([1, 4, 5, 80, 81, 99, 100, 200, 300, 400, 800, 900])
    ),
    size=st.one_of(st.none(), *[st.sampled_from(sorted(UNITS)).flatmap(sizes)] * 3),
    rest=st.lists(st.sampled_from(FOREIGN), max_size=2).map(tuple),
    qos=st.sampled_from([None, "online", "OFFLINE", "prod", "batch", "other"]),
)


@st.composite
def spelled(draw: st.DrawFn) -> tuple[Meant, str]:
    """A request and its text: prefixes, separators, zeros, the order of the entries, our
    cli_filter's mark.
    """
    meant = draw(MEANT)
    own = ["qgpu:" + meant.model_part + draw(st.sampled_from(["", "0", "00"])) + str(meant.share)]
    if meant.size:
        own.append(f"vram:{meant.size[0]}{meant.size[1]}")
    own += draw(st.sampled_from([[], [], ["shard:1"]]))
    own = [text.replace(":", draw(st.sampled_from([":", "="]))) for text in own]
    entries = [draw(PREFIX) + text for text in own]
    for text in reversed(meant.rest):  # they keep their order among themselves
        entries.insert(draw(st.integers(0, len(entries))), text)
    places = sorted(index for index, text in enumerate(entries) if text in FOREIGN)
    for place, text in zip(places, meant.rest, strict=True):
        entries[place] = text
    return meant, ",".join(entries)


def whole(meant: Meant, t: Tables) -> Outcome:
    cards = meant.share // 100
    if meant.size and not (t.whole_by_shard and cards > 1):
        return Outcome(key="mem_whole")
    if t.whole_by_shard and cards > 1:
        return Outcome(key="whole_many")
    own = f"shard:{meant.model_part}100" if t.whole_by_shard else f"gpu:{meant.model_part}{cards}"
    job_class = t.qos.get((meant.qos or "").lower()) or t.default_class
    count = f"qgpu:{f'{job_class}:' if job_class else ''}{100 * cards}"
    return Outcome(gres=",".join([own, *rest_of(meant), count]), tag="qgpu/1 whole")


def rest_of(meant: Meant) -> list[str]:
    return [text.removeprefix("gres/") for text in meant.rest]


def too_much(meant: Meant, mem: int, t: Tables) -> str:
    fits = any(table.usable >= mem for table in t.models.values())
    return "mem_high_untyped" if not meant.model and fits else "mem_high"


def expected(meant: Meant, t: Tables) -> Outcome:
    """What docs/specs/request.md says of it, and in which order."""
    if meant.model not in (None, *t.models):
        return Outcome(key="model_unknown")
    cards = max(table.cards for name, table in t.models.items() if meant.model in (None, name))
    if meant.share < t.min_share:
        return Outcome(key="share_low")
    if meant.share > 100 and meant.share % 100:
        up = 100 * min(meant.share // 100 + 1, 1 if t.whole_by_shard else cards)
        return Outcome(key="share_multiple" if up > t.max_share else "share_high")
    if meant.share > 100 * cards:
        return Outcome(key="cards_many")
    if meant.share > 100 or (meant.share == 100 and not meant.size):
        return whole(meant, t)
    if meant.share > t.max_share:
        return Outcome(key="share_high")
    usable = t.models[meant.model].usable if meant.model else t.smallest
    least = t.models[meant.model].least if meant.model else t.min_mem
    if meant.size and meant.size[0] * UNITS[meant.size[1]] < least * 2**20:
        return Outcome(key="mem_low")
    if meant.mem is not None and meant.mem > usable:
        return Outcome(key=too_much(meant, meant.mem, t))
    job_class = t.qos.get((meant.qos or "").lower()) or t.default_class
    if job_class is None:
        return Outcome(key="qos_unmapped")
    mem = meant.share * usable // 100 if meant.mem is None else meant.mem
    if mem < least:
        return Outcome(key="mem_default_low")
    booked = shards(meant.share, mem, usable, t.compute[job_class])
    own = [
        f"qgpu:{job_class}:{meant.share}",
        f"shard:{meant.model_part}{booked}",
        f"vram:{mem}M",
    ]
    return Outcome(
        gres=",".join([*own, *rest_of(meant)]), tag=str(Tag(job_class, meant.share, mem))
    )


clusters = pytest.mark.parametrize("name", ["one", "mixed", "old"])


@pytest.mark.parametrize("version", LUA_VERSIONS)
@clusters
@examples(400)
@given(asked=spelled())
def test_a_well_formed_request_becomes_what_the_rules_say(
    name: str, version: str, asked: tuple[Meant, str]
) -> None:
    meant, gres = asked
    found = outcome(Submission(gres=gres, qos=meant.qos, partition="gpu"), name, version)
    assert replace(found, text=None, comment=None, extra=None) == expected(meant, tables(name)), (
        gres
    )


@pytest.mark.parametrize("multi_card", [False, True])
@clusters
@examples(300)
@given(job=SEVERAL)
def test_every_lua_version_says_the_same(name: str, multi_card: bool, job: Submission) -> None:
    first, *others = (
        outcome(job, name, version, multi_card=multi_card) for version in LUA_VERSIONS
    )
    assert [first] * len(others) == others


OURS = ("qgpu", "vram", "gpu", "shard", "mps", "")


def foreign(gres: str) -> list[str]:
    """Entries that are none of ours, without Slurm's prefix."""
    bare = [re.sub("^(gres[:/])*", "", text, flags=re.DOTALL) for text in gres.split(",")]
    return [text for text in bare if re.split("[:=]", text)[0] not in OURS]


@clusters
@examples(400)
@given(job=SUBMISSION)
def test_what_is_accepted_is_within_the_limits_and_booked(name: str, job: Submission) -> None:
    """Whatever a user writes: the promise is one that the cluster can keep, and what belongs to
    others stays.
    """
    found, t = outcome(job, name), tables(name)
    if found.gres is not None:
        assert foreign(found.gres) == foreign(job.gres or "")
    tag = parse_tag(found.tag or "")
    if tag is None or tag.job_class is None:
        return
    own = re.match(r"qgpu:(\w+):(\d+),shard:(?:(\w+):)?(\d+),vram:(\d+)M(,|$)", found.gres or "")
    assert own is not None
    assert (own[1], int(own[2]), int(own[5])) == (tag.job_class, tag.share, tag.mem)
    usable = t.models[own[3]].usable if own[3] else t.smallest
    least = t.models[own[3]].least if own[3] else t.min_mem
    assert t.min_share <= tag.share <= t.max_share and least <= tag.mem <= usable
    assert int(own[4]) == shards(tag.share, tag.mem, usable, t.compute[tag.job_class])


@clusters
@examples(300)
@given(job=SUBMISSION)
def test_what_the_node_reads_is_what_was_decided(name: str, job: Submission) -> None:
    """Whatever a user writes, a field that is a tag afterwards is ours, exact, and short enough
    for Slurm.
    """
    job = job if tables(name).has_extra else replace(job, extra=None)
    found = outcome(job, name)
    if found.key is not None:
        assert found.text is not None and re.fullmatch(r"[ -~]+\.", found.text)
        return
    field = tables(name).tag_field
    for other in ("comment", "extra"):
        text = getattr(found, other)
        text = getattr(job, other) or "" if text is None else text
        tag = parse_tag(text)
        assert (str(tag) if tag else None) == (found.tag if other == field else None)
        assert tag is not None or not looks_like_tag(text)
    if found.tag:
        assert len((getattr(found, field) or "").encode()) <= MAX_FIELD_BYTES


@pytest.mark.parametrize("version", LUA_VERSIONS)
@clusters
@examples(100)
@given(more=st.integers(-30, 30), letter=st.sampled_from(["x", "\u20ac"]), share=st.integers(5, 80))
def test_a_text_is_refused_where_it_would_not_fit_behind_the_tag(
    name: str, version: str, more: int, letter: str, share: int
) -> None:
    field = tables(name).tag_field
    job = Submission(
        gres=f"qgpu:{share},vram:2G",
        qos="online" if name != "mixed" else "prod",
        partition="gpu",
    )
    room = MAX_FIELD_BYTES - len(outcome(job, name).tag or "") - len("; ")
    text = letter * ((room + more) // len(letter.encode()))
    found = outcome(replace(job, **{field: text}), name, version)
    if len(text.encode()) > room:
        assert found.key == "text_long" and f"only {room} fit" in (found.text or "")
    else:
        assert getattr(found, field) == f"{found.tag}; {text}"
