"""`nodes[].links` of qgpu.yaml, Links= of gres.conf: direct connections between a node's cards.

Slurm takes each card's number from the place of the -1 in its list. So the lists stand in the order
of the card's files, one column per card in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SELF = -1
_NUMBER = re.compile(r"-1|[0-9]{1,3}")


def _example(cards: int) -> str:
    """Links of the first card to its neighbour."""
    return ",".join(str(n) for n in (SELF, 4, *[0] * (cards - 2))) if cards > 1 else str(SELF)


def check_links(links: Sequence[str], cards: int) -> None:
    """Check the lists of a node's cards. Raises ValueError with a sentence."""
    if len(links) != cards:
        raise ValueError(
            f"links has {len(links)} entries, but count is {cards}; write one per card"
        )
    for place, text in enumerate(links):
        numbers = text.split(",")
        if len(numbers) != cards or not all(_NUMBER.fullmatch(number) for number in numbers):
            raise ValueError(
                f"links has '{text[:80]}', which is not one number of links to each of the {cards}"
                f' card(s); write for example "{_example(cards)}" for the first card'
            )
        if [n for n, number in enumerate(numbers) if int(number) == SELF] != [place]:
            raise ValueError(
                f"links has '{text[:80]}' for card {place}: -1 stands for the card itself, so it is"
                f" written once, in place {place}, counted from 0"
            )
