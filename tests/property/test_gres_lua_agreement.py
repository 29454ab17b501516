"""Any submission: the Python reference and qgpu.lua say exactly the same, in every Lua version."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cases"))

from gres_support import LUA_VERSIONS, lua, python_outcome, tables

from gres.request import Submission
from gres.tag import MAX_FIELD_BYTES, looks_like_tag, parse_tag

# No NUL: Slurm's strings are C strings. Surrogates that encode no byte cannot come out of one either.
TEXT = st.text(st.characters(min_codepoint=1, exclude_categories=("Cs",)), max_size=12)
NAMES = ["qgpu", "qgpu", "qgpu", "qgpu_mem", "qgpu_mem", "gpu", "shard", "mps", "tmpdisk", "license/x", ""]
NUMBER = st.one_of(
    st.integers(-3, 420).map(str),
    st.integers(0, 2**70).map(str),
    st.sampled_from(["00", "030", "100", "200", "1", "0", "30%", "0.3", "1e2", "100 ", "+1"]),
)
SIZE = st.builds(
    lambda number, unit: f"{number}{unit}",
    st.one_of(st.integers(0, 200), st.integers(0, 2**66), st.integers(60_000_000, 70_000_000)),
    st.sampled_from(
        ["", "K", "M", "M", "G", "G", "g", "GiB", "GB", "mb", "T", "P", "PB", "X", "Gib/s", "B", "iB"]
    ),
)
WORD = st.one_of(NUMBER, SIZE, st.sampled_from(["h200", "a100", "l4", "online", "offline", "H200", ""]), TEXT)
PREFIX = st.sampled_from(["", "", "gres:", "gres/", "gres:gres:"])
ENTRY = st.builds(
    lambda prefix, name, parts, sep: prefix + sep.join([name, *parts]),
    PREFIX,
    st.one_of(st.sampled_from(NAMES), TEXT),
    st.lists(WORD, max_size=3),
    st.sampled_from([":", ":", ":", "="]),
)
PLAIN = st.builds(lambda share, size: f"qgpu:{share},qgpu_mem:{size}", st.integers(0, 300), SIZE)
TRES = st.one_of(PLAIN, st.lists(ENTRY, max_size=4).map(",".join))
TAGGISH = st.sampled_from(
    ["qgpu/1 whole", " qgpu/1 class=online share=9 mem=9", ";", "; ", "qgpu/", "text", "\t", "x" * 500]
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
# Well-formed requests, of which many are accepted: memory and share reach every boundary of the clusters.
MEM = st.one_of(
    st.integers(60, 145_000), st.sampled_from([63, 64, 24576, 24577, 39936, 39937, 79872, 79873, 141312])
)
TAME = st.builds(
    lambda model, share, mem, rest, **fields: Submission(
        gres=f"qgpu:{model}{share}" + (f",qgpu_mem:{mem}M" if mem else "") + rest, partition="gpu", **fields
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
    exclusive=st.booleans(),
)
SUBMISSION = st.one_of(TAME, TAME, WILD, SPELLED)


@pytest.mark.parametrize("name", ["one", "mixed", "old"])
@settings(max_examples=400, deadline=None)
@given(job=SUBMISSION)
def test_python_and_lua_agree(name: str, job: Submission) -> None:
    want = python_outcome(job, name)
    for version in LUA_VERSIONS:
        assert lua(version, name).outcome(job) == want, version


@pytest.mark.parametrize("name", ["one", "mixed", "old"])
@settings(max_examples=300, deadline=None)
@given(job=SUBMISSION)
def test_what_the_node_reads_is_what_was_decided(name: str, job: Submission) -> None:
    """Whatever a user writes, a field that is a tag afterwards is ours, exact, and short enough for Slurm."""
    found = python_outcome(job, name)
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
