"""The second connection to arbiter.sock: the arbiter reports ends and waits of processes on it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from enforcer.wire import abi
from enforcer.wire import messages as arbiter_wire
from enforcer.wire.link import ArbiterGone, ArbiterLink
from enforcer.wire.messages import ProcessStats, Want


class DeathWatch:
    """A separate connection on which the arbiter reports the end of registered processes, and what
    memory they wait for.

    Memory of a dead process stays charged until `ArbiterLink.gone`, or for a minute after the last
    `ArbiterLink.listed`. To a new watch deaths not ended by `gone` are reported again, and all that
    is waited for.
    """

    def __init__(self, run_dir: str | Path, timeout: float = 2.0) -> None:
        """Connect and begin to watch. Raises ArbiterGone when there is no arbiter."""
        link = ArbiterLink(run_dir, timeout)
        self._sock = link.watch()
        self._sock.setblocking(False)
        self._died: list[ProcessStats] = []
        self._wants: list[Want] = []

    def __enter__(self) -> DeathWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Descriptor that becomes readable when a process ended, or the arbiter did."""
        return self._sock.fileno()

    def died(self) -> list[ProcessStats]:
        """Processes that ended since the last call; never waits. Raises ArbiterGone when the
        connection ended.
        """
        self._read(bool(self._died))
        found, self._died = self._died, []
        return found

    def wants(self) -> list[Want]:
        """Changes of what processes wait for since the last call, oldest first; never waits.
        Raises ArbiterGone when the connection ended.
        """
        self._read(bool(self._wants))
        found, self._wants = self._wants, []
        return found

    def _read(self, found: bool) -> None:
        """Take all that lies in the socket. Its end is an error of the next call if this one has
        something to return.
        """
        while True:
            try:
                data = self._sock.recv(4096)
            except BlockingIOError:
                return
            except OSError as error:
                raise ArbiterGone(f"the watch of processes: {error.strerror or error}") from error
            if not data:
                if found:
                    return
                raise ArbiterGone("the watch of processes: the arbiter closed the connection")
            found = True
            self._sort(data)

    def _sort(self, data: bytes) -> None:
        if abi.MsgHead.from_buffer_copy(data).type == abi.CTL_WANT:
            self._wants.append(arbiter_wire.want(data))
        else:
            self._died.append(arbiter_wire.process(data))

    def close(self) -> None:
        """Stop watching."""
        self._sock.close()
