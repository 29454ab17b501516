"""What each heuristic and constant of the decision is worth: `python -m bench.worlds.ablate`.

Each heuristic is a change of the source of the policy that takes it away; with `--constants` each
constant is halved, and doubled. qgpu-simulate is built from a changed copy and runs the worlds of
the tuning set (`--judging`: of the other one). The table has the difference to the whole policy; a
positive error means that the heuristic, or the constant as it is, helps. Equal seeds give equal
figures, so there is no noise from run to run. How far a figure moves by chance, with other worlds,
is printed first: the median change when half of the worlds is left out.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click

from bench.worlds.judge import Judged
from bench.worlds.worlds import AT_ONCE, COUNT, JUDGING, KINDS, TUNING, Kind, p95, run

ROOT = Path(__file__).resolve().parents[2]
POLICY, ENGINE = Path("enforcer/native/arbiter/policy"), Path("simulator/native/whatif")
DEFINED = re.compile(r"^#define (\w+)( +)(\S.*)$", re.M)
# Marks and sizes of arrays, and what no world reaches: engine and worlds have no late arbiter.
NO_SIZE = {"QP_MAX_TENANTS", "QP_NEVER", "QP_MS", "QP_BINS", "QP_OVERSTAY_NS"}
HALVES = 40  # random halves of the worlds, for the noise


@dataclass(frozen=True)
class Ablation:
    """A heuristic, and the texts of the source that take it away: file, old, new. The file is in
    the policy or in the engine.
    """

    name: str
    changes: tuple[tuple[str, str, str], ...]


def constant(name: str, old: str, new: str, why: str) -> Ablation:
    """A constant of policy.h with another value."""
    return Ablation(why, (("policy.h", f"#define {name} {old}\n", f"#define {name} {new}\n"),))


def text(file: str, old: str, new: str, why: str) -> Ablation:
    """One other text in one file."""
    return Ablation(why, ((file, old, new),))


ABLATIONS = (
    constant("QP_LONG_QUANTUM", "10u", "1u", "long quanta of backlogged tenants"),
    constant("QP_GAP_NS", "(1 * QP_MS)", "0ull", "gaps between launches"),
    constant("QP_PAUSE_NS", "200000ull", "0ull", "a pause before a quantum is given away"),
    constant("QP_START_NS", "(1 * QP_MS)", "(100 * QP_MS)", "charge of an unused quantum"),
    constant("QP_DRAIN_PARTS", "8u", "1000000u", "polls of a drain by its age"),
    constant("QP_DRAIN_TIMEOUT_NS", "(100 * QP_MS)", "(1000 * QP_MS)", "drain timeout of 100 ms"),
    text(
        "policy_budget.c",
        "    return t->share * 10 * QP_MS - QP_FIXED_WINDOW_US * 1000ull;\n",
        "    return t->share * 10 * QP_MS;\n",
        "fixed-share: margin",
    ),
    constant(
        "QP_BUDGET_MAX_NS",
        "(50 * (int64_t)QP_MS)",
        "(0 * (int64_t)QP_MS)",
        "fixed-share: tokens saved for waits",
    ),
    text(
        "policy_budget.c",
        "    return t->share * 10 * QP_MS - QP_FIXED_WINDOW_US * 1000ull;\n",
        "    return t ? QP_NEVER : 0;\n",
        "fixed-share: limit of a second",
    ),
    text(
        "policy_charge.c",
        "    if (before && t->reported_end_ns)\n",
        "    if (!t)\n",
        "reported ends in charges",
    ),
    text(
        "policy_charge.c",
        "            settle_outside_quantum(t, own - part);\n",
        "            settle_outside_quantum(t, 0 * own * part);\n",
        "debt for work outside a quantum",
    ),
    text(
        "policy_charge.c",
        "    return (t->was_undrained || t->undrained) && s->current != (int32_t)i &&\n",
        "    return !t && s->current != (int32_t)i &&\n",
        "no charge of others for work outside a quantum",
    ),
)


def sized(name: str) -> Iterator[Ablation]:
    """Each constant that this file defines, halved and doubled."""
    (path,) = (
        ROOT / folder / name for folder in (POLICY, ENGINE) if (ROOT / folder / name).exists()
    )
    for found in DEFINED.finditer(path.read_text()):
        symbol, space, value = found.groups()
        if symbol in NO_SIZE:
            continue
        for what, how in (("half of", "/ 2"), ("twice", "* 2")):
            new = f"#define {symbol}{space}(({value}) {how})\n"
            yield Ablation(f"{what} `{symbol}`", ((name, f"{found.group()}\n", new),))


def constants() -> list[Ablation]:
    """Those of the policy, and the engine's own: what the arbiter's samples and the shim have."""
    return [*sized("policy.h"), *sized("actor.c")]


def changed(ablation: Ablation, tree: Path) -> None:
    """Take the heuristic away in a copy of policy and engine. Raises ValueError where a text is not
    there exactly once.
    """
    for name, old, new in ablation.changes:
        path = tree / (POLICY if (tree / POLICY / name).exists() else ENGINE) / name
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{ablation.name}: {name} has not exactly one '{old.strip()}'")
        path.write_text(text.replace(old, new))


def build(ablation: Ablation | None, place: Path) -> Path:
    """qgpu-simulate without the heuristic."""
    tree, program = place / "tree", place / "qgpu-simulate"
    for folder in (POLICY, ENGINE):
        shutil.copytree(ROOT / folder, tree / folder)
    if ablation is not None:
        changed(ablation, tree)
    sources = [*(tree / ENGINE).glob("*.c"), *(tree / POLICY).glob("*.c")]
    include = [tree / "enforcer/native/arbiter", ROOT / "enforcer/native/abi"]
    words = ["cc", "-O3", "-std=gnu11", "-pthread", *(f"-I{path}" for path in include)]
    argv = [*words, *map(str, sorted(sources)), "-o", str(program), "-lm"]
    subprocess.run(argv, check=True, cwd=ROOT)
    return program


def outcome(ablation: Ablation | None, seeds: range) -> dict[int, Judged]:
    """The figures of the worlds without the heuristic."""
    with tempfile.TemporaryDirectory(prefix="qgpu-ablate-") as place:
        program = build(ablation, Path(place))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(lambda seed: run(seed, program), seeds)
            return dict(zip(seeds, found, strict=True))


def noise(found: Mapping[int, Judged], kind: Kind) -> float:
    """The median change of p95 when a random half of the worlds is left out."""
    dice, whole = Random(1), p95(found, kind)
    halves = (dict(dice.sample(sorted(found.items()), len(found) // 2)) for _ in range(HALVES))
    return statistics.median(abs(p95(half, kind) - whole) for half in halves)


def lines(ablations: Iterable[Ablation], seeds: range) -> Iterator[str]:
    """The table, a line at a time."""
    yield "| without | " + " | ".join(kind.field for kind in KINDS) + " |"
    yield "| --- |" + " ---: |" * len(KINDS)
    whole = outcome(None, seeds)
    yield "| (p95 of all) | " + " | ".join(f"{p95(whole, k):.3f}" for k in KINDS) + " |"
    yield "| (noise) | " + " | ".join(f"{noise(whole, k):.3f}" for k in KINDS) + " |"
    for ablation in ablations:
        found = outcome(ablation, seeds)
        cells = (f"{p95(found, k) - p95(whole, k):+.3f}" for k in KINDS)
        yield f"| {ablation.name} | " + " | ".join(cells) + " |"


@click.command()
@click.option("--constants", "sizes", is_flag=True, help="Each constant, instead of heuristics.")
@click.option(
    "--judging", is_flag=True, help="The judged worlds: for a decision, not for a choice."
)
@click.option(
    "--worlds", type=click.IntRange(100), default=COUNT, show_default=True, help="How many worlds."
)
def main(sizes: bool, judging: bool, worlds: int) -> None:
    """Print what each heuristic, or constant, of the decision is worth, as a table."""
    first = JUDGING if judging else TUNING
    for line in lines(constants() if sizes else ABLATIONS, range(first, first + worlds)):
        click.echo(line)


if __name__ == "__main__":
    main()
