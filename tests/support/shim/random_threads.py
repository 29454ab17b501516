"""Several random programs in threads of one process: `random_threads.py SEED STEPS THREADS`. See
random_calls.py.

Each has contexts of its own and what is in them, and another thread goes on with it now and then.
Prints the program's number, the name and the result of each call.
"""

from __future__ import annotations

import ctypes as c
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial

import random_calls

HANDS = 4  # threads that have a program one after the other
MOST = 6  # contexts of each


class Threaded(random_calls.Program):
    """A program beside others in one process: it leaves shared state alone, so all answers are
    known.
    """

    SHARED = ("primary", "primary_release", "primary_reset", "pool_set")
    ENDS: Mapping[str, tuple[str, str]] = {
        "ctx_destroy": ("context", "cuCtxDestroy_v2"),
        "stream_destroy": ("stream", "cuStreamDestroy_v2"),
        "event_destroy": ("event", "cuEventDestroy_v2"),
        "unload": ("module", "cuModuleUnload"),
        "pool_destroy": ("pool", "cuMemPoolDestroy"),
        "array_destroy": ("array", "cuArrayDestroy"),
        "release": ("physical", "cuMemRelease"),
        "exec_destroy": ("exec", "cuGraphExecDestroy"),
        "graph_destroy": ("graph", "cuGraphDestroy"),
    }
    INSIDE: Mapping[str, Sequence[str]] = {
        "context": [
            kind for kind in random_calls.HANDLES if kind not in ("context", "graph", "exec")
        ],
        "module": ["function"],
    }

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.said: list[str] = []
        context = c.c_void_p()
        self.cuda.call("cuCtxCreate_v2", c.byref(context), 0, 0)
        self.cuda.load()
        self.have |= {"context": [context.value or 0], "function": [self.cuda.work.value or 0]}
        for name in self.SHARED:
            del self.calls[name]
        for name, (kind, function) in self.ENDS.items():
            self.calls[name] = partial(self.over, kind, function)

    def do_ctx_create(self) -> int:
        """Bounded, so that the card's memory does not end: else the first one has it."""
        known = [context for context in self.have["context"] if context]
        return super().do_ctx_create() if len(known) < MOST else self.answer("ctx_destroy")

    def over(self, kind: str, name: str, *args: object) -> int:
        """What is gone is not picked again: its handle may be another program's by then."""
        status = super().over(kind, name, *args)
        for inner in self.INSIDE.get(kind, ()) if status == 0 else ():
            self.have[inner].clear()
        return status

    def do_capture(self) -> int:
        return self.cuda.raw(
            "cuStreamBeginCapture_v2", self.stream(), self.random.choice((1, 2, 2, 2))
        )


def some_steps(program: Threaded, number: int, steps: int) -> None:
    """In a thread that has no context yet."""
    program.calls["ctx_set"]()
    names = random_calls.names_of(program)
    for _ in range(steps):
        name = program.random.choice(names)
        program.said.append(f"{number} {name} {program.answer(name)}")


def main(seed: int, steps: int, count: int) -> None:
    """Runs them at once."""
    programs = [Threaded(1000 * seed + i) for i in range(count)]
    for _ in range(HANDS):
        threads = [
            threading.Thread(target=some_steps, args=(program, i, steps // HANDS))
            for i, program in enumerate(programs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for program in programs:
        print("\n".join(program.said))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
