"""Two programs that share an event; they evaluate what a test sends them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# The maker's work waits for a word of its own that `go` sets. Both answer each line of stdin.
BOTH = """
g = Cuda(); event, s = c.c_void_p(), g.stream(); page = c.c_void_p()
handle = (c.c_ubyte * 64)()
class ByValue(c.Structure): _fields_ = [("bytes", c.c_ubyte * 64)]
g.call("cuMemHostAlloc", c.byref(page), c.c_size_t(4096), 0)
word = c.c_uint32.from_address(page.value)
def hold():
    word.value = 0; g.call("cuStreamWaitValue32_v2", s, page, 1, 0)
def record(): g.call("cuEventRecord", event, s)
def query(stream=None): return g.raw("cuStreamQuery", s) if stream else g.raw("cuEventQuery", event)
def serve():
    for line in sys.stdin:
        print(eval(line), flush=True)
def go(): word.value = 1
"""
MAKER = (
    BOTH
    + """
INTERPROCESS = 6  # and no timing
g.call("cuEventCreate", c.byref(event), INTERPROCESS)
g.call("cuIpcGetEventHandle", handle, event); print(bytes(handle).hex(), flush=True); serve()
"""
)
OPENER = (
    BOTH
    + """
data = bytes.fromhex(sys.stdin.readline())
g.call("cuIpcOpenEventHandle", c.byref(event), ByValue((c.c_ubyte * 64)(*data)))
print("open", flush=True); serve()
"""
)


class Client:
    """A program that evaluates what it is sent."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout
        got = self.process.stdout.readline().strip()
        if not got:
            raise AssertionError(self.process.communicate()[1])
        return got

    def ask(self, code: str) -> str:
        self.send(code)
        return self.line()

    def send(self, code: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(code + "\n")
        self.process.stdin.flush()


@contextmanager
def pair(start: Callable[[str], subprocess.Popen[str]]) -> Iterator[tuple[Client, Client]]:
    """The maker of the event and the one that opened it; `start` runs code that has sim_client."""
    maker, opener = Client(start(MAKER)), Client(start(OPENER))
    try:
        opener.send(maker.line())
        assert opener.line() == "open"
        yield maker, opener
    finally:
        for client in (maker, opener):
            client.process.kill()
            client.process.communicate()


def until(client: Client, code: str, answer: str) -> None:
    wait = f"next(True for _ in iter(int, 1) if {code} == {answer})"
    assert client.ask(wait) == "True"
