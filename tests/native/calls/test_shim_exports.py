"""The shim stands in for the whole driver: every symbol, every version, and nothing else is
exported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native
TABLE = s.ROOT / "enforcer" / "native" / "shim" / "dispatch" / "symbols.tsv"
CLASSES = TABLE.with_name("classes.tsv")
LEDGER = {"allocate", "keep", "release", "module", "context", "query"}
HOOKED = LEDGER | {"work", "order", "observe", "capture", "forget", "stream", "entry"}
PASSED = {"nvml", "host", "build", "handle", "current", "set", "ask", "tools", "graphics"}
DERIVE = TABLE.with_name("derive_symbols.py")


def table() -> list[list[str]]:
    """Rows of symbols.tsv."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def function_classes() -> dict[str, str]:
    """Name of a function -> what it is to the shim."""
    lines = CLASSES.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines if not line.startswith("#"))


def exported(library: Path) -> set[str]:
    """Defined dynamic symbols of a library."""
    out = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1].split("@")[0] for line in out.stdout.splitlines()}


def test_exports_are_exactly_the_table() -> None:
    names = {row[0] for row in table()}
    # for qgpu's libnvidia-ml.so.1; rm_ioctl.c
    assert exported(s.SHIM) == names | {"qgpu_job_view", "ioctl"}
    assert len(names) > 700
    assert exported(s.STUB) >= names


def test_soname_is_the_drivers() -> None:
    out = subprocess.run(
        ["readelf", "-d", str(s.SHIM)], capture_output=True, text=True, check=True
    ).stdout
    assert "Library soname: [libcuda.so.1]" in out


def test_table_is_what_the_headers_say(tmp_path: Path) -> None:
    """Derived again from the installed headers the table is the same, byte for byte."""
    includes = sorted((s.ROOT / ".venv").glob("lib/python3*/site-packages/nvidia/cu13/include"))
    if not includes:
        pytest.skip("the CUDA headers are not installed")
    for table in (TABLE, CLASSES):
        (tmp_path / table.name).write_bytes(table.read_bytes())
    again = [sys.executable, str(DERIVE), str(includes[-1]), str(tmp_path / TABLE.name)]
    done = subprocess.run(again, check=True, capture_output=True, text=True)
    assert done.stdout == "", "a function of the header is in no class"
    for table in (TABLE, CLASSES):
        assert (tmp_path / table.name).read_bytes() == table.read_bytes()


