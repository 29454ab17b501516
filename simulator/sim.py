"""The simulated driver from Python: start and stop its device side, and read its trace.

The trace is the truth that benchmarks are judged by: the device side alone writes it
(docs/specs/trace.md).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import NamedTuple

from enforcer.fdwait import readable_within
from enforcer.wire.records import record
from simulator import layout

_HEAD = record(layout.TraceHead)
_RECORD = record(layout.TraceRec)
_MAGIC = layout.TRACE_MAGIC.encode()
_VERSION = layout.TRACE_VERSION
_NOT_FOUND = 500  # CUDA_ERROR_NOT_FOUND


class SimError(Exception):
    """The simulator did not start, or its trace cannot be read. The text is a sentence for the
    user.
    """


class Kind(IntEnum):
    """What was executed."""

    KERNEL = layout.OP_KERNEL
    HTOD = layout.OP_HTOD
    DTOH = layout.OP_DTOH
    DTOD = layout.OP_DTOD
    MEMSET = layout.OP_MEMSET
    PEER = layout.OP_PEER


_ENGINES: dict[int, str] = {Kind.HTOD: "htod", Kind.DTOH: "dtoh", Kind.PEER: "dtoh"}


class Piece(IntFlag):
    """How a piece ended."""

    LAST = layout.TRACE_LAST
    CUT = layout.TRACE_CUT


class Interval(NamedTuple):
    """One executed piece of a command. Times are CLOCK_MONOTONIC nanoseconds."""

    t_start: int
    t_end: int
    t_submit: int
    pid: int
    card: int
    ctx: int
    stream: int
    kind: int
    flags: int
    seq: int
    work: int

    @property
    def duration(self) -> int:
        """Nanoseconds on the card."""
        return self.t_end - self.t_start

    @property
    def engine(self) -> str:
        """Which engine of the card did it: compute, htod or dtoh. Those work at the same time."""
        return _ENGINES.get(self.kind, "compute")

    @property
    def last(self) -> bool:
        """The command ended with this piece."""
        return bool(self.flags & Piece.LAST)

    @property
    def cut(self) -> bool:
        """Its process died, or destroyed the context, while it ran."""
        return bool(self.flags & Piece.CUT)


def _check_head(path: Path, raw: bytes) -> None:
    if len(raw) < _HEAD.size:
        raise SimError(
            f"{path} is no trace of the simulator: {len(raw)} bytes are less than its head"
        )
    magic, version, size, *_ = _HEAD.unpack(raw[: _HEAD.size])
    if magic != _MAGIC:
        raise SimError(
            f"{path} is no trace of the simulator: it begins with {magic!r} instead of {_MAGIC!r}"
        )
    if version != _VERSION or size != _RECORD.size:
        raise SimError(
            f"{path} has version {version} with records of {size} bytes; version {_VERSION} is"
            " understood"
        )


def read_trace(path: str | Path) -> Iterator[Interval]:
    """Yield the executed pieces, per card in order of time. A record that is just being written is
    left out.

    Raises SimError when the file is not a trace, OSError when it cannot be read (it belongs to
    root).
    """
    path = Path(path)
    with path.open("rb") as file:
        _check_head(path, file.read(_HEAD.size))
        count = (os.fstat(file.fileno()).st_size - _HEAD.size) // _RECORD.size
        if count <= 0:
            return
        with mmap.mmap(
            file.fileno(), _HEAD.size + count * _RECORD.size, access=mmap.ACCESS_READ
        ) as view:
            for offset in range(_HEAD.size, _HEAD.size + count * _RECORD.size, _RECORD.size):
                yield Interval._make(_RECORD.unpack_from(view, offset))


def busy_ns(intervals: Iterator[Interval] | list[Interval], start: int, end: int) -> dict[int, int]:
    """Nanoseconds that each process had a card within [start, end), by pid."""
    busy: dict[int, int] = {}
    for piece in intervals:
        overlap = min(piece.t_end, end) - max(piece.t_start, start)
        if overlap > 0:
            busy[piece.pid] = busy.get(piece.pid, 0) + overlap
    return busy


@dataclass(frozen=True)
class SimConfig:
    """Options of qgpu-simgpu. Units are in the names; extra is appended to the command line as it
    is.
    """

    directory: Path
    node: str
    cards: int = 1
    model: str = "NVIDIA H200"
    memory_mib: int = 81920
    context_mib: int = 300
    minor_base: int = 0
    slice_us: float = 1000
    switch_us: float = 50
    launch_us: float = 3
    queue_depth: int = 1024
    run_to_end: bool = False
    driver_generation: int = 580
    faults: tuple[str, ...] = ()
    ns_per_iter: float = 1.0
    trace: bool = True
    preempt: str = "cilp"
    preempt_us: float = 100
    block_us: float = 0
    control_us: float = 0
    control_log: Path | None = None
    driver_version: str = ""
    client_per_context: bool = False
    mig: int = 0
    peers: bool = False
    nvlinks: str = ""
    extra: tuple[str, ...] = ()

    def command(self, binary: Path, ready_fd: int) -> list[str]:
        """The command line of the device side."""
        pairs = {
            "--dir": str(self.directory),
            "--node": self.node,
            "--cards": self.cards,
            "--model": self.model,
            "--memory": self.memory_mib,
            "--context-mib": self.context_mib,
            "--minor-base": self.minor_base,
            "--slice-us": self.slice_us,
            "--switch-us": self.switch_us,
            "--launch-us": self.launch_us,
            "--queue-depth": self.queue_depth,
            "--driver-generation": self.driver_generation,
            "--ns-per-iter": self.ns_per_iter,
            "--preempt": self.preempt,
            "--preempt-us": self.preempt_us,
            "--block-us": self.block_us,
            "--control-us": self.control_us,
            "--ready-fd": ready_fd,
        }
        words = [str(word) for pair in pairs.items() for word in pair]
        words += [word for fault in self.faults for word in ("--fault", fault)]
        flags = [] if self.trace else ["--no-trace"]
        flags += ["--run-to-end"] if self.run_to_end else []
        flags += ["--client-per-context"] if self.client_per_context else []
        flags += ["--peers"] if self.peers else []
        flags += ["--nvlinks", self.nvlinks] if self.nvlinks else []
        flags += ["--mig", str(self.mig)] if self.mig else []
        flags += ["--control-log", str(self.control_log)] if self.control_log else []
        flags += ["--driver-version", self.driver_version] if self.driver_version else []
        return [str(binary), *words, *flags, *self.extra]


def _await_ready(fd: int, process: subprocess.Popen[bytes], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if readable_within(fd, deadline - time.monotonic()):
            return os.read(fd, 16) == b"READY\n"
    return False


def _exchange(directory: str | Path, message: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(10)
        handle = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:  # by descriptor: a directory's name may be longer than a socket's address
            sock.connect(f"/proc/self/fd/{handle}/{layout.SOCK}")
        finally:
            os.close(handle)
        sock.send(message)
        return sock.recv(ctypes.sizeof(layout.Rep))


def control_device(directory: str | Path) -> tuple[int, int] | None:
    """The control device of the simulator that serves directory (QGPU_SIM_DIR): (st_dev, st_ino).

    A descriptor with both is an open file of it. None: it has none. Raises OSError when no
    simulator serves there.
    """
    text = Path(directory, layout.CONTROL).read_text()
    if text == "none\n":
        return None
    device, inode = map(int, text.split())
    return device, inode


@dataclass
class Simulator:
    """The running device side of one node. Use start(), and stop() or a with statement."""

    config: SimConfig
    build: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @classmethod
    def start(
        cls, config: SimConfig, build: str | Path, log: Path | None = None, seconds: float = 10.0
    ) -> Simulator:
        """Start and wait until programs may connect. Raises SimError when that takes longer than
        seconds.
        """
        build = Path(build).resolve()
        binary = build / "bin" / "qgpu-simgpu"
        if not binary.exists():
            raise SimError(f"{binary} is missing; 'make native' builds it")
        reader, writer = os.pipe()
        sink = log.open("ab") if log else None
        try:
            process = subprocess.Popen(
                config.command(binary, writer),
                pass_fds=(writer,),
                stdout=sink or subprocess.DEVNULL,
                stderr=sink,
                stdin=subprocess.DEVNULL,
            )
        finally:
            os.close(writer)
            if sink:
                sink.close()
        ready = _await_ready(reader, process, seconds)
        os.close(reader)
        simulator = cls(config, build, process)
        if not ready:
            simulator.stop()
            raise SimError(
                f"qgpu-simgpu for {config.node} is not ready (exit status {process.returncode})"
            )
        return simulator

    @property
    def trace_path(self) -> Path:
        """Where the trace is; it stays after stop()."""
        return self.config.directory / layout.TRACE

    def env(self) -> dict[str, str]:
        """Environment that makes a program find the simulated driver: "the driver is installed
        here".
        """
        return driver_env(self.build, self.config.directory)

    def intervals(self) -> list[Interval]:
        """The trace so far; while running, without the last 0.1 s unless control("flush") was asked
        for.
        """
        return list(read_trace(self.trace_path))

    def control(self, command: str) -> int:
        """Ask for a fault, as root: "sticky pid=P", "delay call=cuMemAlloc us=50000", "clear" and
        others.

        docs/specs/simulator.md lists them. Returns how many contexts or processes it reached.
        Raises SimError when the command is not understood, reaches no process, or does not come
        from root.
        """
        size = ctypes.sizeof(layout.TextReq)
        head = layout.Req(layout.MAGIC, layout.VERSION, layout.REQ_CONTROL, size)
        raw = _exchange(self.config.directory, bytes(layout.TextReq(head, command.encode())))
        if len(raw) != ctypes.sizeof(layout.Rep):
            raise SimError(f"the simulator threw out the command {command!r}")
        answer = layout.Rep.from_buffer_copy(raw)
        if answer.status == _NOT_FOUND:
            raise SimError(f"{command!r} reached no process: none that it names uses the cards")
        if answer.status != 0:
            why = "only root may ask" if answer.status < 0 else "it is not understood"
            raise SimError(f"the simulator refused {command!r}: {why}")
        return int(answer.a)

    def control_device(self) -> tuple[int, int] | None:
        """The control device that programs have open: (st_dev, st_ino), None where this machine
        allows none.
        """
        return control_device(self.config.directory)

    def describe(self) -> str:
        """One line for humans."""
        c = self.config
        return (
            f"{c.node}: {c.cards} x {c.model} (simulated), {c.memory_mib} MiB each, pid"
            f" {self.process.pid}"
        )

    def stop(self, seconds: float = 5.0) -> None:
        """End it; it removes its device nodes and socket. Killed when it does not end within
        seconds.
        """
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def driver_env(build: Path, directory: Path) -> dict[str, str]:
    """LD_LIBRARY_PATH and QGPU_SIM_DIR for programs of the node whose
    simulator serves directory.
    """
    return {"LD_LIBRARY_PATH": str(build / "sim"), layout.ENV_DIR: str(directory)}
