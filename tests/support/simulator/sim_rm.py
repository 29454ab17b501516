"""The control device of the simulated driver from inside a client process: calls in the published
layouts.

Layouts are spelled out here a second time, from the published headers, so that a mistake in
enforcer/native/abi/qgpu_rm.h shows.
"""

from __future__ import annotations

import ctypes as c
import fcntl
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

FREE, CONTROL, ALLOC, ALLOC64, DUP = 0xC0104629, 0xC020462A, 0xC020462B, 0xC030462B, 0xC01C4634
OK, DUPLICATE_NAME, NO_PERMISSION, BAD_ARGUMENT, BAD_CLASS = 0, 0x19, 0x1B, 0x1F, 0x22
BAD_CLIENT, BAD_COMMAND, BAD_PARENT, BAD_PARAMS, BAD_POINTER = 0x23, 0x24, 0x36, 0x3A, 0x3D
NOT_SUPPORTED, NOT_FOUND, TIMEOUT = 0x56, 0x57, 0x65
ROOT, DEVICE, SUBDEVICE, GROUP, CHANNEL, SPACE = 0x41, 0x80, 0x2080, 0xA06C, 0xC86F, 0x90F1
SCHEDULE, SET_TIMESLICE, GET_TIMESLICE = 0xA06C0101, 0xA06C0103, 0xA06C0104
PREEMPT, GET_INFO = 0xA06C0105, 0xA06C0106
DISABLE, GET_GID, SET_MODE, HANDLE_INFO = 0x2080110B, 0x2080014A, 0x20801210, 0xD02
FIRST_CLIENT, LAST_HANDLE = 0xC1D00000, 0x5C000200

DEVICE_PARAMS = struct.Struct("<IIIIIxxxxQQQIxxxx")
GROUP_PARAMS = struct.Struct("<IIIIBxxx")
_CONTROL = struct.Struct("<IIIIQII")
_ALLOC64 = struct.Struct("<IIIIQQIIII")
_ALLOC = struct.Struct("<IIIIQII")
_DUP = struct.Struct("<IIIIIII")
_FREE = struct.Struct("<IIII")
_DISABLE = struct.Struct("<BxxxIBBxxxxxxQ64I64I")


def files() -> list[int]:
    """Descriptors of the control device: the root of a mount that is attached nowhere, and no
    directory.
    """
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if str(entry.readlink()) == "/" and stat.S_ISREG(os.fstat(int(entry.name)).st_mode):
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def device_params(card: int = 0) -> bytes:
    return DEVICE_PARAMS.pack(card, 0, 0, 0, 0, 0, 0, 0, 0)


def group_params(engine: int = 1) -> bytes:
    return GROUP_PARAMS.pack(0, 0, 0, engine, 0)


def attempt(call: Callable[[], int]) -> int:
    """The status, or the errno of an ioctl that failed."""
    try:
        return call()
    except OSError as error:
        return error.errno or -1


class Made(NamedTuple):
    status: int
    object: int


