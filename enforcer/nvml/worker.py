"""NVML behind a deadline: calls run in one worker thread, so a hanging driver stalls no one else.

A driver call cannot be interrupted. While one is overdue, others fail at once with a sentence
(`NvmlStuckError`); once it returns, service goes on. `NvmlInline` does the same without a thread,
for tests and for programs that may wait.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from enforcer.nvml.port import CardLostError, Nvml, NvmlError

T = TypeVar("T")


class NvmlStuckError(NvmlError):
    """NVML did not answer in time."""


class NvmlCaller(Protocol):
    """How the daemon reaches NVML."""

    def call(self, action: Callable[[Nvml], T]) -> T:
        """Result of `action`, within the deadline. Raises NvmlError."""
        ...

    def start(self, action: Callable[[Nvml], T], done: Callable[[T | NvmlError], object]) -> bool:
        """Start `action`; `collect` gives its result to `done`. False while an earlier one is
        overdue.
        """
        ...

    def collect(self) -> None:
        """Deliver results since the last call, in the caller's thread."""
        ...

    def stuck(self) -> NvmlError | None:
        """The sentence for a call that is overdue; None while none is."""
        ...

    def fileno(self) -> int | None:
        """Readable when `collect` has results."""
        ...


class _Driver:
    """The open library; opened when needed, and again once after a failure (a driver may be
    reloaded).
    """

    def __init__(self, open_nvml: Callable[[], Nvml]) -> None:
        self._open = open_nvml
        self._nvml: Nvml | None = None

    def run(self, action: Callable[[Nvml], T]) -> T:
        try:
            return action(self._opened())
        except CardLostError:
            raise
        except NvmlError:
            self._drop()
            return action(self._opened())

    def _opened(self) -> Nvml:
        if self._nvml is None:
            self._nvml = self._open()
        return self._nvml

    def _drop(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(NvmlError):
                self._nvml.close()
        self._nvml = None


class NvmlInline:
    """Runs everything at once in the caller's thread."""

    def __init__(self, open_nvml: Callable[[], Nvml]) -> None:
        self._driver = _Driver(open_nvml)

    def call(self, action: Callable[[Nvml], T]) -> T:
        """Run it."""
        return self._driver.run(action)

    def start(self, action: Callable[[Nvml], T], done: Callable[[T | NvmlError], object]) -> bool:
        """Run it and deliver."""
        try:
            result: T | NvmlError = self._driver.run(action)
        except NvmlError as error:
            result = error
        done(result)
        return True

    def collect(self) -> None:
        """Nothing to deliver."""

    def stuck(self) -> NvmlError | None:
        """None: the caller itself waits."""
        return None

    def fileno(self) -> int | None:
        """No descriptor."""
        return None


@dataclass
class _Task:
    action: Callable[[Nvml], Any]
    done: Callable[[Any], object] | None
    since: float = field(default_factory=time.monotonic)
    finished: threading.Event = field(default_factory=threading.Event)
    result: Any = None


class NvmlThread:
    """The worker thread. `call`, `start` and `collect` belong to one other thread, the daemon's
    loop.
    """

    def __init__(self, open_nvml: Callable[[], Nvml], deadline_s: float) -> None:
        self._deadline = deadline_s
        self._driver = _Driver(open_nvml)
        self._todo: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._open_tasks: list[_Task] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name="nvml", daemon=True)
        self._thread.start()

    def call(self, action: Callable[[Nvml], T]) -> T:
        """Run it in the worker and wait for it, at most the deadline."""
        if self.overdue():
            raise self._stuck()
        task = self._submit(action, None)
        if not task.finished.wait(self._deadline):
            raise self._stuck()
        if isinstance(task.result, Exception):
            raise task.result
        result: T = task.result
        return result

    def start(self, action: Callable[[Nvml], T], done: Callable[[T | NvmlError], object]) -> bool:
        """Give it to the worker, unless an earlier one is overdue."""
        if self.overdue():
            done(self._stuck())
            return False
        self._submit(action, done)
        return True

    def collect(self) -> None:
        """Deliver finished results."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._ready.get_nowait()
                if task.done is not None:
                    task.done(
                        task.result
                        if not isinstance(task.result, Exception)
                        else _as_nvml(task.result)
                    )

    def stuck(self) -> NvmlError | None:
        """The sentence, while a call is overdue."""
        return self._stuck() if self.overdue() else None

    def fileno(self) -> int | None:
        """The eventfd that wakes the loop."""
        return self._wake

    def overdue(self) -> bool:
        """Whether some call has been in the driver for longer than the deadline."""
        self._open_tasks = [task for task in self._open_tasks if not task.finished.is_set()]
        return any(time.monotonic() - task.since >= self._deadline for task in self._open_tasks)

    def _stuck(self) -> NvmlStuckError:
        return NvmlStuckError(
            f"the NVIDIA driver has not answered NVML for {self._deadline:g} s and more: look for"
            " Xid errors in the kernel's log, and at nvidia-smi"
        )

    def _submit(self, action: Callable[[Nvml], Any], done: Callable[[Any], object] | None) -> _Task:
        task = _Task(action, done)
        self._open_tasks.append(task)
        self._todo.put(task)
        return task

    def close(self) -> None:
        """End the worker after its present call. No call may follow."""
        self._todo.put(None)
        self._thread.join(self._deadline)

    def _work(self) -> None:
        while task := self._todo.get():
            try:
                task.result = self._driver.run(task.action)
            except Exception as error:  # our own bug must reach the loop, not end the only worker
                task.result = error
            task.finished.set()
            self._ready.put(task)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self._wake, 1)
        os.close(self._wake)


def _as_nvml(error: Exception) -> NvmlError:
    return error if isinstance(error, NvmlError) else NvmlError(f"{type(error).__name__}: {error}")
