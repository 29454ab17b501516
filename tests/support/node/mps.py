"""NVIDIA's MPS as its manual describes it, as far as the audit sees it.

`mps.py control SERVER ...` is the control daemon. It listens in CUDA_MPS_PIPE_DIRECTORY, starts
SERVER as its own user when the first client asks, and answers when the server has its context.
`mps.py client PROGRAM ...` asks it and becomes the program, as the driver does in cuInit. The
server runs without the shim: what it has on the card is in nobody's count but NVML's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

WITHOUT = ("LD_PRELOAD", "QGPU_GRANT", "QGPU_GRANT_FD")
PIPE = "control"


def control(place: Path, server: list[str]) -> None:
    """Serve clients until this process is ended."""
    bare = {key: value for key, value in os.environ.items() if key not in WITHOUT}
    running: subprocess.Popen[str] | None = None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / PIPE))
        listener.listen()
        while True:
            client, _ = listener.accept()
            if running is None:
                pipe = subprocess.PIPE
                running = subprocess.Popen(server, stdout=pipe, text=True, env=bare)
                assert running.stdout is not None and running.stdout.readline()
            with client:
                client.send(b"ready")


def client(place: Path, program: list[str]) -> None:
    """Have a server started, then become the program."""
    end = time.monotonic() + 60
    with socket.socket(socket.AF_UNIX) as control:
        while control.connect_ex(str(place / PIPE)):
            assert time.monotonic() < end, f"no control daemon at {place}"
            time.sleep(0.05)
        assert control.recv(16) == b"ready"
    os.execv(program[0], program)


if __name__ == "__main__":
    part = {"control": control, "client": client}[sys.argv[1]]
    part(Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]), sys.argv[2:])
