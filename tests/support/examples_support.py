"""How many examples hypothesis tries: a fourth in `make test`, all with HYPOTHESIS_PROFILE=deep."""

from __future__ import annotations

import os

from hypothesis import settings

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
LEAST = 10


def examples(deep: int) -> settings:
    """The settings of a test that tries this number of examples when it is asked for all."""
    return settings(max_examples=deep if DEEP else max(LEAST, deep // 4))
