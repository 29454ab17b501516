"""Plots of what was recorded: online's latency and offline's part of the card over the length of
offline's kernels.

`python -m bench.gpu.plots DIRECTORY` reads results.jsonl there and writes preempt.svg beside it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.gpu.record import Results

WAYS = {"qgpu": "qgpu", "plain": "time slices alone", "mps": "MPS"}
PARTS = {
    "online_p99": "online request, p99 (us)",
    "card_free_us_p99": "offline off the card, p99 (us)",
    "offline_part_of_solo": "offline's rate, part of solo",
}
Points = dict[str, dict[float, Mapping[str, Any]]]


def gathered(results: Results, figure: str) -> Points:
    """The figure of each way by length of kernel in us."""
    found: Points = {way: {} for way in WAYS}
    for outcome in results.read().values():
        match = re.fullmatch(r"preempt/([0-9]+) us (\w+)", outcome.item)
        if not match or match[2] not in found:
            continue
        for row in outcome.figures:
            if row["name"] == f"{figure}_{match[2]}":
                found[match[2]][float(match[1])] = row
    return found


def draw(results: Results, path: Path) -> bool:
    """Write the plot; False where nothing was recorded. Needs matplotlib."""
    points = {name: gathered(results, name) for name in PARTS}
    every = [row for way in points["online_p99"].values() for row in way.values()]
    if not every:
        return False
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(PARTS), figsize=(12, 3.6), layout="constrained")
    for axis, (name, label) in zip(axes, PARTS.items(), strict=True):
        for way, title in WAYS.items():
            rows = sorted(points[name][way].items())
            if rows:
                lengths = [us for us, _ in rows]
                (line,) = axis.plot(
                    lengths, [row["value"] for _, row in rows], marker="o", label=title
                )
                if name == "online_p99":
                    middle = [row["detail"]["p50"] for _, row in rows]
                    axis.plot(
                        lengths,
                        middle,
                        linestyle=":",
                        color=line.get_color(),
                        label=f"{title}, p50",
                    )
        axis.set(xscale="log", xlabel="offline's kernels (us)", ylabel=label)
        if name != "offline_part_of_solo":
            axis.set_yscale("log")
    alone = results.read().get("preempt/online alone")
    if alone and alone.figures:
        axes[0].axhline(alone.figures[0]["value"], color="gray", linestyle="--", label="alone")
    axes[0].legend()
    figure.suptitle("simulated" if every[0]["simulated"] else "measured on a card")
    figure.savefig(path)
    return True


def main() -> None:
    """Of one directory."""
    directory = Path(sys.argv[1])
    path = directory / "preempt.svg"
    print(
        f"wrote {path}"
        if draw(Results(directory), path)
        else "nothing to draw: preempt has not run here"
    )


if __name__ == "__main__":
    main()
