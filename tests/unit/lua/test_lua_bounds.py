"""Long texts are refused before anything reads them: of a submission, and of an update."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gres_support import LUA_VERSIONS, outcome
from test_lua_job_submit import JOB30, Slurm

from slurm_plugin.submission import Submission

OPTIONS = {
    "gres": "--gres",
    "tres_per_job": "--gpus",
    "tres_per_task": "--tres-per-task",
    "tres_per_socket": "--gpus-per-socket",
    "cpus_per_tres": "--cpus-per-gpu",
    "mem_per_tres": "--mem-per-gpu",
    "tres_bind": "--gpu-bind",
    "tres_freq": "--gpu-freq",
    "qos": "--qos",
    "partition": "--partition",
    "comment": "--comment",
}
fields = pytest.mark.parametrize("field", OPTIONS)


@pytest.fixture(params=LUA_VERSIONS)
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Slurm:
    return Slurm(request.param, "one", tmp_path)


@fields
def test_a_long_text_is_refused_by_its_options_name(one: Slurm, field: str) -> None:
    said = f"qgpu: {OPTIONS[field]} is refused: it has 1025 bytes, and Slurm takes at most 1024"
    code, written, text = one.submit(**{field: "," * 1025})
    assert (code, written) == (2072, {}) and text.startswith(said)


@fields
def test_a_long_text_of_an_update_is_refused_too(one: Slurm, field: str) -> None:
    code, written, text = one.modify(JOB30, **{field: "," * 1025})
    assert (code, written) == (2072, {}) and text.startswith(f"qgpu: {OPTIONS[field]} is refused")


@pytest.mark.parametrize("version", LUA_VERSIONS)
def test_extra_is_bounded_where_it_is_read(version: str) -> None:
    long = Submission(extra="x" * 1025, partition="cpu")
    assert outcome(long, "mixed", version).key == "field_long"
    assert outcome(long, "old", version).key is None


@pytest.mark.parametrize("version", LUA_VERSIONS)
def test_extra_is_taken_from_a_request_where_slurm_frees_it_twice(
    version: str, tmp_path: Path
) -> None:
    old = Slurm(version, "old", tmp_path)
    assert old.submit(partition="cpu", extra="mine") == (0, {"extra": ""}, "")
    assert old.submit(partition="cpu", extra="x" * 60_000) == (0, {"extra": ""}, "")
    assert old.submit(partition="cpu")[1] == {}
    code, written, _ = old.submit(gres="gres:qgpu:nonsense", extra="mine")
    assert (code, written) == (2072, {"extra": ""})


def test_extra_stays_where_slurm_keeps_it(tmp_path: Path) -> None:
    mixed = Slurm(LUA_VERSIONS[0], "mixed", tmp_path)
    assert mixed.submit(partition="cpu", extra="mine")[:2] == (0, {})


def test_a_job_without_cards_may_have_a_text_as_long_as_slurm_takes(one: Slurm) -> None:
    assert one.submit(comment="x" * 1024) == (0, {}, "")


def spank(one: Slurm, *lines: str, said: int | None = None, **fields: str) -> tuple[int, str]:
    """A submission with this SPANK environment, from 0 on as Slurm hands it out."""
    environment = one.lua.table_from(dict(enumerate(lines)))
    size = len(lines) if said is None else said
    code, _, text = one.submit(spank_job_env=environment, spank_job_env_size=size, **fields)
    return code, text


@pytest.mark.parametrize("partition", ["gpu", "cpu"])
@pytest.mark.parametrize("gres", [None, "qgpu:30"])
def test_what_would_keep_a_prolog_from_starting_is_refused_for_every_job(
    one: Slurm, gres: str | None, partition: str
) -> None:
    more = {"gres": gres, "partition": partition}
    for lines in (["SPANK_X=" + "x" * 200_000], ["SPANK_X=" + "x" * 25_000] * 100):
        code, text = spank(one, *lines, **more)
        assert code == 2072 and "at most 65536 fit beside what Slurm hands to a node" in text
        assert "xxx" not in text


def test_many_lines_are_refused_before_they_are_read(one: Slurm) -> None:
    code, text = spank(one, said=257)
    assert code == 2072 and "they have 257 lines in all, and at most 256 are taken" in text


def test_options_of_other_plugins_pass(one: Slurm) -> None:
    mounts = "SPANK__SLURM_SPANK_OPTION_pyxis_container_mounts=" + "/scratch/a:/b," * 2000
    assert spank(one, mounts, "SPANK_QGPU_VRAM=4G", gres="qgpu:30") == (0, "")
    assert spank(one, *["SPANK_X=1"] * 256) == (0, "")


def test_a_bound_is_the_sum_with_the_ends_of_the_strings(one: Slurm) -> None:
    assert spank(one, "x" * 65535) == (0, "")
    code, text = spank(one, "x" * 32768, "x" * 32767)
    assert code == 2072 and re.search("they have 65537 bytes in all", text)
