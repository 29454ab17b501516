"""What `qgpu job move` says at the end of a move."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cli.live import job


class Daemon:
    """qgpud, to which an order was given, and where it says that the job is."""

    def __init__(self, *places: tuple[int, str, bool]) -> None:
        self.places = list(places)

    def ask(self, **question: object) -> dict[str, object]:
        if question["op"] == "job-move":
            return {"there": False, "card": 1}
        card, state, wanted = self.places.pop(0)
        return {"card": card, "state": state, "wanted": wanted}


@pytest.mark.parametrize(
    ("place", "status", "said"),
    [
        ((1, "resident"), 0, "job 7 is on card 1\n"),
        ((1, "checkpointed"), 0, "job 7 is on card 1; its memory is away until there is room"),
        ((0, "resident"), 1, "job 7 is on card 0: it could not be moved to card 1"),
        ((1, "unable"), 1, "job 7 cannot be moved, and it is ended"),
    ],
)
def test_the_end_of_a_move(
    monkeypatch: pytest.MonkeyPatch, place: tuple[int, str], status: int, said: str
) -> None:
    daemon = Daemon((0, "leaving", True), (*place, False))
    monkeypatch.setattr(job, "find_daemon", lambda *_: daemon)
    monkeypatch.setattr(job, "POLL_S", 0)
    done = CliRunner().invoke(job.job, ["move", "7", "--card", "1"])
    assert done.exit_code == status and said in done.output
    assert not daemon.places
