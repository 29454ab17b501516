"""The simulated driver's reader of modules on what NVIDIA's compiler makes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples_support import examples
from hypothesis import given
from image_reader import NO_BINARY, READ, Reader, Seen, damaged

pytestmark = pytest.mark.native

SOURCE = """
__device__ int table[100];
__constant__ float factor[28];
__managed__ double shown[3];
__device__ unsigned char start[5] = {1, 2, 3, 4, 5};
struct Pair { char c; long x; };
template <class T> __global__ void add(T *p, int n, Pair s)
{
    __shared__ T buf[128];
    buf[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = buf[127 - threadIdx.x] * factor[n % 28] + table[n] + shown[0] + start[n % 5]
                     + s.x;
}
template __global__ void add<float>(float *, int, Pair);
__global__ void __launch_bounds__(256) bound(int *q) { *q = 1; }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not installed")
    yield Compiler(tmp_path_factory.mktemp("nvcc"))


class Compiler:
    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "a.cu").write_text(SOURCE)

    def __call__(self, *flags: str) -> bytes:
        out = self.place / "a.out"
        done = subprocess.run(
            ["nvcc", *flags, str(self.place / "a.cu"), "-o", str(out)],
            capture_output=True,
            text=True,
            check=False,
        )
        if re.search("Unknown option|Unsupported gpu", done.stderr):
            pytest.skip(f"this nvcc does not know {' '.join(flags)}")
        assert done.returncode == 0, done.stderr
        return out.read_bytes()


def of_source(seen: Seen, form: str) -> None:
    assert (seen.status, seen.words) == (0, [form])
    name = "_Z3addIfEvPT_i4Pair"
    assert list(seen.kernels) == ["_Z3addIfEvPT_i4Pair", "_Z5boundPi"]
    registers, shared, _, most, *params = seen.kernels[name]
    assert (int(registers) > 8) == (form == "code")
    assert [shared, most, *params] == ["512", "0", "32", "0:8", "8:4", "16:16"]
    assert seen.kernels["_Z5boundPi"][3:] == ["256", "8", "0:8"]
    sizes = {name: values[:2] for name, values in seen.globals.items()}
    assert sizes == {
        "factor": ["constant", "112"],
        "shown": ["managed", "24"],
        "start": ["device", "5"],
        "table": ["device", "400"],
    }
    assert seen.globals["start"][2] == "0102030405"


@pytest.mark.parametrize("mode", ["none", "speed", "balance", "size", "default"])
@pytest.mark.parametrize(("arch", "form"), [("sm_90", "code"), ("compute_80", "ptx")])
def test_fatbins_of_nvcc(
    reader: Reader, compiled: Compiler, mode: str, arch: str, form: str
) -> None:
    of_source(reader.read(compiled("-fatbin", f"-arch={arch}", f"--compress-mode={mode}")), form)


@pytest.mark.parametrize(
    ("flags", "form"),
    [
        (("-fatbin", "-arch=all-major"), "code"),
        (("-fatbin", "-arch=sm_90a"), "code"),
        (("-fatbin", "-arch=sm_75"), "ptx"),
        (("-cubin", "-arch=sm_90"), "code"),
        (("-ptx", "-arch=compute_75"), "ptx"),
    ],
)
def test_other_files_of_nvcc(
    reader: Reader, compiled: Compiler, flags: tuple[str, ...], form: str
) -> None:
    of_source(reader.read(compiled(*flags)), form)


def test_code_of_a_later_card_does_not_fit(reader: Reader, compiled: Compiler) -> None:
    seen = reader.read(compiled("-fatbin", "-gencode=arch=compute_100,code=sm_100"))
    assert seen.status == NO_BINARY


def test_damaged_fatbins_of_nvcc_harm_nobody(reader: Reader, compiled: Compiler) -> None:
    flags = ("-fatbin", "-arch=sm_90")
    bases = [compiled(*flags, f"--compress-mode={mode}") for mode in ("none", "speed", "size")]

    @given(damaged(bases))
    @examples(2000)
    def check(data: bytes) -> None:
        assert reader.status(data) in READ

    check()
