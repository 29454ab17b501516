"""The terminal while `qgpu top` runs: single keys, its size, and its state afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from types import FrameType
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

ENDS = (signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """A screen of its own and keys without echo. After the block the terminal is as it was, also
    after a signal or an exception.
    """

    def __init__(self) -> None:
        self.console = Console()
        self._live = Live(console=self.console)
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._saved: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stop_asked = False

    def __enter__(self) -> Terminal:
        # A handler alone does not end select(): it would go on waiting.
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for signum in (signal.SIGWINCH, signal.SIGTSTP, *ENDS):
            self._handlers[signum] = signal.signal(signum, self._on_signal)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give()
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(-1)
        os.close(self._wake)
        os.close(self._waker)

    def _on_signal(self, signum: int, _: FrameType | None) -> None:
        if signum in ENDS:
            sys.exit(128 + signum)
        self._stop_asked = self._stop_asked or signum == signal.SIGTSTP

    def _take(self) -> None:
        if self._keys is not None:
            self._saved = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._live = Live(console=self.console, auto_refresh=False, screen=True)
        self._live.start()

    def _give(self) -> None:
        self._live.stop()
        if self._keys is not None and self._saved:
            # What was typed and not read is thrown away, so that the shell does not get it.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSAFLUSH, self._saved)

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines now; COLUMNS and LINES count only where the terminal does not know."""
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(sys.stdout.fileno())
            if found.columns and found.lines:
                return found
        return shutil.get_terminal_size()

    def draw(self, picture: RenderableType) -> None:
        """Show the picture in place of the last one."""
        self.console.size = self.size
        self._live.update(picture, refresh=True)

    def keys(self, seconds: float) -> str:
        """The keys that are pressed within that time. Returns early at a key, after a change of the
        size, and after a stop (Ctrl-Z).
        """
        read = [self._wake] if self._keys is None else [self._wake, self._keys]
        ready, _, _ = select.select(read, [], [], max(0.0, seconds))
        pressed = ""
        if self._keys in ready:
            pressed = os.read(read[1], 64).decode(errors="replace")
            if not pressed:
                sys.exit(0)  # the terminal is gone
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 64)
        if self._stop_asked:
            self._stop()
        return pressed

    def _stop(self) -> None:
        """Stop as any program does, with the terminal as it was, and go on where it continues."""
        self._give()
        self._stop_asked = False
        # Not SIGSTOP: the kernel passes over this one where no shell could continue us.
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._take()
