"""Every call that submits work: hooked, held at a closed gate, counted once, seen as done when it
is.

The table names each symbol with arguments of at least a mebibyte;
`big` is a structure or list full of 4096s, `s0` the program's stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import shim_support as s

pytestmark = pytest.mark.native
TABLE = s.ROOT / "enforcer" / "native" / "shim" / "dispatch" / "symbols.tsv"
LARGE = 1 << 21
GRID = "1 1 1 1 1 1 0"

# Work: waits at a closed gate and counts one launch.
WORK = {
    "cuLaunchKernel": f"0x10 {GRID} s0 0 0",
    "cuLaunchKernelEx": "big 0x10 0 0",
    "cuLaunchCooperativeKernel": f"0x10 {GRID} s0 0",
    "cuLaunchCooperativeKernelMultiDevice": "big 1 0",
    "cuLaunch": "0x10",
    "cuLaunchGrid": "0x10 1 1",
    "cuLaunchGridAsync": "0x10 1 1 s0",
    "cuGraphLaunch": "0x20 s0",
    "cuGraphUpload": "0x20 s0",
    "cuMemcpy": f"0 0 {LARGE}",
    "cuMemcpyAsync": f"0 0 {LARGE} s0",
    "cuMemcpyPeer": f"0 0 0 0 {LARGE}",
    "cuMemcpyPeerAsync": f"0 0 0 0 {LARGE} s0",
    "cuMemcpyAtoA": f"0 0 0 0 {LARGE}",
    "cuMemcpy2D": "big",
    "cuMemcpy2DUnaligned": "big",
    "cuMemcpy2DAsync": "big s0",
    "cuMemcpy3D": "big",
    "cuMemcpy3DAsync": "big s0",
    "cuMemcpy3DPeer": "big",
    "cuMemcpy3DPeerAsync": "big s0",
    "cuMemcpyBatchAsync": "0 0 big 1 0 0 0 0 s0",
    "cuMemcpyBatchAsync_v2": "0 0 big 1 0 0 0 s0",
    "cuMemcpyWithAttributesAsync": f"0 0 {LARGE} 0 s0",
    "cuMemcpy3DBatchAsync": "1 big 0 0 s0",
    "cuMemcpy3DBatchAsync_v2": "1 big 0 s0",
    "cuMemcpy3DWithAttributesAsync": "big 0 s0",
    "cuFabricCpyBatchAsync": "1 big 0 s0",
    "cuMemBatchDecompressAsync": "big 1 0 0 s0",
    "cuMemPrefetchAsync": f"0 {LARGE} 0 s0",
    "cuMemPrefetchAsync_v2": f"0 {LARGE} 0 0 s0",
    "cuMemPrefetchBatchAsync": "0 big 1 0 0 0 0 s0",
    "cuMemDiscardAndPrefetchBatchAsync": "0 big 1 0 0 0 0 s0",
}
for _pair in ("HtoD", "DtoH", "DtoD"):
    WORK[f"cuMemcpy{_pair}"] = f"0 0 {LARGE}"
    WORK[f"cuMemcpy{_pair}Async"] = f"0 0 {LARGE} s0"
for _pair in ("DtoA", "HtoA"):
    WORK[f"cuMemcpy{_pair}"] = f"0 0 0 {LARGE}"
for _pair in ("AtoD", "AtoH"):
    WORK[f"cuMemcpy{_pair}"] = f"0 0 0 {LARGE}"
WORK["cuMemcpyHtoAAsync"] = WORK["cuMemcpyAtoHAsync"] = f"0 0 0 {LARGE} s0"
for _bits in (8, 16, 32):
    WORK[f"cuMemsetD{_bits}"] = f"0 0 {LARGE}"
    WORK[f"cuMemsetD{_bits}Async"] = f"0 0 {LARGE} s0"
    WORK[f"cuMemsetD2D{_bits}"] = "0 0 0 4096 4096"
    WORK[f"cuMemsetD2D{_bits}Async"] = "0 0 0 4096 4096 s0"

# Stands in a stream and takes nothing of the card: passes a closed gate, and marks what was
# launched before it.
BEHIND = {
    "cuLaunchHostFunc": "s0 0 0",
    "cuLaunchHostFunc_v2": "s0 0 0 0",
    "cuStreamAddCallback": "s0 0 0 0",
    "cuStreamAttachMemAsync": "s0 0 0 0",
    "cuStreamBatchMemOp": "s0 0 0 0",
    "cuSignalExternalSemaphoresAsync": "0 0 0 s0",
    "cuWaitExternalSemaphoresAsync": "0 0 0 s0",
    "cuMemDiscardBatchAsync": "0 0 0 0 s0",
    "cuStreamWaitEvent": "s0 0 0",
    "cuCtxWaitEvent": "0 0",
    "cuGreenCtxWaitEvent": "0 0",
    "cuGraphicsMapResources": "0 0 s0",
    "cuGraphicsUnmapResources": "0 0 s0",
}
for _call in ("cuStreamWaitValue", "cuStreamWriteValue"):
    BEHIND |= {f"{_call}{bits}": "s0 zero 0 0" for bits in (32, 64)}


# Means something else from now on: call and arguments.
FORGETS = {
    "cuGraphExecDestroy": "0x20",
    "cuGraphExecUpdate": "0x20 0 0 0",
    "cuGraphExecUpdate_v2": "0x20 0 0",
    "cuGraphExecKernelNodeSetParams": "0x20 0 0",
    "cuGraphExecKernelNodeSetParams_v2": "0x20 0 0",
    "cuGraphExecMemcpyNodeSetParams": "0x20 0 0 0",
    "cuGraphExecMemsetNodeSetParams": "0x20 0 0 0",
    "cuGraphExecHostNodeSetParams": "0x20 0 0",
    "cuGraphExecChildGraphNodeSetParams": "0x20 0 0",
    "cuGraphExecBatchMemOpNodeSetParams": "0x20 0 0",
    "cuGraphExecNodeSetParams": "0x20 0 0",
    "cuGraphExecEventRecordNodeSetEvent": "0x20 0 0",
    "cuGraphExecEventWaitNodeSetEvent": "0x20 0 0",
    "cuGraphExecExternalSemaphoresSignalNodeSetParams": "0x20 0 0",
    "cuGraphExecExternalSemaphoresWaitNodeSetParams": "0x20 0 0",
    "cuGraphNodeSetEnabled": "0x20 0 1",
    "cuModuleUnload": "0x1",
    "cuLibraryUnload": "0x1",
}


def symbols(*classes: str) -> set[str]:
    """The symbols of the functions of these classes (classes.tsv); of all functions if none is
    given.
    """
    rows = [
        line.split("\t")
        for line in TABLE.read_text(encoding="utf-8").splitlines()
        if line[0] != "#"
    ]
    lines = TABLE.with_name("classes.tsv").read_text(encoding="utf-8").splitlines()
    kind = dict(line.split("\t") for line in lines if line[0] != "#")
    return {row[0] for row in rows if not classes or kind[row[1]] in classes}


def variants(name: str) -> list[str]:
    """The symbols that take the same arguments: other versions of the same shape, default-stream
    variants.
    """
    known = symbols()
    numbered = [] if f"{name}_v2" in WORK or f"{name}_v2" in BEHIND else [f"{name}_v2"]
    named = [name, *numbered]
    return [n + end for n in named for end in ("", "_ptsz", "_ptds") if n + end in known]


WORK_SYMBOLS = {symbol: (name, args) for name, args in WORK.items() for symbol in variants(name)}
BEHIND_SYMBOLS = {
    symbol: (name, args) for name, args in BEHIND.items() for symbol in variants(name)
}


def test_every_submission_is_tried_below() -> None:
    """No more and no less than what classes.tsv calls work, and what it says stands in a stream."""
    assert symbols("work") == WORK_SYMBOLS.keys()
    assert symbols("order") == BEHIND_SYMBOLS.keys()


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[s.FakeArbiter, s.Probe]]:
    path: Path = tmp_path_factory.mktemp("bed")
    arbiter = s.FakeArbiter(path, s.CAP)
    with s.governed(path, s.CAP) as probe:
        s.started(probe)
        assert probe.ask("stream 0") == 0
        yield arbiter, probe
    arbiter.stop()


@pytest.mark.parametrize("symbol", WORK_SYMBOLS)
def test_work_waits_counts_and_ends(bed: tuple[s.FakeArbiter, s.Probe], symbol: str) -> None:
    arbiter, probe = bed
    arguments = WORK_SYMBOLS[symbol][1]
    before = arbiter.card.proc("launches")
    arbiter.card.set(s.CLOSED | s.TRACK)
    probe.send(f"invoke {symbol} {arguments}")
    s.until(lambda: arbiter.card.proc("waiting") == 1)
    assert not probe.answered()
    arbiter.card.set(s.TRACK)
    assert int(probe.answer()) == 0
    assert arbiter.card.proc("waiting") == 0
    assert arbiter.card.proc("launches") == before + 1
    for call in ("ctx_sync", "sync 0"):
        assert probe.ask(call) == 0
    assert arbiter.card.proc("unfenced") == 0
    for index in range(64):
        submitted, done = arbiter.card.marker(index)
        assert submitted == done, "what was waited for is seen as done"


@pytest.mark.parametrize("symbol", BEHIND_SYMBOLS)
def test_what_stands_in_a_stream_passes_and_marks(
    bed: tuple[s.FakeArbiter, s.Probe], symbol: str
) -> None:
    arbiter, probe = bed
    arguments = BEHIND_SYMBOLS[symbol][1]
    arbiter.card.set(s.TRACK)
    s.until(lambda: probe.ask("launch 0 0x10 2") == 0 and arbiter.card.proc("unfenced") == 1)
    before = arbiter.card.proc("launches")
    arbiter.card.set(s.CLOSED | s.TRACK)
    assert probe.ask(f"invoke {symbol} {arguments}") == 0
    assert arbiter.card.proc("unfenced") == 0
    assert arbiter.card.proc("launches") == before
    arbiter.card.set(s.TRACK)


@pytest.mark.parametrize("symbol", FORGETS)
def test_cost_of_a_graph_is_forgotten_when_it_changes(
    bed: tuple[s.FakeArbiter, s.Probe], symbol: str
) -> None:
    """Learned: 100 us, so another fits into the window. Changed: unknown again, fills it."""
    arbiter, probe = bed
    assert probe.ask("elapsed_us 100") == 0
    arbiter.card.set(s.WINDOW | s.TRACK)
    for _ in range(6):
        assert probe.ask("graph 0 0x20") == 0
        assert probe.ask("sync 0") == 0
    assert 80 <= arbiter.card.proc("inflight_us") <= 100
    assert probe.ask(f"invoke {symbol} {FORGETS[symbol]}") == 0
    assert probe.ask("graph 0 0x20") == 0
    assert arbiter.card.proc("inflight_us") == 500
    assert probe.ask("sync 0") == 0


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("cuStreamBeginCapture s0", "cuStreamEndCapture s0 zero"),
        ("cuStreamBeginCapture_v2 s0 0", "cuStreamEndCapture s0 zero"),
        ("cuStreamBeginCaptureToGraph s0 0 0 0 0 0", "cuStreamEndCapture_ptsz s0 zero"),
        ("cuStreamBeginRecaptureToGraph s0 0 0 0 0", "cuStreamEndCapture s0 zero"),
        ("cuStreamBeginCaptureToCig s0 0", "cuStreamEndCaptureToCig s0"),
        ("cuStreamBeginCaptureToCig_ptsz s0 0", "cuStreamEndCaptureToCig_ptsz s0"),
    ],
)
def test_every_kind_of_capture_is_left_alone(
    bed: tuple[s.FakeArbiter, s.Probe], begin: str, end: str
) -> None:
    arbiter, probe = bed
    arbiter.card.set(s.TRACK)
    s.until(lambda: probe.ask("launch 0 0x10 2") == 0 and arbiter.card.proc("unfenced") == 1)
    assert probe.ask(f"invoke {begin}") == 0
    assert arbiter.card.proc("unfenced") == 0, (
        "the end of what runs is seen, however long the capture takes"
    )
    assert probe.ask("capturing 0 1") == 0
    launches, writes = arbiter.card.proc("launches"), probe.counts()["writes"]
    arbiter.card.set(s.CLOSED | s.TRACK)  # what is captured does not run: it must not wait
    assert probe.ask("launch 0 0x10 50") == 0
    for call in ("cuEventRecord 0x77 s0", "cuLaunchHostFunc s0 0 0", "cuEventQuery 0x77"):
        assert probe.ask(f"invoke {call}") == 0
    assert arbiter.card.proc("launches") == launches
    assert probe.counts()["writes"] == writes
    arbiter.card.set(s.TRACK)
    assert probe.ask("capturing 0 0") == 0
    assert probe.ask(f"invoke {end}") == 0
    asked = probe.counts()["queries"]
    assert probe.ask("launch 0 0x10 50") == 0
    assert probe.counts()["queries"] == asked, "no capture is open: nobody asks"
