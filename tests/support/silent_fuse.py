"""A FUSE file system of a user that stops answering: silent_fuse.py PATH USER MODE [FILE].

PATH is a file. `flush` and `write` answer all but that request. `nothing` answers none: PATH is a
directory that claims to be root's. `program` shows FILE at PATH and runs it as USER; after a line
on stdin it answers no more. It says "mounted" or the program's pid, and then "silent".
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
from pathlib import Path

GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, FLUSH, INIT = 3, 4, 14, 15, 16, 18, 25, 26
UNANSWERED = (2, 36, 42)  # requests that want no answer
ENOSYS = -38
NOSUID_NODEV = 6
WRITEBACK = 1 << 16  # the kernel keeps what is written, and writes it later


def attributes(mode: int, size: int, seconds: int) -> bytes:
    """Of a file of root, which the kernel may believe for so long."""
    head = struct.pack("<QII6Q", seconds, 0, 0, 1, size, 0, 0, 0, 0)
    return (head + struct.pack("<10I", 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0))[:104]


def mount(path: str, user: str, mode: str) -> int:
    """The device that requests come from."""
    device = os.open("/dev/fuse", os.O_RDWR)
    kind = "40000" if mode == "nothing" else "100000"
    options = f"fd={device},rootmode={kind},user_id={user},group_id={user},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", path.encode(), b"fuse", NOSUID_NODEV, options.encode()):
        sys.exit("no FUSE here")
    return device


def start(path: str, user: str) -> int:
    """Run the program at the path; its pid. It waits for this server."""
    pid = os.fork()
    if pid == 0:
        os.setgid(int(user))
        os.setuid(int(user))
        os.execv(path, [path, "600"])
    return pid


def serve(device: int, mode: str, data: bytes) -> None:
    """Answer requests, until a line comes on stdin."""
    plain = attributes(0o100755, len(data), 0) if data else attributes(0o100666, 0, 3600)
    flags = WRITEBACK if mode == "write" else 0
    answers = {
        INIT: struct.pack("<4I2H2I2H8I", 7, 31, 0, flags, 16, 12, 4096, 1, 0, 0, *[0] * 8),
        GETATTR: plain,
        SETATTR: plain,
        OPEN: struct.pack("<QII", 1, 0, 0),
        RELEASE: b"",
    }
    silent = FLUSH if mode == "flush" else WRITE
    while sys.stdin not in select.select([device, sys.stdin], [], [])[0]:
        request = os.read(device, 1 << 20)
        _, opcode, unique = struct.unpack_from("<IIQ", request)
        if opcode in UNANSWERED or opcode == silent or (mode == "nothing" and opcode != INIT):
            continue
        body = answers.get(opcode)
        if opcode == READ:
            offset, size = struct.unpack_from("<8xQI", request, 40)
            body = data[offset : offset + size]
        head = struct.pack("<IiQ", 16 + len(body or b""), 0 if body is not None else ENOSYS, unique)
        os.write(device, head + (body or b""))


def main(path: str, user: str, mode: str, *files: str) -> None:
    data = Path(files[0]).read_bytes() if files else b""
    device = mount(path, user, mode)
    print(start(path, user) if files else "mounted", flush=True)
    serve(device, mode, data)
    print("silent", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
