"""The simulated driver's linker, green contexts and usage counts, without a shim in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_tools import MIB, nvml, run, start

from simulator.sim import Kind, Simulator

pytestmark = pytest.mark.native


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    running = start(tmp_path / "sim")
    yield running
    running.stop()


def test_linked_code_has_the_kernels_of_all_that_went_in(sim: Simulator, tmp_path: Path) -> None:
    """Data with and without its zero, and a file; a name may be as long as C++ makes it."""
    long = "k" + "x" * 3000
    (tmp_path / "more.ptx").write_text(
        f".version 8.0\n.target sm_90\n.visible .entry {long}()\n{{ ret; }}\n"
    )
    out = run(
        sim,
        f"""
        g = Cuda()
        link, image, size = c.c_void_p(), c.c_void_p(), c.c_size_t()
        module, f = c.c_void_p(), c.c_void_p()
        N = None; head = b".version 8.0\\n.target sm_90\\n.visible .entry "
        text = lambda name: head + name + b"()\\n{{ ret; }}\\n"
        g.call("cuLinkCreate_v2", 0, N, N, c.byref(link))
        one, two = text(b"one"), text(b"two")
        g.call("cuLinkAddData_v2", link, 1, one, c.c_size_t(len(one)), b"", 0, N, N)
        g.call("cuLinkAddData_v2", link, 1, two, c.c_size_t(len(two) + 1), b"", 0, N, N)
        g.call("cuLinkAddFile_v2", link, 1, {str(tmp_path / "more.ptx").encode()!r}, 0, N, N)
        print(g.raw("cuLinkAddData_v2", link, 1, b"nonsense", c.c_size_t(8), b"", 0, N, N))
        print(g.raw("cuLinkAddFile_v2", link, 1, b"/no/such/file", 0, N, N))
        g.call("cuLinkComplete", link, c.byref(image), c.byref(size))
        g.call("cuModuleLoadData", c.byref(module), image); g.call("cuLinkDestroy", link)
        names = (b"one", b"two", {long.encode()!r}, b"three")
        print([g.raw("cuModuleGetFunction", c.byref(f), module, name) for name in names])
        print(g.raw("cuLinkDestroy", link))
        """,
    )
    assert out.splitlines() == ["218", "301", "[0, 0, 0, 500]", "400"]


GREEN = """
g = Cuda(); whole, part, rest = (c.create_string_buffer(512) for _ in range(3))
n, desc = c.c_uint(4), c.c_void_p()
green, ctx, s = c.c_void_p(), c.c_void_p(), c.c_void_p()
g.call("cuDeviceGetDevResource", 0, whole, 1)
g.call("cuDevSmResourceSplitByCount", None, c.byref(n), whole, None, 0, 60); print(n.value)
g.call("cuDevSmResourceSplitByCount", part, c.byref(c.c_uint(1)), whole, rest, 0, 60)
count = lambda r: c.c_uint.from_buffer(r, 96).value
print(count(whole), count(part), count(rest))
g.call("cuDevResourceGenerateDesc", c.byref(desc), part, 1)
g.call("cuGreenCtxCreate", c.byref(green), desc, 0, 1)
g.call("cuCtxFromGreenCtx", c.byref(ctx), green)
"""


def test_green_context_is_a_part_of_the_primary_one(sim: Simulator) -> None:
    """Its work runs in turn with the primary one's, it adds no context to the card, and holds
    the primary one alive.
    """
    out = run(
        sim,
        GREEN
        + """
got, of, which = c.c_void_p(), c.c_void_p(), c.c_void_p()
g.call("cuCtxSetCurrent", ctx); g.call("cuCtxGetCurrent", c.byref(got))
print(got.value == ctx.value)
g.call("cuGreenCtxStreamCreate", c.byref(s), green, 1, 0); p = g.alloc(1 << 20)
g.call("cuStreamGetCtx", s, c.byref(of)); print(of.value == ctx.value)
g.call("cuStreamGetCtx_v2", s, c.byref(of), c.byref(which))
print(of.value == g.ctx.value, which.value == green.value)
g.launch(1000, s); g.launch(1000); g.call("cuCtxSynchronize_v2", g.ctx)
print(g.raw("cuCtxDestroy_v2", ctx)); g.call("cuDevicePrimaryCtxRelease_v2", 0); g.launch(10, s)
g.call("cuCtxSynchronize"); g.call("cuGreenCtxDestroy", green)
print(g.raw("cuCtxSynchronize"), g.raw("cuStreamDestroy_v2", s), g.raw("cuGreenCtxDestroy", green))
""",
    )
    assert out.split("\n")[:2] == ["2", "132 64 68"]
    assert out.split()[4:] == ["True", "True", "True", "True", "201", "709", "0", "400"]
    kernels = [i for i in sim.intervals() if i.kind == Kind.KERNEL]
    assert len({i.ctx for i in kernels}) == 1 and len(kernels) == 3


def test_context_of_cuda_2_lives_until_its_last_detach(sim: Simulator) -> None:
    out = run(
        sim,
        """
        g = Cuda(); x, y = c.c_void_p(), c.c_void_p(); g.call("cuCtxCreate", c.byref(x), 0, 0)
        left = g.free_memory()
        g.call("cuCtxAttach", c.byref(y), 0); print(x.value == y.value); p = g.alloc(1 << 20)
        g.call("cuCtxDetach", x); g.call("cuCtxSynchronize"); g.call("cuCtxDetach", x)
        print(g.raw("cuCtxDetach", x), g.raw("cuCtxSetCurrent", x))
        g.call("cuCtxSetCurrent", g.ctx)
        print((g.free_memory() - left) >> 20)
        """,
    )
    assert out.split() == ["True", "201", "201", "300"]
    assert int(nvml(sim, "print(n.nvmlDeviceGetMemoryInfo(h).used)")) < 300 * MIB


def test_the_module_of_a_library_is_used_as_any_other_but_not_unloaded(sim: Simulator) -> None:
    """The runtime of CUDA 12 loads a library and asks its module for kernels and variables."""
    out = run(
        sim,
        """
        g = Cuda(); library, module, f, name, again = (c.c_void_p() for _ in range(5))
        kernel, whose, size = c.c_void_p(), c.c_void_p(), c.c_size_t()
        code = b".version 8.0\\n.target sm_90\\n.visible .entry one()\\n{ ret; }\\n"
        N = None
        g.call("cuLibraryLoadData", c.byref(library), code, N, N, 0, N, N, 0)
        g.call("cuLibraryGetModule", c.byref(module), library)
        g.call("cuModuleGetFunction", c.byref(f), module, b"one")
        print(g.raw("cuModuleGetFunction", c.byref(again), module, b"two"))
        print(g.raw("cuModuleGetGlobal_v2", c.byref(name), c.byref(size), module, b"none"))
        g.call("cuLibraryGetKernel", c.byref(kernel), library, b"one")
        g.call("cuKernelGetFunction", c.byref(again), kernel); print(again.value == f.value)
        g.call("cuFuncGetModule", c.byref(whose), f); print(whose.value == module.value)
        g.call("cuLaunchKernel", f, 1, 1, 1, 1, 1, 1, 0, N, N, N); g.call("cuCtxSynchronize")
        print(g.raw("cuModuleUnload", module)); g.call("cuLibraryUnload", library)
        print(g.raw("cuModuleGetFunction", c.byref(f), module, b"one"))
        """,
    )
    assert out.split() == ["500", "500", "True", "True", "400", "400"]
