"""What was measured: one JSON line per item, appended, and a summary for docs/measurements."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.harness.figures import Figure

State = str  # done, failed, skipped
FORM = 1


@dataclass(frozen=True)
class Outcome:
    """One item of the set, run once."""

    item: str
    state: State
    about: Mapping[str, Any]
    figures: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    when: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    def line(self) -> str:
        """As one line of JSON."""
        return json.dumps({"form": FORM, **self.__dict__})


def shown(figure: Mapping[str, Any]) -> str:
    """A recorded figure as text."""
    values = {k: v for k, v in figure.items() if k != "verdict"}
    return Figure(**values).line()


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two outcomes are of the same card and driver, run in the same way."""
    return all(one.get(key) == other.get(key) for key in ("card", "driver", "simulated", "quick"))


class Results:
    """The file of outcomes; the newest of an item counts."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "results.jsonl"
        self.summary_path = directory / "summary.md"

    def read(self) -> dict[str, Outcome]:
        """The newest outcome of each item, in the order of their first appearance. A torn last line
        is left out.
        """
        found: dict[str, Outcome] = {}
        if not self.path.exists():
            return found
        for text in self.path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(text)
            except ValueError:
                continue
            row.pop("form", None)
            row["figures"], row["notes"] = tuple(row["figures"]), tuple(row["notes"])
            found[row["item"]] = Outcome(**row)
        return found

    def add(self, outcome: Outcome) -> None:
        """Append one, whole."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(outcome.line() + "\n")

    def done(self, about: Mapping[str, Any]) -> set[str]:
        """Items that need not run again: done on the same card and driver, in the same way."""
        return {o.item for o in self.read().values() if o.state == "done" and alike(o.about, about)}

    def write_summary(self) -> None:
        """The page to copy to docs/measurements."""
        self.summary_path.write_text(summary(self.read().values()), encoding="utf-8")


def _head(outcomes: list[Outcome]) -> list[str]:
    about = outcomes[-1].about
    kind = "the simulator: no figure here is of a GPU" if about["simulated"] else about["card"]
    dates = sorted({o.when[:10] for o in outcomes})
    lines = [f"# {dates[-1]}: {kind}", ""]
    lines.append(
        f"Command: `{about['command']}`. Dates: {', '.join(dates)}. Driver {about['driver']}, "
        f"{about['machine']}. qgpu {about['qgpu']}."
    )
    if about["quick"]:
        lines.append("Quick: fewer and shorter runs, for a look and not for a record.")
    return lines


def summary(found: Iterable[Outcome]) -> str:
    """Every figure with its number of runs, then what failed and what was left out, with the
    reason.
    """
    every = list(found)
    if not every:
        return "Nothing was run.\n"
    newest = max(every, key=lambda outcome: outcome.when)
    outcomes = [o for o in every if alike(o.about, newest.about)]
    lines = _head(outcomes)
    shown_items = [o for o in outcomes if o.state != "skipped"]
    for part in dict.fromkeys(o.item.split("/")[0] for o in shown_items):
        lines += ["", f"## {part}", "", "```"]
        for outcome in (o for o in shown_items if o.item.split("/")[0] == part):
            lines.append(
                f"{outcome.item} ({outcome.state}, {outcome.seconds:.0f} s, {outcome.when})"
            )
            lines += [f"  {shown(figure)}" for figure in outcome.figures]
            lines += [f"  {note}" for note in outcome.notes]
        lines.append("```")
    short = [
        f"{o.item} {f['name']}" for o in outcomes for f in o.figures if f["verdict"] == "short"
    ]
    failed = [o.item for o in outcomes if o.state == "failed"]
    for title, names in (
        ("Short of the target", short),
        ("Failed", failed),
        ("Left out", _left_out(outcomes)),
    ):
        lines += ["", f"{title}: {', '.join(names) if names else 'none'}."]
    return "\n".join(lines) + "\n"


def _left_out(outcomes: list[Outcome]) -> list[str]:
    """Items that did not run, together where the part and the reason are the same."""
    groups: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if outcome.state == "skipped":
            part, _, name = outcome.item.partition("/")
            groups.setdefault((part, "; ".join(outcome.notes)), []).append(name)
    return [f"{part} ({', '.join(names)}): {why}" for (part, why), names in groups.items()]
