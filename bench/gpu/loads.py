"""What tenants do: kinds of load that run on a card and, where a model can stand in, on the
simulator.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.node import Node, NodeError, Way
from bench.gpu.place import BUILD
from bench.gpu.truth import Piece, Work, alone, merged, read_spans, read_stamps
from simulator.sim import read_trace

NODES = 20
LONG_US = 100_000
START_S, TAIL_S = 0.5, 0.7  # not counted: after the common start, before the end
LATE_S = 0.4
LEADS = (1, 2, 4)
SOLO_S = 2.0


@dataclass(frozen=True)
class Load:
    """A kind of work. `us`: about what one kernel takes."""

    name: str
    kind: str
    us: float = 100
    beat: bool = False  # its kernels say when they were off the card in their midst
    nodes: int = NODES

    @property
    def needs(self) -> tuple[str, ...]:
        """Of a machine that runs it on a card."""
        return ("torch",) if self.kind in ("train", "infer") else ("nvcc",)


LOADS = {
    "small": Load("small", "spin", 100),
    "matmul": Load("matmul", "matmul", 1000),
    "graph": Load("graph", "graph", 50),
    "train": Load("train", "train", 300),
}


@dataclass(frozen=True)
class Player:
    """One tenant. busy and idle: a pattern of requests instead of endless work."""

    load: Load
    share: int
    job_class: str = "offline"
    busy: float = 0.0
    idle: float = 0.0


@dataclass(frozen=True)
class Played:
    """What one tenant did."""

    pieces: Sequence[Piece]
    log: Sequence[Mapping[str, int]]
    told: Mapping[str, Any]


@dataclass(frozen=True)
class Scene:
    """What was left of a run; start and end bound what counts."""

    played: Mapping[str, Played]
    start: int
    end: int


def _cache(node: Node) -> dict[str, Any]:
    """What was measured once per call: lengths of steps and of kernels on the idle card."""
    found: dict[str, Any] = node.__dict__.setdefault("measured", {})
    return found


def ns_per_iter(node: Node) -> float:
    """Nanoseconds of one step of the spinning kernel on the idle card. On the simulator one by
    definition.
    """
    if node.place.simulated:
        return 1.0
    cache = _cache(node)
    if "ns_per_iter" not in cache:
        cache["ns_per_iter"] = node.run([node.place.program("tenant"), "--calibrate"])[
            "ns_per_iter"
        ]
    value: float = cache["ns_per_iter"]
    return value


def _model(load: Load, player: Player) -> list[str | Path]:
    """The simulator's stand-in: kernels of these lengths."""
    argv: list[str | Path] = [BUILD / "bin/qgpu-workload", "--json", "--kernel-us", f"{load.us:g}"]
    argv += ["--iters", str(round(load.us * 1000))]
    if load.kind == "graph":
        argv += ["--graph", "--kernels-per-request", str(load.nodes)]
    elif load.kind in ("train", "infer"):
        argv += ["--kernel-mix", f"20,100,{load.us:g},1000", "--kernels-per-request", "20"]
    else:
        argv += ["--kernels-per-request", "5"]
    if player.busy:
        return [*argv, "--busy", f"{player.busy}", "--idle", f"{player.idle}", "--log-requests"]
    if (
        load.us * (load.nodes if load.kind == "graph" else 1) >= LONG_US
    ):  # else it ends long after its time
        return [*argv, "--no-sync-each=1", *([] if load.kind == "graph" else ["--in-flight", "1"])]
    return [*argv, "--no-sync-each=1000000"]


def _real(node: Node, load: Load, player: Player) -> list[str | Path]:
    """The program for a card."""
    pattern = ["--busy", f"{player.busy}", "--idle", f"{player.idle}"] if player.busy else []
    if load.kind in ("train", "infer"):
        return [*node.place.script("torch_work"), "--mode", load.kind, *pattern]
    iters = max(1, round(load.us * 1000 / ns_per_iter(node)))
    argv: list[str | Path] = [
        node.place.program("tenant"),
        "--kind",
        load.kind,
        "--iters",
        str(iters),
    ]
    argv += ["--nodes", str(load.nodes)] if load.kind == "graph" else []
    argv += ["--beat"] if load.beat else []
    return [*argv, *(["--per-request", "5", *pattern] if pattern else [])]


def _files(node: Node, name: str) -> tuple[Path, Path]:
    place = node.place.work
    return place / f"{name}.stamps", place / f"{name}.log"