def test_new_function_of_a_header_must_be_decided_about(tmp_path: Path) -> None:
    """The deriving program asks, and the class that it writes is none."""
    (tmp_path / "table").mkdir()
    for name in ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"):
        (tmp_path / name).write_text("")
    header = "#define CUDA_VERSION 14000\nint cuNewThing(void);\nint cuInit(unsigned);\n"
    (tmp_path / "cuda.h").write_text(header)
    (tmp_path / "table" / CLASSES.name).write_bytes(CLASSES.read_bytes())
    argv = [sys.executable, str(DERIVE), str(tmp_path), str(tmp_path / "table" / TABLE.name)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert "cuNewThing is new" in done.stdout and "cuInit" not in done.stdout
    assert "cuNewThing\t?" in (tmp_path / "table" / CLASSES.name).read_text().splitlines()


def test_every_function_has_a_class_and_is_hooked_if_the_class_says_so() -> None:
    classes = function_classes()
    assert {row[1] for row in table()} == set(classes)
    assert {name for name, kind in classes.items() if kind not in HOOKED | PASSED} == set()
    assert [row[0] for row in table() if (row[4] == "hook") != (classes[row[1]] in HOOKED)] == []


def test_every_row_has_a_version() -> None:
    assert [row for row in table() if int(row[2]) < 2000] == []


@pytest.fixture
def probe(tmp_path: Path):  # type: ignore[no-untyped-def]
    arbiter = s.FakeArbiter(tmp_path, [s.GIB])
    with s.governed(tmp_path, [s.GIB]) as running:
        yield running
    arbiter.stop()


@pytest.mark.parametrize(
    ("name", "version", "flags", "expected"),
    [
        ("cuLaunchKernel", 4000, 0, "0 shim cuLaunchKernel"),
        ("cuLaunchKernel", 7000, 2, "0 shim cuLaunchKernel_ptsz"),
        ("cuLaunchKernel", 13050, 1, "0 shim cuLaunchKernel"),
        ("cuLaunchKernelEx", 11060, 2, "0 shim cuLaunchKernelEx_ptsz"),
        ("cuMemAlloc", 2000, 0, "0 shim cuMemAlloc"),
        ("cuMemAlloc", 3010, 0, "0 shim cuMemAlloc"),
        ("cuMemAlloc", 3020, 0, "0 shim cuMemAlloc_v2"),
        ("cuMemAlloc", 12000, 2, "0 shim cuMemAlloc_v2"),
        ("cuMemcpyBatchAsync", 12080, 0, "0 shim cuMemcpyBatchAsync"),
        ("cuMemcpyBatchAsync", 13000, 0, "0 shim cuMemcpyBatchAsync_v2"),
        ("cuCtxSynchronize", 12000, 0, "0 shim cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, 0, "0 shim cuCtxSynchronize_v2"),
        ("cuGetProcAddress", 11030, 0, "0 shim cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "0 shim cuGetProcAddress_v2"),
        ("cuMemcpyHtoD", 7000, 2, "0 shim cuMemcpyHtoD_v2_ptds"),
        ("cuMemAllocHost", 12000, 0, "0 driver"),
        ("cuGetExportTable", 12000, 0, "0 driver"),
        ("cuNewInDriver14", 14000, 0, "0 driver"),
        ("cuNoSuchName", 12000, 0, "500 none"),
        ("-", 0, 0, "500 none"),
    ],
)
def test_get_proc_address(
    probe: s.Probe, name: str, version: int, flags: int, expected: str
) -> None:
    """Pass-throughs of the stub share one address, so of them only the library is compared."""
    answer = probe.text(f"proc {name} {version} {flags}")
    assert (" ".join(answer.split()[:2]) if " driver" in answer else answer) == expected


def test_older_driver_means_its_own_newest_version(probe: s.Probe) -> None:
    """A caller built for 13.0 on a 12.0 driver gets the function that driver means."""
    assert probe.ask("version 12000") == 0
    assert probe.text("proc cuCtxSynchronize 13000 0") == "0 shim cuCtxSynchronize"


def test_newer_version_than_the_table_same_function(probe: s.Probe) -> None:
    """The driver means the same function by version 14: our hook still fits."""
    assert probe.ask("version 14000") == 0
    assert probe.text("proc cuMemAlloc 14000 0") == "0 shim cuMemAlloc_v2"


def test_newer_version_that_is_another_function(probe: s.Probe) -> None:
    """Work passes ungoverned; what gives memory, or keeps it past its release, is not offered at
    all.
    """
    kinds = function_classes()
    names = {
        row[1] for row in table() if row[4] == "hook" and row[3] == "0" and kinds[row[1]] != "entry"
    }
    assert probe.ask("version 14000") == 0
    before = {name: probe.text(f"proc {name} 14000 0") for name in names}
    assert probe.ask("newer 1") == 0
    for name in sorted(names):
        if not before[name].startswith("0 shim"):
            continue  # the table's newest version passes through
        refused = kinds[name] in {"allocate", "keep"}
        expected = "500 none" if refused else "0 driver cuInit"
        assert probe.text(f"proc {name} 14000 0") == expected, (name, kinds[name])
    for name in (
        "cuMipmappedArrayCreate",
        "cuMemPoolCreate",
        "cuGraphAddMemAllocNode",
        "cuImportExternalMemory",
        "cuMemMap",
    ):
        assert (
            before[name].startswith("0 shim") and probe.text(f"proc {name} 14000 0") == "500 none"
        )


def test_dlsym_finds_hooks_without_a_dlsym_hook(probe: s.Probe) -> None:
    assert probe.text("symbol cuMemAlloc_v2") == "shim cuMemAlloc_v2"
    assert probe.text("symbol cuCtxGetLimit") == "shim cuCtxGetLimit"


def test_plain_program_without_grant_passes_through(tmp_path: Path) -> None:
    """Preloaded by accident: no grant and no driver installed here, so there is no device."""
    probe = s.launch(tmp_path, {})
    assert probe.ask("init") == 100
    assert probe.finish() == ""
