"""The patterns of online's load that the promises are about, as options of the workload.

Requests of 50 dependent kernels of 100 µs: at random times (Poisson), or one after the other for a
part of each period.
"""

from __future__ import annotations

from typing import Any

REQUEST: dict[str, Any] = {"kernel_us": 100, "per_request": 50}
RATES, DUTIES = (5, 20, 100), (10, 50)
PATTERNS: dict[str, tuple[str, ...]] = {
    f"Poisson {rate}/s": ("--poisson", str(rate)) for rate in RATES
} | {f"{duty} % of 1 s": ("--period", "1", "--duty", str(duty)) for duty in DUTIES}
