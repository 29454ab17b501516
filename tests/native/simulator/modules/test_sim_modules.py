"""Modules of the simulated driver: names, variables, limits of launches, durations."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sim_tools import client_env, run, spawn, start

from simulator.sim import Simulator

pytestmark = pytest.mark.native

HEAD = "import images, modules\nfrom modules import *\ng = Modules()\n"


@pytest.fixture
def begin(built: None, tmp_path: Path) -> Iterator[Callable[..., Simulator]]:
    running: list[Simulator] = []

    def make(*extra: str) -> Simulator:
        running.append(start(tmp_path / "sim", memory_mib=1024, extra=extra))
        return running[-1]

    yield make
    for sim in running:
        sim.stop()


def seen(sim: Simulator, code: str) -> list[object]:
    """What the client prints, as values."""
    out = run(sim, HEAD + textwrap.dedent(code))
    return [ast.literal_eval(line) for line in out.splitlines()]


@pytest.mark.parametrize(
    "image",
    [
        "CODE",
        "images.fatbin(images.entry(CODE))",
        "wrapped(images.fatbin(images.entry(LATER, arch=100), images.entry(CODE)))",
        "images.fatbin(images.entry(CODE, flags=images.ZSTD))",
        "images.fatbin(images.entry(CODE, flags=images.LZ4))",
    ],
)
def test_kernels_of_a_module(begin: Callable[..., Simulator], image: str) -> None:
    assert seen(
        begin(),
        f"""
        m = g.loaded({image}); f = c.c_void_p(); n = c.c_uint(); text = c.c_char_p()
        print([g.raw("cuModuleGetFunction", c.byref(f), m, name)
               for name in (b"add", b"fat", b"plain", b"ad", b"addd", b"", b"table")])
        g.call("cuModuleGetFunctionCount", c.byref(n), m)
        all = (c.c_void_p * 3)(); g.call("cuModuleEnumerateFunctions", all, 3, m)
        names = []
        for one in all:
            g.call("cuFuncGetName", c.byref(text), c.c_void_p(one)); names.append(text.value)
        print((n.value, names))
        f = g.function(m, b"add"); print(f.value == all[0])
        off, size = c.c_size_t(), c.c_size_t(); found = []
        for i in range(3):
            status = g.raw("cuFuncGetParamInfo", f, c.c_size_t(i), c.byref(off), c.byref(size))
            found.append(status or (off.value, size.value))
        print(found)
        value = c.c_int(); said = []
        for what in (0, 1, 2, 4, 5, 6, 8): # threads, shared, constant, registers, versions, dynamic
            g.call("cuFuncGetAttribute", c.byref(value), what, f); said.append(value.value)
        print(said)
        g.call("cuFuncGetAttribute", c.byref(value), 0, g.function(m, b"fat")); print(value.value)
        """,
    ) == [
        [0, 0, 0, 500, 500, 500, 500],
        (3, [b"add", b"fat", b"plain"]),
        True,
        [(0, 8), (8, 4), 1],
        [256, 512, 112, 40, 90, 90, 49152 - 512],
        256,
    ]


def test_variables_have_memory_with_their_contents(begin: Callable[..., Simulator]) -> None:
    assert seen(
        begin(),
        """
        before = g.free_memory(); m = g.loaded(CODE); print((before - g.free_memory()) >> 20)
        at = {name: g.variable(m, name) for name in (b"table", b"start", b"shown", b"factor")}
        print([size for _, size in at.values()])
        print([g.bytes_at(where, 4) for where, _ in at.values()])
        print(len({where for where, _ in at.values()}), g.variable(m, b"none"),
              g.variable(m, b"add"), g.variable(m, None), sep=", ")
        word = c.cast(at[b"shown"][0], c.POINTER(c.c_uint64)); word[0] += 1
        print([g.bytes_at(at[b"shown"][0], 8)])
        g.call("cuMemcpyHtoD_v2", c.c_uint64(at[b"table"][0]), b"abcd", c.c_size_t(4))
        print([g.bytes_at(at[b"table"][0], 4)])
        print([g.raw("cuMemFree_v2", c.c_uint64(where)) for where, _ in at.values()])
        g.call("cuModuleUnload", m); print(before - g.free_memory())
        """,
    ) == [
        4,
        [3 << 20, 4, 8, 112],
        ["00000000", "01020304", "2a000000", "07000000"],
        (4, 500, 500, 1),
        ["2b00000000000000"],
        ["61626364"],
        [1, 1, 1, 1],
        0,
    ]


def test_a_library_has_variables_in_each_context(begin: Callable[..., Simulator]) -> None:
    """And managed ones once. What was loaded goes with the library, or with the context."""
    assert seen(
        begin(),
        """
        G, M = "cuLibraryGetGlobal", "cuLibraryGetManaged"
        lib = g.opened(CODE); before = g.free_memory()
        one = g.variable(lib, b"table", G), g.variable(lib, b"shown", M)
        print((before - g.free_memory()) >> 20)
        other = c.c_void_p(); g.call("cuCtxCreate_v2", c.byref(other), 0, 0)
        two = g.variable(lib, b"table", G), g.variable(lib, b"shown", M)
        print([one[0] != two[0], one[1] == two[1], g.variable(lib, b"table", M)])
        g.call("cuCtxDestroy_v2", other)
        print([g.variable(lib, b"table", G) == one[0], (before - g.free_memory()) >> 20])
        kernel, count, back = c.c_void_p(), c.c_uint(), c.c_void_p()
        g.call("cuLibraryGetKernelCount", c.byref(count), lib)
        every = (c.c_void_p * 2)(); g.call("cuLibraryEnumerateKernels", every, 2, lib)
        g.call("cuLibraryGetKernel", c.byref(kernel), lib, b"fat")
        g.call("cuKernelGetLibrary", c.byref(back), kernel)
        print([count.value, every[1] == kernel.value, back.value == lib.value,
               g.raw("cuLibraryGetKernel", c.byref(kernel), lib, b"none")])
        g.call("cuDevicePrimaryCtxReset_v2", 0)
        g.call("cuDevicePrimaryCtxRetain", c.byref(g.ctx), 0); g.call("cuCtxSetCurrent", g.ctx)
        before = g.free_memory(); again = g.variable(lib, b"start", G)
        print(g.bytes_at(again[0], 4) == "01020304"); g.call("cuLibraryUnload", lib)
        print(before - g.free_memory())
        """,
    ) == [4, [True, True, 500], [True, 4], [3, True, True, 500], True, 0]


def test_a_library_is_loaded_when_a_function_is_needed(begin: Callable[..., Simulator]) -> None:
    assert (
        seen(
            begin(),
            """
        taken = lambda: (before - g.free_memory()) >> 20
        image = images.cubin(KERNELS, (Variable("big", 8 << 20),)); before = g.free_memory()
        for how in ("launch", "function", "module"):
            lib = g.opened(image); kernel, out = c.c_void_p(), c.c_void_p()
            g.call("cuLibraryGetKernel", c.byref(kernel), lib, b"plain"); first = taken()
            if how == "launch":
                g.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
            elif how == "function":
                g.call("cuKernelGetFunction", c.byref(out), kernel)
            else:
                g.call("cuLibraryGetModule", c.byref(out), lib)
            second = taken(); g.call("cuLibraryUnload", lib); print([first, second, taken()])
        """,
        )
        == [[0, 10, 0]] * 3
    )


def test_managed_variables_need_no_context(begin: Callable[..., Simulator]) -> None:
    """NVIDIA's runtime asks for them first. The first context that uses the library pays."""
    assert seen(
        begin(),
        """
        lib = g.opened(images.cubin(KERNELS, (Variable("big", 8 << 20, managed=True),)))
        before = g.free_memory(); g.call("cuCtxSetCurrent", None)
        M, G = "cuLibraryGetManaged", "cuLibraryGetGlobal"
        first = g.variable(lib, b"big", M); print([g.variable(lib, b"big", G)])
        c.cast(first[0], c.POINTER(c.c_uint64))[0] = 5
        g.call("cuCtxSetCurrent", g.ctx); print(before - g.free_memory())
        print([g.variable(lib, b"big", G) == first, (before - g.free_memory()) >> 20])
        print([g.bytes_at(first[0], 8), g.raw("cuMemFree_v2", c.c_uint64(first[0]))])
        g.call("cuLibraryUnload", lib); print(before - g.free_memory())
        """,
    ) == [[201], 0, [True, 10], ["0500000000000000", 1], 0]


