"""Names that the node's driver lacks do not exist under the shim either."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import shim_support as s
from test_shim_exports import table

from enforcer.daemon.injecting.elf import exported, without
from enforcer.daemon.injecting.fitted import fit

pytestmark = pytest.mark.native

OLDER = s.BUILD / "test/older/libcuda.so.1"
NEWEST = {"cuMemcpyBatchAsync_v2", "cuCtxSynchronize_v2", "cuCtxGetDevice_v2"}
# Which names a program finds in the library by handle, by any library, and linked against.
FINDS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
everywhere = ctypes.CDLL(None)
for name in sys.stdin.read().split():
    print(name, hasattr(library, name), hasattr(everywhere, name))
"""


def finds(library: str, names: set[str], **env: str) -> dict[str, tuple[str, str]]:
    """Each name, and whether it is found by handle and by RTLD_DEFAULT."""
    done = subprocess.run(
        [sys.executable, "-c", FINDS, library],
        input="\n".join(sorted(names)),
        env={"PATH": os.environ["PATH"]} | env,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == ""
    return {name: (handle, default) for name, handle, default in lines}


@pytest.fixture
def fitted() -> Iterator[Path]:
    """The shim that fits the older driver."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="qgpu-fitted-") as place:
        Path(place).chmod(0o755)
        yield fit(s.SHIM, OLDER, Path(place))


def test_a_program_finds_what_it_finds_without(fitted: Path) -> None:
    names = {row[0] for row in table()}
    there = exported(OLDER.read_bytes())
    assert names - there >= NEWEST, "the driver lacks them"
    bare = finds("libcuda.so.1", names, LD_LIBRARY_PATH=str(OLDER.parent))
    assert {name for name, found in bare.items() if "True" in found} == there
    assert finds("libcuda.so.1", names, LD_PRELOAD=str(fitted)) == bare, "preloaded"
    assert finds(str(fitted), names) == bare, "as where it is mounted over the driver"
    assert "True" in finds("libcuda.so.1", NEWEST, LD_PRELOAD=str(s.SHIM))["cuCtxSynchronize_v2"], (
        "the whole shim"
    )


def test_what_is_left_works(tmp_path: Path) -> None:
    """A copy that lacks half of the names governs as the whole one does."""
    lost = {row[0] for row in table() if row[0].endswith("_ptsz")} | NEWEST
    place = tmp_path / "2"
    place.mkdir()
    copy = place / "libcuda.so.1"
    copy.write_bytes(without(s.SHIM.read_bytes(), lost))
    arbiter = s.FakeArbiter(tmp_path, [s.GIB])
    with s.governed(tmp_path, [s.GIB], shim=copy) as probe:
        s.started(probe)
        assert probe.ask(f"alloc 0 {2 * s.GIB}") == s.OUT_OF_MEMORY
        assert probe.ask(f"alloc 0 {s.GIB}") == 0
        assert probe.ask("launch 0 0x10 100") == 0
        assert arbiter.card.proc("launches") == 100
        assert probe.text("proc cuMemAlloc 12000 0").startswith("0 "), (
            "by cuGetProcAddress as before"
        )
    arbiter.stop()


def test_the_whole_shim_refuses_what_the_driver_lacks(tmp_path: Path) -> None:
    """Passed through or hooked: CUDA_ERROR_NOT_FOUND, and not a call into nothing."""
    fd = s.sealed("grant", s.grant_bytes(tmp_path, [s.GIB], driver=OLDER))
    calls = "import ctypes, sys\nd = ctypes.CDLL('libcuda.so.1')\n"
    calls += "print(*(getattr(d, n)(*[ctypes.c_void_p()] * 8) for n in sys.argv[1:]))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", calls, "cuDriverGetVersion", *sorted(NEWEST)],
            env={"PATH": os.environ["PATH"], "LD_PRELOAD": str(s.SHIM), "QGPU_GRANT_FD": str(fd)},
            pass_fds=(fd,),
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        os.close(fd)
    assert done.stdout.split()[1:] == ["500"] * len(NEWEST)


def test_a_library_can_be_linked_against_the_copy(fitted: Path, tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text("int cuInit(unsigned); int main(void) { return cuInit(0) == 0; }\n")
    program = tmp_path / "main"
    subprocess.run(["cc", "-o", program, source, fitted], check=True)
    assert (
        subprocess.run(
            [program], env={"LD_LIBRARY_PATH": str(fitted.parent)}, check=False
        ).returncode
        == 0
    )
    source.write_text(
        "int cuCtxSynchronize_v2(void *); int main(void) { return cuCtxSynchronize_v2(0); }\n"
    )
    done = subprocess.run(
        ["cc", "-o", program, source, fitted], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0 and "undefined reference" in done.stderr


def test_a_driver_that_has_all_needs_no_copy(tmp_path: Path) -> None:
    assert fit(s.SHIM, s.BUILD / "test/numbered/libcuda.so.1", tmp_path) == s.SHIM
    assert list(tmp_path.iterdir()) == []
