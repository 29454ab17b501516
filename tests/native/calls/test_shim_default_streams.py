"""Captures, polls of work and ends of streams: each call by its name, in the default stream it
means.

0 is the calling thread's default stream in a call that ends in `_ptsz` or `_ptds`, else the legacy
one. The two handles that name them (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD) distinguish them.
"""

from __future__ import annotations

import pytest
import shim_support as s
from test_shim_submissions import BEHIND_SYMBOLS, WORK_SYMBOLS

pytestmark = pytest.mark.native
LEGACY, THREADS = 1, 2
INVALIDATED, UNMATCHED = 901, 903
LAUNCH = {LEGACY: "cuLaunchKernel", THREADS: "cuLaunchKernel_ptsz"}

# What follows the stream.
BEGINS = {
    "cuStreamBeginCapture": "",
    "cuStreamBeginCapture_ptsz": "",
    "cuStreamBeginCapture_v2": "0",
    "cuStreamBeginCapture_v2_ptsz": "0",
    "cuStreamBeginCaptureToGraph": "0 0 0 0 0",
    "cuStreamBeginCaptureToGraph_ptsz": "0 0 0 0 0",
    "cuStreamBeginRecaptureToGraph": "0 0 0 0",
    "cuStreamBeginRecaptureToGraph_ptsz": "0 0 0 0",
    "cuStreamBeginCaptureToCig": "0",
    "cuStreamBeginCaptureToCig_ptsz": "0",
}
ENDS = {
    "cuStreamEndCapture": "zero",
    "cuStreamEndCapture_ptsz": "zero",
    "cuStreamEndCaptureToCig": "",
    "cuStreamEndCaptureToCig_ptsz": "",
}
LOOKS_AT_STREAM = {
    "cuStreamSynchronize": "0",
    "cuStreamSynchronize_ptsz": "0",
    "cuStreamQuery": "0",
    "cuStreamQuery_ptsz": "0",
    "cuEventRecord": "0x77 0",
    "cuEventRecord_ptsz": "0x77 0",
    "cuEventRecordWithFlags": "0x77 0 0",
    "cuEventRecordWithFlags_ptsz": "0x77 0 0",
}
LOOKS_AT_CURRENT = {
    "cuCtxSynchronize": "",
    "cuEventSynchronize": "0x77",
    "cuEventQuery": "0x77",
    "cuGreenCtxRecordEvent": "0 0x77",  # of a green context that nobody has seen being made
}
LOOKS_AT_CONTEXT = {"cuCtxSynchronize_v2": "c0", "cuCtxRecordEvent": "c0 0x77"}
STREAM_ENDS = ("cuStreamDestroy", "cuStreamDestroy_v2")
# Those of the calls in a stream that take it as an argument, and work, of which some takes it in a
# structure.
ORDERS = {name: args for name, (_, args) in BEHIND_SYMBOLS.items() if "s0" in args.split()}
IN_STRUCTURE = ("cuLaunchKernelEx", "cuLaunchKernelEx_ptsz", "cuLaunchCooperativeKernelMultiDevice")
WORK = {name: args for name, (_, args) in WORK_SYMBOLS.items()}
WORK |= {name: WORK[name].replace("big", "zero") for name in IN_STRUCTURE}
LOOKS = {**LOOKS_AT_STREAM, **LOOKS_AT_CURRENT, **LOOKS_AT_CONTEXT}


def meant(symbol: str) -> int:
    """The default stream that 0 is to this call."""
    return THREADS if symbol.endswith(("_ptsz", "_ptds")) else LEGACY


def launch(probe: s.Probe, stream: int, times: int = 1) -> None:
    """Launches into a default stream."""
    for _ in range(times):
        assert probe.ask(f"invoke {LAUNCH[stream]} 0x10 1 1 1 1 1 1 0 0 0 0") == 0


def asks(probe: s.Probe) -> bool:
    """Whether a capture is open: then a launch asks the driver if its stream captures."""
    before = probe.counts()["queries"]
    assert probe.ask("launch 0 0x10 1") == 0
    return probe.counts()["queries"] > before


@pytest.mark.parametrize("symbol", BEGINS)
def test_begin_of_a_capture(arbiter: s.FakeArbiter, probe: s.Probe, symbol: str) -> None:
    """It is the meant stream's: nothing of ours goes in, nothing waits, and only that stream's
    end is its end.
    """
    stream = meant(symbol)
    launch(probe, stream, 3)
    assert probe.ask("ctx_sync") == 0
    assert probe.ask(f"invoke {symbol} 0 {BEGINS[symbol]}") == 0
    assert probe.ask(f"capturing_handle {stream}") == 0
    launches, writes = arbiter.card.proc("launches"), probe.counts()["writes"]
    arbiter.card.set(s.CLOSED | s.TRACK)
    launch(probe, stream, 50)
    end = "_ptsz" if stream == THREADS else ""
    for call in (f"cuEventRecord{end} 0x77 0", f"cuLaunchHostFunc{end} 0 0 0", "cuEventQuery 0x77"):
        assert probe.ask(f"invoke {call}") == 0
    assert (arbiter.card.proc("launches"), probe.counts()["writes"]) == (launches, writes)
    arbiter.card.set(s.TRACK)
    assert probe.ask(f"invoke cuStreamEndCapture {LEGACY + THREADS - stream} zero") == 0
    assert asks(probe)
    assert probe.ask(f"invoke cuStreamEndCapture {stream} zero") == 0
    assert not asks(probe)