def test_code_for_another_card(begin: Callable[..., Simulator]) -> None:
    """A module of it is refused, a library when it is used."""
    assert seen(
        begin(),
        """
        m, k, f, n = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_int()
        for image in (LATER, images.fatbin(images.entry(LATER, arch=100)), images.fatbin()):
            print(g.raw("cuModuleLoadData", c.byref(m), image))
        lib = g.opened(images.fatbin(images.entry(LATER, arch=100)))
        print([g.raw("cuLibraryGetKernel", c.byref(k), lib, b"later"),
               g.raw("cuLibraryGetKernel", c.byref(f), lib, b"none"),
               g.raw("cuLibraryGetModule", c.byref(m), lib),
               g.raw("cuKernelGetFunction", c.byref(f), k),
               g.raw("cuFuncGetAttribute", c.byref(n), 0, k), g.start(k, 1, 1),
               g.variable(lib, b"table", "cuLibraryGetGlobal")])
        """,
    ) == [209, 209, 209, [0, 500, 209, 209, 209, 209, 209]]


def test_what_is_no_module(begin: Callable[..., Simulator], tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(b"\x7fELF\2\1\1" + bytes(20))
    (tmp_path / "empty").write_bytes(b"")
    assert seen(
        begin(),
        f"""
        m = c.c_void_p(); before = g.free_memory()
        print([g.raw("cuModuleLoadData", c.byref(m), image) for image in (
            bytes(64), b"\\x7fELF" + bytes(60), b"P\\xedU\\xba" + bytes(60), wrapped(CODE),
            b"no module, but a text of some length", b".version 8.0 .entry a(", None,
            struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 2**63))])
        print([g.raw("cuModuleLoad", c.byref(m), name) for name in (
            b"{tmp_path}/cut", b"{tmp_path}/empty", b"{tmp_path}/none", b"{tmp_path}")])
        large = images.cubin(KERNELS, (Variable("a", 900 << 20), Variable("b", 8, managed=True)))
        print([g.raw("cuModuleLoadData", c.byref(m), large), before - g.free_memory()])
        """,
    ) == [[200, 200, 200, 200, 218, 218, 1, 200], [200, 200, 301, 200], [2, 0]]


def test_any_name_is_taken_where_a_library_lacks(
    begin: Callable[..., Simulator], tmp_path: Path
) -> None:
    sim = begin()
    for name in ("liblz4.so.1", "libzstd.so.1"):
        (tmp_path / name).write_text("no library")
    path = f"{client_env(sim)['LD_LIBRARY_PATH'].split(':')[0]}:{tmp_path}"
    code = HEAD + (
        "m = g.loaded(images.fatbin(images.entry(CODE, flags=images.LZ4)))\n"
        "print(g.start(g.function(m, b'whatever'), 1, 1), g.variable(m, b'table'))\n"
    )
    process = spawn(sim, code, LD_LIBRARY_PATH=path, QGPU_SIM_DEBUG="1")
    out, err = process.communicate(timeout=60)
    assert out.split() == ["0", "500"] and "liblz4.so.1" in err, err


def test_the_linker_gives_back_what_can_be_read(begin: Callable[..., Simulator]) -> None:
    """A binary by itself; of more than that any name is taken."""
    assert seen(
        begin(),
        """
        PTX = b".version 8.0 .target sm_80 .entry text() { }"
        def linked(*parts):
            link, image, size, m = c.c_void_p(), c.c_void_p(), c.c_size_t(), c.c_void_p()
            g.call("cuLinkCreate_v2", 0, None, None, c.byref(link))
            for kind, data in parts:
                g.call("cuLinkAddData_v2", link, kind, data, c.c_size_t(len(data)), None, 0, None,
                       None)
            g.call("cuLinkComplete", link, c.byref(image), c.byref(size))
            g.call("cuModuleLoadData", c.byref(m), image)
            f = c.c_void_p()
            return [g.raw("cuModuleGetFunction", c.byref(f), m, name)
                    for name in (b"add", b"text", b"none")]
        print(linked((0, CODE))); print(linked((1, PTX)))
        print(linked((1, PTX), (0, CODE))); print(linked((0, CODE), (1, PTX)))
        print(linked((4, b"!<arch>\\n")))
        """,
    ) == [[0, 500, 500], [500, 0, 500], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_launches_beyond_a_kernel_s_limits(begin: Callable[..., Simulator]) -> None:
    assert seen(
        begin(),
        """
        m = g.loaded(CODE)
        add, fat, plain = (g.function(m, name) for name in (b"add", b"fat", b"plain"))
        print([g.start(add, 1, 256), g.start(add, 1, 257)]) # launch bounds
        print([g.start(fat, 1, 256), g.start(fat, 1, 512)]) # registers
        print([g.start(add, 1, 1, 48640), g.start(add, 1, 1, 48641)])
        DYNAMIC = 8
        print([g.raw("cuFuncSetAttribute", add, DYNAMIC, n) for n in (-1, 231937, 231936)])
        print([g.start(add, 1, 1, 231936), g.start(add, 1, 1, 231937), g.start(plain, 0, 1)])
        """,
    ) == [[0, 1], [0, 701], [0, 1], [1, 1, 0], [0, 1, 1]]


LAUNCHES = (
    HEAD
    + """
m = g.loaded(images.cubin((Kernel("usual"), Kernel("sm90_xmma_gemm_f16"), Kernel("mine"),
                           Kernel("fat", (), 255), Kernel("wide", (), 32, 100 << 10))))
def go(name, blocks, threads, shared=0):
    assert g.start(g.function(m, name), blocks, threads, shared) == 0
go(b"usual", 1, 1); go(b"usual", 132 * 16, 128); go(b"usual", 132 * 16 + 1, 128)
go(b"usual", 132 * 2, 1024); go(b"fat", 132 + 1, 256); go(b"wide", 132 * 2 + 1, 32)
go(b"usual", 132 * 4 + 1, 32, 48 << 10); go(b"sm90_xmma_gemm_f16", 1, 384); go(b"mine", 133, 1024)
g.launch(77); g.call("cuCtxSynchronize")
"""
)


@pytest.mark.parametrize(
    ("options", "us"),
    [
        ((), [4, 4, 6, 4, 6, 6, 6, 23, 4, 77]),
        (("--kernel-cost", "rules"), [4, 4, 6, 4, 6, 6, 6, 23, 11, 77]),
        (("--kernel-cost", "rules", "--unknown-us", "90"), [90] * 8 + [11, 77]),
    ],
)
def test_a_kernel_takes_waves_of_blocks(
    begin: Callable[..., Simulator], tmp_path: Path, options: tuple[str, ...], us: list[int]
) -> None:
    """2 us and 2 us for each wave, unless a rule names it; qgpu_work takes its argument."""
    (tmp_path / "rules").write_text("mine 5us+6us/wave\n")
    sim = begin(*(str(tmp_path / "rules") if word == "rules" else word for word in options))
    run(sim, LAUNCHES)
    sim.stop()
    assert [piece.duration for piece in sim.intervals()] == [1000 * each for each in us]
