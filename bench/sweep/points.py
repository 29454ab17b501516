"""The points of the sweep: the simulator's assumptions about cards and drivers, and unreachable
figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

from enforcer.wire.link import CardSettings

SLICES_US, SWITCHES_US, LAUNCHES_US = (500, 5000), (20, 500), (2.0, 6.0)
CLOSES_US = 200  # us: bound of gate_close_us_p99
REQUEST_US = 5000  # of online: 50 kernels of 100 us, one after the other
P99_RATIO = 1.05


@dataclass(frozen=True)
class Point:
    """One set of assumptions. `stalls`: of the whole card, or of a launch call of one offline
    tenant.
    """

    slice_us: int = 1000
    switch_us: int = 50
    launch_us: float = 3
    kernel_us: int = 200
    stalls: Literal["", "card", "call"] = ""

    @property
    def name(self) -> str:
        kernels = f", kernels {self.kernel_us} us" if self.kernel_us != 200 else ""
        stalls = f", {self.stalls} stalls 50 ms" if self.stalls else ""
        return (
            f"slice {self.slice_us} switch {self.switch_us} launch {self.launch_us:g}"
            f" us{kernels}{stalls}"
        )

    @property
    def floor_us(self) -> float:
        """What card_free is where the driver goes to online and back in the midst of what the
        window let through.

        It does so where its slice is no longer than what may be on the card: the window, the kernel
        that fills it, and what goes on to be launched until the gates have closed.
        """
        on_card = CardSettings("").window_us + self.kernel_us + CLOSES_US
        return self.slice_us + 2 * self.switch_us if self.slice_us <= on_card else 0.0

    @property
    def p99_beyond(self) -> bool:
        """Whether a request that finds offline on the card is late by more than p99 may be, by the
        driver alone.

        It is so by one change of context at least.
        """
        return 1 + self.switch_us / REQUEST_US > P99_RATIO

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the simulator."""
        words = (
            "--slice-us",
            self.slice_us,
            "--switch-us",
            self.switch_us,
            "--launch-us",
            self.launch_us,
        )
        return (*map(str, words), "--queue-depth", "1024")


CORNERS = tuple(Point(*values) for values in product(SLICES_US, SWITCHES_US, LAUNCHES_US))
POINTS = (
    *CORNERS,
    Point(),
    Point(kernel_us=20),
    Point(kernel_us=450, launch_us=6),
    Point(stalls="card"),
    Point(slice_us=5000, switch_us=500, launch_us=6, stalls="card"),
    Point(stalls="call"),
)
