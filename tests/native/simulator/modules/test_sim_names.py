"""Every public function of the driver and of NVML is there; what is not simulated says so."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import BUILD, run, spawn, start

from simulator.sim import Simulator

pytestmark = pytest.mark.native

HEADERS = BUILD / "headers"
DRIVER_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
# For Windows; and one that the header defines itself.
ELSEWHERE = {"cuWGLGetDevice", "cuGetProcAddress_v2_ptsz"}
NOT_SUPPORTED = 801


@pytest.fixture
def sim(built: None, tmp_path: Path) -> Iterator[Simulator]:
    with start(tmp_path / "sim") as running:
        yield running


def declared(header: Path, mark: str, prefix: str) -> set[str]:
    """Functions that a header declares, and those that its macros turn a name into."""
    text, name = header.read_text(encoding="utf-8"), rf"{prefix}[A-Z]\w*"
    names = set(re.findall(rf"\b{mark}\s+({name})\s*\(", text))
    others = re.findall(rf"^\s*#define ({name})\s+({name})\s*$", text, re.M)
    names |= {
        other for plain, other in others if re.fullmatch(rf"{plain}_v\d+(_pt[sd][sz])?", other)
    }
    for variant, other in re.findall(rf"__CUDA_API_(PTSZ|PTDS)\(({name})\)", text):
        names.add(f"{other}_{variant.lower()}")
    return names - ELSEWHERE


def exported(library: str) -> set[str]:
    out = subprocess.run(
        ["nm", "-D", "--defined-only", str(BUILD / "sim" / library)],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.split()[-1] for line in out.stdout.splitlines() if " T " in line}


def test_every_function_of_the_drivers_headers_is_there(built: None) -> None:
    names = set().union(*(declared(HEADERS / name, "CUDAAPI", "cu") for name in DRIVER_HEADERS))
    some = {"cuInit", "cuTexObjectCreate", "cuMemAlloc_v2", "cuLaunchKernel_ptsz"}
    assert len(names) > 600 and some <= names
    assert names - exported("libcuda.so.1") == set()


def test_every_function_of_nvmls_header_is_there(built: None) -> None:
    names = declared(HEADERS / "nvml.h", "DECLDIR", "nvml")
    assert len(names) > 380 and {"nvmlInit_v2", "nvmlDeviceGetFanSpeed"} <= names
    assert names - exported("libnvidia-ml.so.1") == set()


def test_get_proc_address_finds_what_a_driver_of_this_version_has(sim: Simulator) -> None:
    """A stub, too. But no stub of a later version in the place of a body."""
    out = run(
        sim,
        """
        g, at = Cuda(), c.c_void_p()
        def find(name, version):
            status = g.raw("cuGetProcAddress", name, c.byref(at), version, c.c_uint64(0))
            address = lambda n: c.cast(getattr(g.lib, n), c.c_void_p).value
            return status, [n for n in NAMES if at.value == address(n)]
        NAMES = ("cuTexObjectCreate", "cuLaunchHostFunc", "cuLaunchHostFunc_v2",
                 "cuLogicalEndpointCreate", "cuGraphGetEdges_v2")
        print(find(b"cuTexObjectCreate", 13000))
        print(find(b"cuLaunchHostFunc", 13050))
        print(find(b"cuLogicalEndpointCreate", 13050))
        print(find(b"cuGraphGetEdges", 13000))
        print(find(b"cuNoDriverHasThis", 13000))
        """,
    )
    assert out.splitlines() == [
        "(0, ['cuTexObjectCreate'])",
        "(0, ['cuLaunchHostFunc'])",
        "(500, [])",
        "(0, ['cuGraphGetEdges_v2'])",
        "(500, [])",
    ]


@pytest.mark.parametrize("value", [None, "0", "", "1"])
def test_a_stub_says_its_name_if_it_is_asked_to(sim: Simulator, value: str | None) -> None:
    code = """
        g = Cuda()
        print(g.raw("cuTexObjectCreate", None, None, None, None), g.raw("cuGLInit"))
        ml = c.CDLL(os.environ["LD_LIBRARY_PATH"].split(":")[0] + "/libnvidia-ml.so.1")
        print(ml.nvmlDeviceGetFanSpeed(None, None), ml.nvmlInit_v2())
        print(ml.nvmlDeviceGetFanSpeed(None, None))
    """
    process = spawn(sim, code, **({} if value is None else {"QGPU_SIM_DEBUG": value}))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out.split()) == (0, [str(NOT_SUPPORTED)] * 2 + ["1", "0", "3"])
    said = [
        "qgpu-sim: cuTexObjectCreate is not simulated: CUDA_ERROR_NOT_SUPPORTED",
        "qgpu-sim: cuGLInit is not simulated: CUDA_ERROR_NOT_SUPPORTED",
        *["qgpu-sim: nvmlDeviceGetFanSpeed is not simulated: NVML_ERROR_NOT_SUPPORTED"] * 2,
    ]
    assert err.splitlines() == (said if value == "1" else [])


def test_faults_reach_stubs(sim: Simulator) -> None:
    sim.control("error call=cuTexObjectCreate code=2")
    assert run(sim, "print(Cuda().raw('cuTexObjectCreate', None, None, None, None))") == "2\n"


def test_the_kernels_of_a_module_are_walked_through_as_cufft_does(sim: Simulator) -> None:
    out = run(
        sim,
        """
    g = Cuda(); table = c.c_void_p(); names = []; name = c.c_char_p()
    uuid = (c.c_ubyte * 16)(*bytes.fromhex("6e163fbeb958444d835ce182aff1991e"))
    g.call("cuGetExportTable", c.byref(table), uuid)
    def visit(user, function, unknown):
        g.call("cuFuncGetName", c.byref(name), c.c_void_p(function))
        names.append((user, name.value.decode())); return 0
    visitor = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_void_p)(visit)
    slots = c.cast(table, c.POINTER(c.c_void_p))
    walk = c.CFUNCTYPE(c.c_int, *[c.c_void_p] * 4)(slots[7])
    print(walk(g.ctx, g.module, visitor, 5), names, walk(g.ctx, None, visitor, 5), len(names))
    """,
    )
    assert out.strip() == "1 [(5, 'other'), (5, 'qgpu_work')] 0 2"
