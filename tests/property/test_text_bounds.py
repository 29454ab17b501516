"""A text of any size in any field of a job is answered in a bounded number of Lua's steps.

slurmctld runs them under its locks. Counted are Lua's instructions, not time.
"""

from __future__ import annotations

import pytest
from examples_support import examples
from gres_support import LUA_VERSIONS, job_submit
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_plugin.submission import RequestError, Submission

FIELDS = (
    "gres", "tres_per_job", "tres_per_task", "tres_per_socket", "cpus_per_tres", "mem_per_tres",
    "tres_bind", "tres_freq", "qos", "partition", "comment", "extra", "vram", "cards",
)  # fmt: skip
PIECE = st.sampled_from(
    [",", ":", ";", "+", "qgpu/;", " ", "x", "a,", "a:", "gres:", "gpu:0,", "gpu:1,", "qgpu:1,"]
) | st.text(st.characters(min_codepoint=1, exclude_categories=("Cs",)), min_size=1, max_size=6)
SIZE = st.integers(0, 1100) | st.integers(1000, 3_000_000)
MOST = 100  # thousands of instructions; the worst text, 1024 commas, needs 63
COUNT = b"""
steps = 0
debug.sethook(function() steps = steps + 1 end, "", 1000)
"""


def steps(name: str, version: str, job: Submission) -> tuple[int, str | None, str]:
    """Thousands of instructions, and the refusal's rule and sentence."""
    judge = job_submit(version, name)
    judge.lua.execute(COUNT)
    key, text = None, ""
    try:
        judge.decide(job)
    except RequestError as error:
        key, text = error.key, str(error)
    judge.lua.execute(b"debug.sethook()")
    return int(judge.lua.globals()[b"steps"]), key, text


@pytest.mark.parametrize("version", LUA_VERSIONS)
@pytest.mark.parametrize("name", ["one", "mixed"])
@pytest.mark.parametrize("field", FIELDS)
@examples(15)
@given(piece=PIECE, size=SIZE)
@example(piece=",", size=3_000_000)
@example(piece="a,", size=1024)
def test_any_text_costs_bounded_steps(
    field: str, name: str, version: str, piece: str, size: int
) -> None:
    text = (piece * (size // len(piece.encode()) + 1)).encode()[:size].decode("utf-8", "ignore")
    given = {"gres": "qgpu:30", "qos": "prod", "partition": "gpu", field: text}
    count, key, said = steps(name, version, Submission(**given))
    assert count <= MOST
    assert len(said) < 700, "a refusal does not print the text"
    if len(text.encode()) > 1024 and field not in ("vram", "cards"):
        assert key == "field_long", said
    if len(text.encode()) > 65536 and field in ("vram", "cards"):
        assert key == "spank_long"
