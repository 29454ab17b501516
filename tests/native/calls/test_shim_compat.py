"""A program that brings its own libcuda.so.1 (NVIDIA's cuda-compat): it runs below the shim,
within the same limits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native

OPENS = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = cuda ? (int (*)(unsigned))dlsym(cuda, "cuInit") : 0;
    char line[4096];
    if (!init) return 2;
    printf("%d\n", init(0));
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof(line), maps)) fputs(line, stdout);
    return 0;
}
"""


@pytest.fixture
def compat(tmp_path: Path) -> Path:
    """A directory with a driver's library that is not the node's."""
    directory = tmp_path / "compat"
    directory.mkdir()
    shutil.copy(s.STUB, directory / "libcuda.so.580.1")
    (directory / "libcuda.so.1").symlink_to("libcuda.so.580.1")
    return directory


def opened(maps: str) -> set[str]:
    """Directories of the libraries named libcuda that a process has open, but the shim's."""
    paths = {Path(line.split()[-1]) for line in maps.splitlines() if "libcuda.so" in line}
    return {path.parent.name for path in paths if path.resolve() != s.SHIM.resolve()}


def test_library_of_ld_library_path_runs_below_the_shim(
    tmp_path: Path, arbiter: s.FakeArbiter, compat: Path
) -> None:
    with s.governed(
        tmp_path, s.CAP, env={"LD_LIBRARY_PATH": f"/none:{compat}:{s.STUB.parent}"}
    ) as probe:
        s.started(probe)
        assert "compat" in opened(Path(f"/proc/{probe.process.pid}/maps").read_text())
        assert probe.ask(f"alloc 0 {25 * s.GIB}") == s.OUT_OF_MEMORY
        assert probe.ask(f"alloc 0 {s.GIB}") == 0
        arbiter.card.set(s.CLOSED | s.TRACK)
        probe.send("launch 0 0x10 1")
        assert not probe.answered(0.2)
        arbiter.card.set(s.TRACK)
        assert int(probe.answer()) == 0
        assert arbiter.card.proc("launches") == 1
        assert "refused" in probe.finish()


@pytest.mark.parametrize("kind", ["none", "nodes", "shims", "later", "broken"])
def test_the_nodes_driver_where_the_loader_would_take_that(
    tmp_path: Path, arbiter: s.FakeArbiter, compat: Path, kind: str
) -> None:
    """No other directory, the node's own first, the shim's (as where it is mounted), or a file
    that is no library.
    """
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libcuda.so.1").write_text("no library\n")
    paths = {"none": "/none", "nodes": s.STUB.parent, "shims": s.SHIM.parent, "broken": broken}
    path = f"{s.STUB.parent}:{compat}" if kind == "later" else str(paths[kind])
    with s.governed(tmp_path, s.CAP, env={"LD_LIBRARY_PATH": path}) as probe:
        s.started(probe)
        assert opened(Path(f"/proc/{probe.process.pid}/maps").read_text()) == {"stub"}
        assert probe.ask(f"alloc 0 {25 * s.GIB}") == s.OUT_OF_MEMORY
        probe.finish()


@pytest.mark.parametrize("tag", ["--enable-new-dtags", "--disable-new-dtags"])
def test_library_of_the_programs_rpath(
    tmp_path: Path, arbiter: s.FakeArbiter, compat: Path, tag: str
) -> None:
    program = tmp_path / "opens"
    flags = [f"-Wl,-rpath,{compat}", f"-Wl,{tag}", "-ldl"]
    subprocess.run(
        ["cc", "-x", "c", "-o", program, "-", *flags], input=OPENS, text=True, check=True
    )
    fd = s.sealed("grant", s.grant_bytes(tmp_path, s.CAP))
    env = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(s.SHIM), "QGPU_GRANT_FD": str(fd)}
    done = subprocess.run(
        [program], env=env, pass_fds=[fd], capture_output=True, text=True, check=True
    )
    os.close(fd)
    assert done.stdout.splitlines()[0] == "0"
    assert opened(done.stdout) == {"compat"}
    assert arbiter.card.asked == [0], "registered as any other"