class Rm:
    """Calls through one descriptor; each returns the status, errors of the ioctl raise OSError."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = files()[0] if fd is None else fd
        self._client = 0

    def alloc(
        self,
        client: int,
        parent: int,
        class_id: int,
        handle: int = 0,
        params: bytes = b"",
        wide: bool = True,
    ) -> Made:
        buffer = c.create_string_buffer(params, len(params)) if params else None
        address = c.addressof(buffer) if buffer else 0
        if wide:
            data = bytearray(
                _ALLOC64.pack(client, parent, handle, class_id, address, 0, len(params), 0, 99, 0)
            )
            fcntl.ioctl(self.fd, ALLOC64, data)
            back = _ALLOC64.unpack(data)
            return Made(back[8], back[2])
        data = bytearray(_ALLOC.pack(client, parent, handle, class_id, address, len(params), 99))
        fcntl.ioctl(self.fd, ALLOC, data)
        old = _ALLOC.unpack(data)
        return Made(old[6], old[2])

    def make(
        self, client: int, parent: int, class_id: int, handle: int = 0, params: bytes = b""
    ) -> int:
        """alloc() that has to succeed; the handle."""
        made = self.alloc(client, parent, class_id, handle, params)
        assert made.status == OK, hex(made.status)
        return made.object

    def root(self) -> int:
        return self.make(0, 0, ROOT)

    def control(self, client: int, obj: int, cmd: int, params: bytearray | bytes) -> int:
        data = bytearray(params)
        buffer = (c.c_char * len(data)).from_buffer(data)
        status = self.control_at(client, obj, cmd, c.addressof(buffer), len(data))
        if isinstance(params, bytearray):
            params[:] = bytes(buffer)
        return status

    def control_at(self, client: int, obj: int, cmd: int, address: int, size: int) -> int:
        data = bytearray(_CONTROL.pack(client, obj, cmd, 0, address, size, 99))
        fcntl.ioctl(self.fd, CONTROL, data)
        return int(_CONTROL.unpack(data)[6])

    def free(self, client: int, obj: int, parent: int = 0) -> int:
        data = bytearray(_FREE.pack(client, parent, obj, 99))
        fcntl.ioctl(self.fd, FREE, data)
        return int(_FREE.unpack(data)[3])

    def dup(
        self, client: int, parent: int, client_from: int, object_from: int, handle: int = 0
    ) -> Made:
        data = bytearray(_DUP.pack(client, parent, handle, client_from, object_from, 0, 99))
        fcntl.ioctl(self.fd, DUP, data)
        back = _DUP.unpack(data)
        return Made(back[6], back[2])

    # -- commands

    def schedule(self, client: int, group: int, enable: bool) -> int:
        return self.control(client, group, SCHEDULE, bytes([enable, 0, 0]))

    def set_slice(self, client: int, group: int, us: int) -> int:
        return self.control(client, group, SET_TIMESLICE, struct.pack("<Q", us))

    def get_slice(self, client: int, group: int) -> int:
        params = bytearray(8)
        assert self.control(client, group, GET_TIMESLICE, params) == OK
        return int(struct.unpack("<Q", params)[0])

    def preempt(
        self, client: int, group: int, wait: bool = True, timeout_us: int | None = None
    ) -> int:
        manual = timeout_us is not None
        return self.control(
            client, group, PREEMPT, struct.pack("<BBxxI", wait, manual, timeout_us or 0)
        )

    def disable(
        self,
        client: int,
        subdevice: int,
        disable: bool,
        channels: list[tuple[int, int]],
        only: bool = False,
    ) -> int:
        clients = [pair[0] for pair in channels] + [0] * (64 - len(channels))
        handles = [pair[1] for pair in channels] + [0] * (64 - len(channels))
        params = _DISABLE.pack(disable, len(channels), only, 0, 0, *clients, *handles)
        return self.control(client, subdevice, DISABLE, params)

    def gid(self, client: int, subdevice: int, flags: int = 2) -> bytes:
        params = bytearray(struct.pack("<III256x", 0, flags, 0))
        assert self.control(client, subdevice, GET_GID, params) == OK
        return bytes(params[12 : 12 + struct.unpack_from("<I", params, 8)[0]])

    def info(self, client: int, obj: int, index: int) -> int:
        """Of a handle: its parent (1) or class (2); negative: the status."""
        params = bytearray(struct.pack("<IIQ", obj, index, 0))
        status = self.control(client, client, HANDLE_INFO, params)
        return -status if status else int(struct.unpack("<IIQ", params)[2])

    # -- what libcuda made, in its habit of counting handles up

    def clients(self, last: int = FIRST_CLIENT + 256) -> list[int]:
        """The clients of this file; libcuda's first one makes its contexts."""
        return [
            handle for handle in range(FIRST_CLIENT, last) if self.info(handle, handle, 2) == ROOT
        ]

    @property
    def client(self) -> int:
        if not self._client:
            self._client = self.clients()[0]
        return self._client

    def objects(self, client: int = 0, last: int = LAST_HANDLE) -> dict[int, int]:
        """Handle: class."""
        client = client or self.client
        found = {handle: self.info(client, handle, 2) for handle in range(0x5C000000, last)}
        return {handle: kind for handle, kind in found.items() if kind >= 0}

    def of_class(self, class_id: int, client: int = 0, last: int = 0x5C000040) -> list[int]:
        return [handle for handle, kind in self.objects(client, last).items() if kind == class_id]

    def channels(
        self, group: int, client: int = 0, last: int = 0x5C000040
    ) -> list[tuple[int, int]]:
        client = client or self.client
        return [
            (client, x)
            for x in self.of_class(CHANNEL, client, last)
            if self.info(client, x, 1) == group
        ]
