"""A grant that no task fetched: log, ledger and report at its end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from daemon_support import hook_env as env

from enforcer.daemon.granting import ending, grantdir
from enforcer.ledger.store import read_usage
from gres.grant.store import GrantStore

GIB = 1 << 30


@pytest.fixture
def said(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("qgpud"), "propagate", True)
    caplog.set_level(logging.INFO, "qgpud")
    return lambda: [
        record for record in caplog.records if "event=grant-unfetched" in record.getMessage()
    ]


def row(node, job=9):
    return read_usage(node.directory / "state/ledger.sqlite", [job])[0]


def mark(node, job=9):
    return node.directory / f"run/grants/{job}.fetched"


def test_taken_is_booked_and_the_mark_goes(node, service, said):
    service.prolog(env())
    mark(node).touch()
    service.epilog(env())
    assert row(node).fetched == 1 and said() == [] and not mark(node).exists()


def test_not_taken_is_said_once_and_is_no_warning_where_nothing_ran(node, service, said):
    service.prolog(env())
    assert row(node).fetched is None, "it stands"
    service.epilog(env())
    (record,) = said()
    assert (
        record.levelno == logging.INFO
        and "job=9" in record.getMessage()
        and "seen=no" in record.getMessage()
    )
    assert row(node).fetched == 0
    service.epilog(env())
    assert len(said()) == 1


def test_not_taken_though_the_driver_saw_the_job_is_a_warning(node, service, said):
    service.prolog(env())
    service.ledger.record_memory(9, node.nvml.cards()[0].uuid, GIB)
    service.epilog(env())
    (record,) = said()
    assert record.levelno == logging.WARNING and "without limits" in record.getMessage()


def test_the_marker_of_an_epilog_counts_like_the_epilog(node, service, said):
    service.prolog(env())
    (node.directory / "run/grants/9.ended").touch()
    service.take_markers()
    assert len(said()) == 1 and row(node).fetched == 0


@pytest.mark.parametrize(("tag", "gpus"), [("qgpu/1 whole", "1"), ("", "0")])
def test_whole_cards_and_refusals_have_nothing_to_take(node, service, said, tag, gpus):
    service.prolog(env(9, tag, gpus))
    service.epilog(env())
    assert said() == []


@pytest.mark.parametrize("reason", ["failed", "replaced", "boot"])
def test_an_end_that_slurm_did_not_tell_means_nothing(node, service, said, reason):
    service.prolog(env())
    service.end(9, reason)
    assert said() == [] and row(node).fetched is None


def test_the_mark_of_a_run_before_a_requeue_does_not_count(node, service, said):
    service.prolog(env())
    service.epilog(env())
    mark(node).touch()  # by a task that was starting when the job ended
    service.prolog(env())
    service.epilog(env())
    assert len(said()) == 2


def test_a_directory_that_cannot_be_trusted_is_not_known(node, service, said):
    service.prolog(env())
    directory = node.directory / "run/grants"
    directory.chmod(0o777)
    assert ending.fetched(service.store, service.grants[9], "epilog") is None
    directory.chmod(0o755)


def test_old_proofs_of_the_plugin_are_swept(tmp_path: Path):
    store = GrantStore(tmp_path / "grants")
    proofs = tmp_path / grantdir.PROOFS
    proofs.mkdir()
    (proofs / "1").touch()
    old = (proofs / "1").stat().st_mtime
    grantdir.sweep_proofs(store.directory.parent, old)
    assert (proofs / "1").exists()
    grantdir.sweep_proofs(store.directory.parent, old + 1)
    assert list(proofs.iterdir()) == []