@pytest.mark.parametrize("symbol", ENDS)
@pytest.mark.parametrize("result", [0, INVALIDATED])
def test_end_of_a_capture(probe: s.Probe, symbol: str, result: int) -> None:
    """Of the meant stream's, whatever came of it, and of no other's."""
    stream = meant(symbol)
    for begun in (LEGACY + THREADS - stream, stream):
        assert probe.ask(f"invoke cuStreamBeginCapture_v2 {begun} 0") == 0
        assert probe.ask(f"capturing_handle {begun}") == 0
        assert probe.ask(f"end_result {result}") == 0
        assert probe.ask(f"invoke {symbol} 0 {ENDS[symbol]}") == result
        assert asks(probe) == (begun != stream)
        assert probe.ask("end_result 0") == 0
        assert probe.ask(f"invoke cuStreamEndCapture {begun} zero") == 0
        assert not asks(probe)


@pytest.mark.parametrize("symbol", ENDS)
def test_capture_that_goes_on(probe: s.Probe, symbol: str) -> None:
    """The driver says that this was not its end."""
    stream = meant(symbol)
    assert probe.ask(f"invoke cuStreamBeginCapture_v2 {stream} 0") == 0
    assert probe.ask(f"capturing_handle {stream}") == 0
    assert probe.ask(f"end_result {UNMATCHED}") == 0
    assert probe.ask(f"invoke {symbol} 0 {ENDS[symbol]}") == UNMATCHED
    assert asks(probe)


def unmarked(arbiter: s.FakeArbiter, probe: s.Probe, stream: int) -> None:
    """The newest launch has no marker behind it, and it is this stream's."""
    assert probe.ask("ctx_sync") == 0
    assert arbiter.card.proc("unfenced") == 0

    def launched() -> bool:
        launch(probe, stream, 2)
        return arbiter.card.proc("unfenced") == 1

    s.until(launched)


@pytest.mark.parametrize("symbol", [*LOOKS_AT_STREAM, *ORDERS])
def test_look_at_a_stream_marks_it(arbiter: s.FakeArbiter, probe: s.Probe, symbol: str) -> None:
    """The thread's own, and no other: a marker costs. The legacy one waits for all of its
    context: all are marked.
    """
    arguments = LOOKS_AT_STREAM.get(symbol) or ORDERS[symbol].replace("s0", "0")
    for stream in (LEGACY, THREADS):
        unmarked(arbiter, probe, stream)
        assert probe.ask(f"invoke {symbol} {arguments}") == 0
        assert arbiter.card.proc("unfenced") == (meant(symbol) == THREADS and stream == LEGACY)


@pytest.mark.parametrize("symbol", WORK)
def test_work_is_the_meant_streams(probe: s.Probe, symbol: str) -> None:
    """The marker behind it, put there at once or when somebody waits, goes into that stream."""
    before, legacy = probe.counts()["writes"], probe.ask("legacy_writes")
    assert probe.ask(f"invoke {symbol} {WORK[symbol].replace('s0', '0')}") == 0
    assert probe.ask("ctx_sync") == 0
    writes, legacy = probe.counts()["writes"] - before, probe.ask("legacy_writes") - legacy
    assert writes > 0
    assert legacy == (writes if meant(symbol) == LEGACY else 0)


@pytest.mark.parametrize("symbol", LOOKS_AT_CURRENT)
def test_look_at_the_current_context_marks_its_streams(
    arbiter: s.FakeArbiter, probe: s.Probe, symbol: str
) -> None:
    for stream in (LEGACY, THREADS):
        unmarked(arbiter, probe, stream)
        assert probe.ask(f"invoke {symbol} {LOOKS_AT_CURRENT[symbol]}") == 0
        assert arbiter.card.proc("unfenced") == 0


@pytest.mark.parametrize("symbol", LOOKS_AT_CONTEXT)
def test_look_at_a_context_by_its_handle(
    arbiter: s.FakeArbiter, probe: s.Probe, symbol: str
) -> None:
    """The thread has none itself."""
    unmarked(arbiter, probe, LEGACY)
    assert probe.ask("invoke cuCtxSetCurrent 0") == 0
    assert probe.ask("invoke cuEventQuery 0x77") == 0
    assert arbiter.card.proc("unfenced") == 1
    assert probe.ask(f"invoke {symbol} {LOOKS_AT_CONTEXT[symbol]}") == 0
    assert arbiter.card.proc("unfenced") == 0


@pytest.mark.parametrize("symbol", STREAM_ENDS)
def test_end_of_a_stream(arbiter: s.FakeArbiter, probe: s.Probe, symbol: str) -> None:
    """Its last work is marked before, and its capture ends with it."""
    assert probe.ask("stream 1") == 0
    s.until(lambda: probe.ask("launch 1 0x10 2") == 0 and arbiter.card.proc("unfenced") == 1)
    writes = probe.counts()["writes"]
    assert probe.ask(f"invoke {symbol} s1") == 0
    assert (arbiter.card.proc("unfenced"), probe.counts()["writes"]) == (0, writes + 1)
    assert probe.ask("stream 1") == 0
    assert probe.ask("capture 1") == 0
    assert asks(probe)
    assert probe.ask(f"invoke {symbol} s1") == 0
    assert not asks(probe)
