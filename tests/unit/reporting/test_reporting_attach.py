"""A fake node under its observer: grants, counters and cards become state.json, series and
mapping files.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from enforcer.clock import FakeClock
from enforcer.ledger.read import card_series, read_usage, reading
from enforcer.nvml.port import CardLoad, NvmlError
from enforcer.reporting import state as live
from enforcer.reporting.attach import NodeObserver
from enforcer.reporting.state import NodeState
from enforcer.reporting.viewclient import ask
from gres.units import Duration
from simulator.fakes import GIB, FakeNode

COMMENT = "qgpu/1 class=online share=30 mem=12288"


def env(job: int, comment: str = COMMENT, gpus: str = "0") -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_GID": "100",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_COMMENT": comment,
        "SLURM_JOB_GPUS": gpus,
    }


class Watched:
    """The fake node with its observer, a tick at a time."""

    def __init__(self, directory: Path, reports: str = "{}") -> None:
        from gres.config.site import parse_config
        from simulator import fakes

        self.node = FakeNode(directory)
        text = fakes.CONFIG.format(directory=directory, deadline="10s") + f"reports: {reports}\n"
        self.node.config = parse_config(text)
        self.service = self.node.service()
        self.service.start()
        self.clock = self.node.clock
        assert isinstance(self.clock, FakeClock)
        self.observer = NodeObserver.of(self.service, self.clock)
        self.observer.start()
        self.run_dir = directory / "run"
        self.uuids = [card.uuid for card in self.node.nvml.cards()]

    def tick(self) -> NodeState:
        self.clock.advance(1)
        self.observer.tick()
        return live.read(self.run_dir / "state.json")


@pytest.fixture
def watched(tmp_path: Path):
    found = Watched(tmp_path)
    yield found
    found.observer.close()
    found.node.close()


def test_state_follows_grants_counters_and_the_driver(watched):
    watched.service.prolog(env(9))
    watched.service.prolog(env(3, "qgpu/1 whole", "1"))
    watched.node.nvml.loads[watched.uuids[0]] = CardLoad(42, 5 * GIB)
    watched.node.arbiter.count(9, watched.uuids[0], busy_ns=0, mem_used=GIB)
    watched.tick()
    watched.node.arbiter.count(9, watched.uuids[0], busy_ns=250_000_000, mem_used=2 * GIB)
    state = watched.tick()
    first, second = state.cards
    assert (first.index, first.util, first.mem_used, first.driver_index) == (0, 42, 5 * GIB, 0)
    (tenant,) = first.tenants
    assert (tenant.job_id, tenant.share_now, tenant.mem_used, tenant.mem_cap) == (
        9,
        25.0,
        2 * GIB,
        12 * GIB,
    )
    assert second.util is None and second.tenants[0].state == "whole"
    watched.service.epilog(env(9))
    assert watched.tick().cards[0].tenants == ()


def test_each_tick_reaches_the_ledger(watched):
    watched.service.prolog(env(9))
    watched.node.nvml.loads[watched.uuids[0]] = CardLoad(42, 5 * GIB)
    watched.node.arbiter.count(9, watched.uuids[0], busy_ns=77)
    watched.tick()
    assert read_usage(watched.service.ledger.path, [9])[0].busy_ns == 77
    with reading(watched.service.ledger.path) as database:
        found = {p.uuid: (p.util, p.card_index) for p in card_series(database, 0, 2**40)}
    assert found == {watched.uuids[0]: (42.0, 0), watched.uuids[1]: (None, 1)}


def write_ledger_each(watched: Watched, seconds: int) -> None:
    config = watched.service.config
    enforcer = config.enforcer.model_copy(update={"ledger_interval": Duration(seconds * 10**9)})
    watched.service.config = config.model_copy(update={"enforcer": enforcer})


def test_samples_are_rare_while_the_state_is_not_watched(watched):
    def looked() -> float:
        watched.tick()
        state = watched.observer.observer.state
        assert state is not None
        return state.at

    looks = [looked() for _ in range(10)]  # the fake node writes its ledger each 100 ms
    assert len(set(looks)) == 10
    write_ledger_each(watched, 4)
    assert 2 <= len({looked() for _ in range(10)}) <= 3
    ask(watched.run_dir / "view.sock", {"ask": "state"})
    assert len({watched.tick().at for _ in range(8)}) == 8, (
        "each second for ten seconds after a question"
    )


def test_a_sample_shows_the_ledgers_counters_and_reads_no_others(watched):
    """With looks a second beside the ledger's samples, the arbiter would be asked twice as
    often.
    """
    asked = []
    write_ledger_each(watched, 2)
    for second in range(12):
        watched.clock.advance(1)
        if second % 2:
            watched.service.poll_arbiter()
        watched.observer.tick()
        asked.append(watched.node.arbiter.calls.count("stats"))
    assert asked[-1] - asked[1] == 5, "once each 2 s, whichever came first"


def test_list_of_cards_is_asked_for_once_a_minute(watched):
    calls = []
    watched.node.nvml.before = lambda: calls.append(1)
    for _ in range(30):
        watched.tick()
    assert len(calls) <= 2 * 30 + 2


def test_driver_that_fails_leaves_the_cards_without_figures(watched):
    watched.service.prolog(env(9))
    watched.node.nvml.loads[watched.uuids[0]] = CardLoad(42, 5 * GIB)
    watched.tick()
    watched.node.nvml.failure = "the driver is gone"
    card = watched.tick().cards[0]
    assert (card.util, card.mem_used, len(card.tenants)) == (None, None, 1)
    watched.node.nvml.failure = None
    assert watched.tick().cards[0].util == 42


def test_card_that_fails_takes_nothing_from_the_others(watched, monkeypatch):
    nvml, ill, well = watched.node.nvml, watched.uuids[0], watched.uuids[1]
    load = nvml.load
    watched.tick()
    nvml.loads[well] = CardLoad(42, 5 * GIB)

    def failing(uuid):
        if uuid == ill:
            raise NvmlError("the NVIDIA driver does not answer through NVML: GPU requires reset")
        return load(uuid)

    def no_list():
        raise NvmlError("the NVIDIA driver does not answer through NVML: GPU requires reset")

    monkeypatch.setattr(nvml, "load", failing)
    monkeypatch.setattr(nvml, "cards", no_list)
    for _ in range(3):
        assert [card.util for card in watched.tick().cards][:2] == [None, 42]


def test_arbiter_that_is_away_is_said(watched):
    watched.service.prolog(env(9))
    assert watched.tick().arbiter is True
    watched.node.arbiter.running = False
    state = watched.tick()
    assert state.arbiter is False and state.cards[0].tenants[0].state == "unknown"


def test_private_jobs_are_in_a_file_for_root_alone(tmp_path):
    watched = Watched(tmp_path, "{private_data: [jobs]}")
    watched.tick()
    assert (watched.run_dir / "state.json").stat().st_mode & 0o777 == 0o600
    watched.observer.close()
    other = Watched(tmp_path)
    other.tick()
    assert (other.run_dir / "state.json").stat().st_mode & 0o777 == 0o644
    other.observer.close()


def test_mapping_files_and_textfile_are_kept(tmp_path):
    watched = Watched(
        tmp_path, f"{{metrics: {{hpc_mapping: {tmp_path}/map, textfile: {tmp_path}/q.prom}}}}"
    )
    watched.service.prolog(env(9))
    watched.tick()
    assert (tmp_path / "map/0").read_text() == "9\n" and (tmp_path / "map/1").read_text() == ""
    assert 'qgpu_granted_ratio{card="0",class="online"' in (tmp_path / "q.prom").read_text()
    watched.observer.close()


def test_what_cannot_be_written_is_said_once_and_stops_nothing(watched, caplog):
    logging.getLogger("qgpud").propagate = True
    watched.run_dir.joinpath("state.json").mkdir()
    for _ in range(3):
        watched.clock.advance(1)
        watched.observer.tick()
    assert len([r for r in caplog.records if "report-failed" in r.getMessage()]) == 1
    assert watched.observer.observer.state is not None


def test_unknown_admin_is_said(tmp_path, caplog):
    logging.getLogger("qgpud").propagate = True
    Watched(tmp_path, "{admins: [no-such-user-here]}").observer.close()
    assert any("unknown-admin" in r.getMessage() for r in caplog.records)


def test_housekeeping_runs(watched, monkeypatch):
    from enforcer.reporting import observer

    calls: list[int] = []
    monkeypatch.setattr(observer, "prune", lambda *_: calls.append(1) or len(calls) < 3)
    for _ in range(10):
        watched.tick()
    assert len(calls) == 3, "a little each second while there is more, then every 30 s"
