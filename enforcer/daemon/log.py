"""One line per event: `event=grant job=4711 card=GPU-... share=30`. Under systemd with the
journal's priorities.
"""

from __future__ import annotations

import logging
import os
import sys

from gres.printable import printable

MAX_VALUE = 4096  # characters of one value: the journal splits a longer line
_PRIORITY = {
    logging.DEBUG: 7,
    logging.INFO: 6,
    logging.WARNING: 4,
    logging.ERROR: 3,
    logging.CRITICAL: 2,
}
log = logging.getLogger("qgpud")


def _word(value: object) -> str:
    """A value of key=value: quoted if it holds blanks, never more than one line."""
    text = printable(str(value), MAX_VALUE)
    if text and not any(char in text for char in ' "='):
        return text
    return '"' + text.replace('"', "'") + '"'


def line(event: str, **fields: object) -> str:
    """The text of one event; fields that are None are left out."""
    words = [f"{key}={_word(value)}" for key, value in fields.items() if value is not None]
    return " ".join([f"event={event}", *words])


def emit(level: int, event: str, **fields: object) -> None:
    """Write one event."""
    if log.isEnabledFor(level):
        log.log(level, "%s", line(event, **fields))


class _Formatter(logging.Formatter):
    def __init__(self, journal: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        if self._journal:  # the journal has its own clock and wants the priority in front
            return f"<{_PRIORITY.get(record.levelno, 6)}>{record.getMessage()}"
        return super().format(record)


def setup(level: str) -> None:
    """Log to stderr. `level` is one of debug, info, warning, error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("JOURNAL_STREAM" in os.environ))
    log.handlers[:] = [handler]
    log.setLevel(level.upper())
    log.propagate = False
