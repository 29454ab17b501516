"""What `qgpu top` shows at each width, and on a terminal: keys, sizes, and how it leaves it."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from test_top_command import Rig, rig

from cli.columns import cells
from cli.live.history import History
from cli.live.view import BLOCKS, Shown, keys_line, picture
from enforcer.reporting.state import CardState, NodeState, TenantState

__all__ = ["rig"]
GIB = 1 << 30
DRAWN = set(BLOCKS + "▁▂▃▄▅▆▇·")
WAIT_S = 60.0  # the machine may be busy


def tenant(job: int, kind: str | None, **more: object) -> TenantState:
    """A job that has held 30 % of its card for a minute."""
    plain = TenantState(
        job, 54321 + job, kind, "running", 30, 25.0, job * GIB, 12 * GIB, 1, 0.0, 1000.0
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def node(at: float, *tenants: TenantState, name: str = "NVIDIA H200", use: float = 50) -> NodeState:
    card = CardState("GPU-1", 0, name, 140 * GIB, 70 * GIB, 42, 0, tenants, use)
    spare = replace(card, uuid="GPU-2", index=1, tenants=(), use=None, util=None)
    return NodeState("n1", at, True, None, (card, spare))


BUSY = (
    tenant(9, "online"),
    tenant(1234567, "offline", state="checkpointed", share_now=3.0, held_now=80.0, procs=12),
    tenant(11, "offline", share_now=40.0, held_now=0.0, mem_used=None),
    tenant(3, None, state="whole", share=100, share_now=None),
)


def drawn(shown: Shown, width: int | None, height: int | None, *states: NodeState) -> list[str]:
    for state in states:
        shown.history.note([state])
    out = io.StringIO()
    console = Console(file=out, width=width or 400)
    console.print(picture(states[-1:], ["a note"], shown, width, height))
    return out.getvalue().rstrip("\n").split("\n")


def words(lines: list[str]) -> set[str]:
    return {word for line in lines[:-1] for word in line.split() if not set(word) <= DRAWN}


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA RTX PRO 6000 Blackwell Server Edition"])
def test_at_each_width_what_is_shown_is_whole(name: str) -> None:
    state = node(1060.0, *BUSY, name=name)
    every = words(drawn(Shown(), None, None, state))
    least = {"9", "1234567", "checkpointed", "NOW%", "MEM_GIB", "70.0/140.0"}
    before: set[str] = set()
    for width in range(60, 201):
        lines = drawn(Shown(), width, None, state)
        assert max(map(cells, lines)) <= width
        assert least <= words(lines) <= every
        assert {"H200"} & words(lines) <= set(name.split())
        assert before <= words(lines), width  # more room shows no less
        before = words(lines)
    assert before == every and name.removeprefix("NVIDIA ") in "\n".join(lines)


@pytest.mark.parametrize(
    ("sort", "jobs"),
    [
        ("n", ["9", "1234567", "11", "3", "-"]),
        ("c", ["11", "9", "1234567", "3", "-"]),
        ("m", ["1234567", "9", "3", "11", "-"]),
        ("t", ["3", "9", "1234567", "11", "-"]),
        ("j", ["3", "9", "11", "1234567", "-"]),
        ("u", ["1234567", "3", "9", "11", "-"]),
    ],
)
def test_each_order(sort: str, jobs: list[str]) -> None:
    tenants = [replace(t, granted_at=1000.0 - (t.job_id == 3)) for t in BUSY]
    lines = drawn(Shown(sort=sort), None, None, node(1060.0, *tenants))
    start = next(at for at, line in enumerate(lines) if line.startswith("NODE"))
    assert [line.split()[2] for line in lines[start + 1 : start + 6]] == jobs
    assert keys_line(sort, None).plain.count(f"{sort} ") >= 1


@pytest.mark.parametrize("height", [6, 8, 10, 11])
def test_what_does_not_fit_in_height_is_counted(height: int) -> None:
    lines = drawn(Shown(), 80, height, node(1060.0, *BUSY))
    assert len(lines) <= height and lines[-1].startswith("q quit")
    assert ("more: qgpu top --once" in "\n".join(lines)) == (height < 11)


def test_the_history_is_the_use_in_the_order_of_time() -> None:
    history = History()
    for at, use in enumerate((0, 100, 50, None)):
        history.note([replace(node(at), cards=(replace(node(at).cards[0], use=use),))])
        history.note([replace(node(at), cards=(replace(node(at).cards[0], use=99),))])  # not new
    card = node(9).cards[0]
    assert history.line(card, 6) == "  ▁█▅·" and history.line(card, 2) == "▅·"
    assert history.line(replace(card, uuid="other"), 3) == "   "


@pytest.mark.parametrize(
    ("visible", "held", "by"),
    [
        ((9,), [80.0, 40.0], "9"),
        ((9, 10, 12), [80.0], "9,10+1"),
        ((), [80.0], "online"),  # of users whom the caller may not see
        ((9,), [0.2, 0.0], ""),
        ((9,), [None], ""),
    ],
)
def test_who_held_an_offline_job(
    visible: tuple[int, ...], held: list[float | None], by: str
) -> None:
    history = History()
    for at, value in enumerate([100.0, *held]):
        mine = tenant(1, "offline", held_now=value)
        # 100 at the beginning is out of the window
        state = node(20.0 * min(at, 1) + at, mine, *(tenant(job, "online") for job in visible))
        history.note([state])
    known = [value for value in held if value is not None]
    card = state.cards[0]
    assert history.held(card, mine) == (sum(known) / len(known) if known else None)
    assert history.holders(card, mine) == by
    assert all(history.held(card, other) is None for other in card.tenants[1:])


class Tmux:
    """A terminal in which a shell runs a command."""

    def __init__(self, width: int, command: str) -> None:
        self._socket = f"qgpu-test-{uuid.uuid4().hex[:8]}"
        env = f"env TERM=screen LC_ALL=C.UTF-8 PYTHONPATH={Path.cwd()}"
        self._do("-f", "/dev/null", "new", "-d", "-x", str(width), "-y", "20", f"{env} {command}")

    def _do(self, *words: str) -> str:
        done = ["tmux", "-L", self._socket, *words]
        return subprocess.run(done, capture_output=True, text=True, check=True).stdout

    def press(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def resize(self, width: int) -> None:
        self._do("resize-window", "-x", str(width), "-y", "20")

    def flags(self) -> str:
        return self._do("display", "-p", "#{alternate_on} #{cursor_flag}").strip()

    def until(self, done: Callable[[str], bool]) -> str:
        """The screen as soon as it is so."""
        end = time.monotonic() + WAIT_S
        while not done(screen := self._do("capture-pane", "-p")):
            assert time.monotonic() < end, screen
            time.sleep(0.05)
        return screen

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], check=False)


@pytest.fixture
def terminal() -> Iterator[Callable[[int, str], Tmux]]:
    opened: list[Tmux] = []

    def start(width: int, command: str) -> Tmux:
        opened.append(Tmux(width, command))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def top(rig: Rig, *words: str) -> str:
    return shlex.join(
        [sys.executable, "-m", "cli.main", "top", "--config", str(rig.config), *words]
    )


def header(screen: str) -> list[str]:
    return next((line.split() for line in screen.split("\n") if " JOBID " in f" {line} "), [])


def jobs(screen: str) -> list[str]:
    """The jobs from above to below."""
    at = header(screen).index("JOBID") if header(screen) else 0
    rows = [line.split() for line in screen.split("\n")]
    return [row[at] for row in rows if len(row) > at and row[at] in ("3", "7", "9")]


AT = {  # rows of this rig are narrow
    60: "CARD JOBID USER STATE SHARE% NOW% HELD% MEM_GIB CAP_GIB",
    80: "CARD JOBID USER CLASS STATE SHARE% NOW% HELD% BY MEM_GIB CAP_GIB TIME",
    120: "NODE CARD JOBID USER CLASS STATE SHARE% NOW% HELD% BY MEM_GIB CAP_GIB PROCS TIME",
}
AT[200] = AT[120]


def test_screens_follow_the_size_of_the_terminal(
    rig: Rig, terminal: Callable[[int, str], Tmux]
) -> None:
    tmux = terminal(200, top(rig, "--interval", "60"))  # only the size and keys have it redrawn
    for width in (200, 60, 120, 80):
        tmux.resize(width)
        screen = tmux.until(lambda now, width=width: header(now) == AT[width].split())
        assert max(map(cells, screen.split("\n"))) <= width
        assert " H200 " in screen or " H20" not in screen


def test_keys_sort_and_q_ends_it_without_a_trace(
    rig: Rig, terminal: Callable[[int, str], Tmux]
) -> None:
    tmux = terminal(120, f"sh -c '{top(rig, '--interval', '60')}; echo ended $?; exec cat'")
    tmux.until(lambda screen: jobs(screen) == ["9", "7", "3"])
    for key, order in (("j", "379"), ("m", "973"), ("n", "973"), ("t", "793"), ("x", "793")):
        tmux.press(key)
        tmux.until(lambda screen, order=order: jobs(screen) == list(order))
    assert tmux.flags() == "1 0"
    tmux.press("q", "q")
    screen = tmux.until(lambda screen: "ended" in screen)
    assert screen.split() == ["ended", "0"] and tmux.flags() == "0 1"


RAISES = "from cli.live.terminal import Terminal as T\nwith T() as t: t.keys(0); 1/0"


@pytest.mark.parametrize(
    ("how", "status"), [("C-c", "0"), ("TERM", "143"), ("HUP", "129"), ("raise", "1")]
)
def test_however_it_ends_the_terminal_is_as_before(
    rig: Rig, terminal: Callable[[int, str], Tmux], tmp_path: Path, how: str, status: str
) -> None:
    command = top(rig) if how != "raise" else shlex.join([sys.executable, "-c", RAISES])
    script = tmp_path / "script"
    script.write_text(
        f"trap '' INT\nstty -g >{tmp_path}/before\n(trap - INT; echo $BASHPID >{tmp_path}/pid;"
        f" exec {command})\necho ended $?\nstty -g >{tmp_path}/now\nmv {tmp_path}/now"
        f" {tmp_path}/after\nexec cat\n"
    )
    tmux = terminal(120, f"bash {script}")
    if how != "raise":
        tmux.until(lambda screen: bool(jobs(screen)))
        if how == "C-c":
            tmux.press("C-c")
        else:
            os.kill(int((tmp_path / "pid").read_text()), getattr(signal, f"SIG{how}"))
    tmux.until(lambda screen: f"ended {status}" in screen)
    tmux.until(lambda _: (tmp_path / "after").exists())
    assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text()
    assert tmux.flags() == "0 1"


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_again(
    rig: Rig, terminal: Callable[[int, str], Tmux]
) -> None:
    tmux = terminal(120, "PS1='$ ' bash --norc -i")
    tmux.until(lambda screen: "$" in screen)
    tmux.press(top(rig), "Enter")
    tmux.until(lambda screen: bool(jobs(screen)) and "q quit" in screen)
    tmux.press("C-z")
    tmux.until(lambda screen: "Stopped" in screen)
    assert tmux.flags() == "0 1"
    tmux.press("fg", "Enter")
    tmux.until(lambda screen: "q quit" in screen)
    tmux.press("q")
    tmux.until(lambda screen: "q quit" not in screen and "Stopped" in screen)
    assert tmux.flags() == "0 1"
