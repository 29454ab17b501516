"""Messages to the device side of the simulated driver, as a client that lies sends them, and a
device side that notices each fault of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim_tools import BUILD, make, run

from simulator import layout
from simulator.sim import SimConfig, Simulator, _await_ready


@contextmanager
def sanitized(tmp_path: Path, cards: int = 1) -> Iterator[Simulator]:
    """The sanitized server; any report of a sanitizer ends it and fails the test."""
    make("build/test/qgpu-simgpu-asan", "build/sim/libcuda.so.1")
    reader, writer = os.pipe()
    config = SimConfig(
        tmp_path / "sim", "hostile", cards, minor_base=os.getpid() % 1000 * 16 + 8, memory_mib=2048
    )
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            config.command(BUILD / "test/qgpu-simgpu-asan", writer),
            pass_fds=(writer,),
            stdout=log,
            stderr=log,
        )
    os.close(writer)
    assert _await_ready(reader, process, 20)
    os.close(reader)
    simulator = Simulator(config, BUILD, process)
    try:
        yield simulator
        assert process.poll() is None, (tmp_path / "log").read_text()
        run(simulator, "g = Cuda(); g.launch(10); g.call('cuCtxSynchronize')")
    finally:
        simulator.stop()
    assert process.returncode == 0, (tmp_path / "log").read_text()


def connect(sim: Simulator) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # with a time limit a full queue would be an error
    sock.connect(str(sim.config.directory / "sim.sock"))
    sock.settimeout(5)
    return sock


def request(
    kind: int,
    a: int = 0,
    b: int = 0,
    size: int = 48,
    version: int = layout.VERSION,
    magic: int = layout.MAGIC,
) -> bytes:
    return bytes(layout.Req(magic, version, kind, size, a, b))


def answer(sock: socket.socket) -> layout.Rep:
    return layout.Rep.from_buffer_copy(sock.recv(8192))
