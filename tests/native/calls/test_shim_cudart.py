"""NVIDIA's own CUDA runtime under the shim: every function it asks for comes from us, in the
right version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import shim_support as s

pytestmark = pytest.mark.native
TABLE = s.ROOT / "enforcer" / "native" / "shim" / "dispatch" / "symbols.tsv"
DRIVER = 13050  # what the stub is
PER_THREAD = 2
PROGRAM = s.BUILD / "test" / "shim-cudart"


class Query(NamedTuple):
    """One call of cuGetProcAddress."""

    name: str
    version: int
    flags: int
    by: str


def runtime() -> Path:
    """libcudart of the pip package."""
    found = sorted(
        (s.ROOT / ".venv").glob("lib/python3*/site-packages/nvidia/cu13/lib/libcudart.so.*")
    )
    if not found:
        pytest.skip("the package nvidia-cuda-runtime is not installed")
    return found[-1]


def with_runtime_inside(directory: Path, *options: str) -> Path:
    """A program that nvcc links with the static runtime."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("nvcc is not installed")
    program = directory / "static"
    source = Path(__file__).parents[1] / "programs" / "cudart_static.cu"
    subprocess.run([compiler, "-cudart", "static", *options, "-o", program, source], check=True)
    return program


KINDS = {"package": None, "static": (), "static_per_thread": ("-default-stream", "per-thread")}


@pytest.fixture(scope="module", params=KINDS)
def queries(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Query]:
    """All that the runtime asks for at its first call, in order: a shared library, or linked
    into the program.
    """
    path = tmp_path_factory.mktemp("cudart")
    options = KINDS[request.param]
    argv = [PROGRAM, runtime()] if options is None else [with_runtime_inside(path, *options)]
    arbiter = s.FakeArbiter(path, s.CAP)
    fd = s.sealed("grant", s.grant_bytes(path, s.CAP))
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(s.SHIM), "QGPU_GRANT_FD": str(fd)}
    env["QGPU_STUB_QUERIES"] = str(path / "queries")
    done = subprocess.run(argv, env=env, pass_fds=[fd], capture_output=True, text=True, check=True)
    os.close(fd)
    arbiter.stop()
    assert done.stdout.startswith(f"0 {DRIVER} "), done
    lines = (path / "queries").read_text().splitlines()
    return [
        Query(name, int(v), int(f), by) for name, v, f, by in (line.split(" ", 3) for line in lines)
    ]


def expected(query: Query) -> str:
    """What the table says: the newest symbol of the name that is not newer than the version,
    hooked or not.
    """
    rows = [
        line.split("\t")
        for line in TABLE.read_text(encoding="utf-8").splitlines()
        if line[0] != "#"
    ]
    best: tuple[int, int, str, str] | None = None
    for symbol, api, since, ptsz, kind in rows:
        if api != query.name or int(since) > min(query.version, DRIVER):
            continue
        if int(ptsz) and not query.flags & PER_THREAD:
            continue
        best = max(best or (-1, 0, "", ""), (int(ptsz), int(since), symbol, kind))
    return f"0 shim {best[2]}" if best and best[3] == "hook" else "driver"


def test_the_runtime_asks_through_us_for_everything(queries: list[Query]) -> None:
    assert len(queries) > 400
    assert {Path(query.by) for query in queries} == {s.SHIM}
    assert queries[0][:3] == ("-", 0, 0), "the probe with an empty name comes first"
    assert len([query for query in queries if query.flags & PER_THREAD]) > 60


def test_it_asks_for_several_versions_of_one_name(queries: list[Query]) -> None:
    """The reason why (name) alone is no key."""
    versions = {query.version for query in queries if query.name == "cuMemcpyBatchAsync"}
    assert {12080, 13000} <= versions
    assert {query.version for query in queries if query.name == "cuGetProcAddress"} == {
        11030,
        12000,
    }


def test_each_query_gets_its_hook_or_the_drivers_function(
    tmp_path: Path, queries: list[Query]
) -> None:
    arbiter = s.FakeArbiter(tmp_path, s.CAP)
    wrong, hooked = [], 0
    with s.governed(tmp_path, s.CAP) as probe:
        for query in sorted(set(queries)):
            answer = probe.text(f"proc {query.name} {query.version} {query.flags}")
            want = expected(query)
            hooked += want != "driver"
            good = answer == want if want != "driver" else answer.split()[1] != "shim"
            wrong += [] if good else [(query[:3], answer, want)]
    arbiter.stop()
    assert wrong == []
    assert hooked > 150