def _argv(node: Node, name: str, player: Player, begin: int, length: float) -> list[str | Path]:
    stamps, log = _files(node, name)
    for path in (stamps, log):
        path.unlink(missing_ok=True)
    common = ["--length", f"{length}", "--start-at", str(begin)]
    if node.place.simulated:
        return [*_model(player.load, player), *common, "--log", str(log)]
    out = ["--spans" if "torch" in player.load.needs else "--stamps", str(stamps)]
    return [
        *_real(node, player.load, player),
        *common,
        *out,
        *(["--log", str(log)] if player.busy else []),
    ]


def _pieces(node: Node, name: str, player: Player, told: Mapping[str, Any]) -> list[Piece]:
    if node.place.simulated:
        trace = read_trace(node.directory / "sim/trace.bin")
        return [Piece(i.t_start, i.t_end, i.t_submit, i.pid) for i in trace if i.pid == told["pid"]]
    stamps, _ = _files(node, name)
    if "torch" in player.load.needs:
        return read_spans(stamps)
    return merged(read_stamps(stamps)) if player.load.beat else read_stamps(stamps)


def _log(node: Node, name: str) -> list[dict[str, int]]:
    _, log = _files(node, name)
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def lead_s(node: Node, players: Mapping[str, Player]) -> float:
    """How long it takes until all programs have opened the card: as before, or a guess."""
    known = _cache(node)
    slow = (
        any("torch" in player.load.needs for player in players.values())
        and not node.place.simulated
    )
    opening: float = known.get("slow_s" if slow else "fast_s", 25.0 if slow else 1.5)
    return 1.5 * opening + 0.8 * len(players)


def _note_opening(
    node: Node, players: Mapping[str, Player], told: Mapping[str, Any], begun_ns: int
) -> None:
    """Remember how long the slowest program needed, so that the next run waits no longer than it
    must.
    """
    ready = [row["ready_ns"] for row in told.values() if "ready_ns" in row]
    slow = any("torch" in player.load.needs for player in players.values())
    if ready:
        _cache(node)["slow_s" if slow else "fast_s"] = max(0.5, (max(ready) - begun_ns) / 1e9)


def play(node: Node, players: Mapping[str, Player], way: Way, seconds: float) -> Scene:
    """Run all side by side from one moment on, so long that `seconds` can be counted.

    Once more with more time to open the card where a program came late: a run that began apart says
    nothing.
    """
    ns_per_iter(node)
    lead = lead_s(node, players)
    for factor in LEADS:
        begun = time.monotonic_ns()
        begin = begun + int(lead * factor * 1e9)
        told = _act(node, players, way, begin, START_S + seconds + TAIL_S)
        _note_opening(node, players, told, begun)
        late = max(row["start_ns"] for row in told.values()) - begin
        if late <= LATE_S * 1e9:
            return _scene(node, players, told, begin, seconds)
    raise NodeError(f"a program began {late / 1e9:.2f} s late; the machine is too busy to measure")


def _act(
    node: Node, players: Mapping[str, Player], way: Way, begin: int, length: float
) -> dict[str, dict[str, Any]]:
    running = {
        name: node.start(
            _argv(node, name, player, begin, length),
            way,
            share=player.share,
            job_class=player.job_class,
            mem="8G",
        )
        for name, player in players.items()
    }
    return {name: node.told(process, length * 4 + 120) for name, process in running.items()}


def _scene(
    node: Node, players: Mapping[str, Player], told: Mapping[str, Any], begin: int, seconds: float
) -> Scene:
    if node.place.simulated:
        time.sleep(0.2)  # the device side writes its trace each 100 ms
    start = begin + int(START_S * 1e9)
    played = {
        name: Played(_pieces(node, name, player, told[name]), _log(node, name), told[name])
        for name, player in players.items()
    }
    return Scene(played, start, start + int(seconds * 1e9))


def unit_of(node: Node, load: Load) -> float:
    """What one piece takes on the idle card; 0 on the simulator, whose trace counts no time off the
    card.
    """
    if node.place.simulated:
        return 0.0
    cache = _cache(node)
    if load.name not in cache:
        scene = play(node, {"solo": Player(load, 100)}, "plain", SOLO_S)
        cache[load.name] = alone(
            [p for p in scene.played["solo"].pieces if p.t_start >= scene.start]
        )
    value: float = cache[load.name]
    return value


def work_of(node: Node, scene: Scene, players: Mapping[str, Player]) -> dict[str, Work]:
    """The work of each tenant of a run."""
    return {
        name: Work(scene.played[name].pieces, unit_of(node, player.load))
        for name, player in players.items()
    }
