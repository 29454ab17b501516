"""What each heuristic of the decision is worth: `python -m bench.worlds.ablate`.

Each heuristic is a change of the source of the policy that takes it away. qgpu-simulate is built
from a changed copy and runs the worlds of the tuning set (`--judging`: of the other one). The table
has the difference to the whole policy; a positive error means that the heuristic helps. Equal seeds
give equal figures, so there is no noise from run to run. How far a figure moves by chance, with
other worlds, is printed first: the median change when half of the worlds is left out.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import click

from bench.worlds.judge import Judged
from bench.worlds.worlds import AT_ONCE, COUNT, JUDGING, KINDS, TUNING, Kind, p95, run

ROOT = Path(__file__).resolve().parents[2]
POLICY = Path("enforcer/native/arbiter/policy")
HALVES = 40  # random halves of the worlds, for the noise


@dataclass(frozen=True)
class Ablation:
    """A heuristic, and the texts of the source that take it away: file, old, new."""

    name: str
    changes: tuple[tuple[str, str, str], ...]


def constant(name: str, old: str, new: str, why: str) -> Ablation:
    """A constant of policy.h with another value."""
    return Ablation(why, (("policy.h", f"#define {name} {old}\n", f"#define {name} {new}\n"),))


ABLATIONS = (
    Ablation(
        "learned length of pauses",
        (
            (
                "policy_quantum.c",
                "    return cur->real_pauses == QP_LATE_THREAD  ? QP_LATE_PAUSE_NS\n",
                "    return cur ? QP_PAUSE_NS : cur->real_pauses == QP_LATE_THREAD ?"
                " QP_LATE_PAUSE_NS\n",
            ),
        ),
    ),
    Ablation(
        "close samples after a pause",
        (
            (
                "policy_quantum.c",
                "    if (!cur->paused_ns || now - cur->paused_ns >= QP_PAUSE_MEMORY_NS)\n",
                "    if (cur)\n",
            ),
        ),
    ),
    Ablation(
        "longer pauses after a drain timeout",
        (("policy_quantum.c", "    if (s->recent_timeout)\n", "    if (!s)\n"),),
    ),
    constant("QP_LONG_QUANTUM", "10u", "1u", "long quanta of two backlogged tenants"),
    constant("QP_LONG_QUANTUM_MANY", "7u", "1u", "long quanta of more than two"),
    constant("QP_LONG_QUANTUM_MANY", "7u", "10u", "shorter long quanta with more than two"),
    Ablation(
        "shorter quanta of small shares",
        (("policy_quantum.c", "    if (s->competitors < 2)\n", "    if (s)\n"),),
    ),
    Ablation(
        "a quantum less its drain",
        (("policy_quantum.c", "- min_u64(drain, longer / 2) :", "- 0 * drain :"),),
    ),
    Ablation(
        "the next gate opens early",
        (("policy_quantum.c", "    if (!may_open_early(c, k))\n", "    if (c || k)\n"),),
    ),
    Ablation(
        "first poll by learned drains",
        (
            (
                "policy_quantum.c",
                "    return max_u64(t->short_drain_ns / 4 * 3, QP_DRAIN_POLL_NS);\n",
                "    return t ? QP_DRAIN_POLL_NS : 0;\n",
            ),
        ),
    ),
    Ablation(
        "polls of uneven drains",
        (("policy_quantum.c", "    return t->uneven_drains\n", "    return !t\n"),),
    ),
    Ablation(
        "late polls where a thread reports the end",
        (
            (
                "policy_quantum.c",
                "    if (t->at_gate && !is_fixed_share(s))\n        return max_u64(first, now +"
                " QP_REPORTED_POLL_NS);\n",
                "",
            ),
        ),
    ),
    Ablation(
        "learned drain timeout",
        (
            (
                "policy_quantum.c",
                "    bool known = t->max_drain_ns && !is_fixed_share(s);\n",
                "    bool known = !t && !s;\n",
            ),
        ),
    ),
    constant("QP_TIMEOUT_HALVINGS", "6u", "0u", "halved drain timeouts"),
    constant("QP_KEEP_CREDIT_NS", "(5 * QP_MS)", "(0 * QP_MS)", "credit kept over a gap"),
    constant("QP_REOPEN_SLICES", "3u", "1u", "fixed-share: budget saved before a gate opens"),
    constant("QP_MARGIN_NS", "(2 * QP_MS)", "(0 * QP_MS)", "fixed-share: margin of the window"),
    Ablation(
        "fixed-share: another margin for long kernels",
        (
            (
                "policy_budget.c",
                "(has_long_kernels(t) ? QP_LATE_REPORT_NS : QP_MARGIN_NS)",
                "QP_MARGIN_NS",
            ),
        ),
    ),
    Ablation(
        "fixed-share: a full card opens sooner",
        (
            (
                "policy_budget.c",
                "    return waiting > 1 && shares >= FULL_SHARES;\n",
                "    return waiting > 256 && shares >= FULL_SHARES;\n",
            ),
        ),
    ),
    Ablation(
        "fixed-share: fine samples of young work",
        (
            (
                "policy.c",
                "    return min_u64(tick, max_u64(QP_FINE_NS, (now - t->busy_since_ns) /"
                " QP_FINE_PARTS));\n",
                "    return tick + 0 * now * t->share;\n",
            ),
        ),
    ),
    Ablation(
        "all deficits move back at the bound",
        (
            (
                "policy_charge.c",
                "clamp_deficit(t->deficit_ns - balance * weight(s, t) / sum);\n",
                "clamp_deficit(t->deficit_ns + 0 * balance * sum);\n",
            ),
        ),
    ),
    Ablation(
        "no charge of others for work outside a quantum",
        (
            (
                "policy_charge.c",
                "    return (t->was_undrained || t->undrained) && s->current != (int32_t)i &&\n",
                "    return !t && s->current != (int32_t)i &&\n",
            ),
        ),
    ),
)


def changed(ablation: Ablation, tree: Path) -> None:
    """Take the heuristic away in a copy of the policy. Raises ValueError where a text is not there
    exactly once.
    """
    for name, old, new in ablation.changes:
        path = tree / POLICY / name
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{ablation.name}: {name} has not exactly one '{old.strip()}'")
        path.write_text(text.replace(old, new))


def build(ablation: Ablation | None, place: Path) -> Path:
    """qgpu-simulate without the heuristic."""
    tree, program = place / "tree", place / "qgpu-simulate"
    shutil.copytree(ROOT / POLICY, tree / POLICY)
    if ablation is not None:
        changed(ablation, tree)
    sources = [*(ROOT / "simulator/native/whatif").glob("*.c"), *(tree / POLICY).glob("*.c")]
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


def lines(seeds: range) -> Iterator[str]:
    """The table, a line at a time."""
    yield "| without | " + " | ".join(kind.field for kind in KINDS) + " |"
    yield "| --- |" + " ---: |" * len(KINDS)
    whole = outcome(None, seeds)
    yield "| (p95 of all) | " + " | ".join(f"{p95(whole, k):.3f}" for k in KINDS) + " |"
    yield "| (noise) | " + " | ".join(f"{noise(whole, k):.3f}" for k in KINDS) + " |"
    for ablation in ABLATIONS:
        found = outcome(ablation, seeds)
        cells = (f"{p95(found, k) - p95(whole, k):+.3f}" for k in KINDS)
        yield f"| {ablation.name} | " + " | ".join(cells) + " |"


@click.command()
@click.option(
    "--judging", is_flag=True, help="The judged worlds: for a decision, not for a choice."
)
@click.option(
    "--worlds", type=click.IntRange(100), default=COUNT, show_default=True, help="How many worlds."
)
def main(judging: bool, worlds: int) -> None:
    """Print what each heuristic of the decision is worth, as a table."""
    first = JUDGING if judging else TUNING
    for line in lines(range(first, first + worlds)):
        click.echo(line)


if __name__ == "__main__":
    main()
