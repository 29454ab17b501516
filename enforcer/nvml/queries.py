"""Questions to NVML about several cards; some may fail without loss of the others' answers.

They run in NVML's thread. A card that fell off the bus is no failure. Failures of cards without a
grant are ignored, as is the work there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from enforcer.daemon.log import emit
from enforcer.nvml.port import CardLostError, CardUsage, Nvml, NvmlError
from enforcer.nvml.worker import NvmlStuckError

T = TypeVar("T")


@dataclass(frozen=True)
class UsageAnswer:
    """Usage of each card that answered, and errors of granted cards that did not."""

    usage: dict[str, CardUsage]
    failed: dict[str, NvmlError] = field(default_factory=dict)

    def with_busy(self, busy: Mapping[str, dict[int, int] | None]) -> UsageAnswer:
        """This second sample with the utilisation of the first."""
        usage = {uuid: replace(usage, busy=busy[uuid]) for uuid, usage in self.usage.items()}
        return replace(self, usage=usage)


@dataclass
class UsageQuestion:
    """Usage of these cards. Raises the first error if no card with a grant answers.

    The first error of a card not in `failing` is raised once too. NvmlCaller then opens the library
    anew and asks again, which helps if a handle precedes a reset of the card.
    """

    uuids: Collection[str]
    granted: Collection[str]
    busy: bool
    failing: Collection[str]
    _again: bool = False

    def __call__(self, nvml: Nvml) -> UsageAnswer:
        """Ask."""
        found = UsageAnswer({})
        for uuid in self.uuids:
            try:
                usage = of_card(
                    lambda card: nvml.usage(card, self.busy and card in self.granted), uuid
                )
            except NvmlError as error:
                self._note(found, uuid, error)
                continue
            if usage is not None:
                found.usage[uuid] = usage
        if found.failed and not any(uuid in found.usage for uuid in self.granted):
            raise next(iter(found.failed.values()))
        return found

    def _note(self, found: UsageAnswer, uuid: str, error: NvmlError) -> None:
        if isinstance(error, NvmlStuckError):
            raise error
        if uuid not in self.granted:
            return
        if not self._again and uuid not in self.failing:
            self._again = True
            raise error
        found.failed[uuid] = error


def pids_on(nvml: Nvml, uuids: Iterable[str]) -> dict[str, set[int]]:
    """The processes on each card that answers. Raises the last error where none does."""
    found: dict[str, set[int]] = {}
    failed: NvmlError | None = None
    for uuid in uuids:
        try:
            processes = of_card(nvml.processes, uuid)
        except NvmlStuckError:
            raise
        except NvmlError as error:
            failed = error
            continue
        found[uuid] = set() if processes is None else {process.pid for process in processes}
    if failed is not None and not found:
        raise failed
    return found


def of_card(ask: Callable[[str], T], uuid: str) -> T | None:
    """The answer; None for a lost card."""
    try:
        return ask(uuid)
    except CardLostError as error:
        emit(logging.DEBUG, "card-lost", card=uuid, why=error)
        return None
