"""How a program of this folder answers: for each word of standard input one line of JSON. A word is
the name of a step; `train 200` is the step with a number.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def answer(*steps: Callable[..., dict[str, Any]]) -> None:
    """Until standard input ends."""
    by_name = {step.__name__: step for step in steps}
    for line in sys.stdin:
        word, *more = line.split()
        print(json.dumps(by_name[word](*map(int, more))), flush=True)
