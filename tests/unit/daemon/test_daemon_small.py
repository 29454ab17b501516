"""The daemon's small parts: where the driver is, lines of the log, readiness."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from enforcer.daemon.arbiter.client import card_settings
from enforcer.daemon.audit.confirmation import SAMPLES_NEEDED, Confirmation
from enforcer.daemon.audit.findings import Finding
from enforcer.daemon.audit.procs import boot_time_ns
from enforcer.daemon.granting import driver
from enforcer.daemon.granting.driver import BrokenNodeError, find_driver
from enforcer.daemon.log import _Formatter, line
from enforcer.daemon.notify import notify
from gres.config.levels import plan_card
from gres.config.site import parse_config

CONFIG = """
version: 1
cluster: c
default_class: offline
models: {h200: {memory: 80GiB}}
nodes: [{names: n1, model: h200, count: 1, files: /dev/nvidia0}]
"""


def test_boot_time(tmp_path):
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1700000000\nprocesses 5\n")
    assert boot_time_ns(tmp_path) == 1_700_000_000 * 10**9
    assert boot_time_ns(tmp_path / "none") is None


def test_driver_is_the_first_found_and_never_the_shim(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    shim = tmp_path / "shim.so"
    shim.touch()
    (tmp_path / "a/libcuda.so.1").symlink_to(shim)
    (tmp_path / "c/libcuda.so.1").touch()
    search = [str(tmp_path / name) for name in ("a", "b", "c")]
    assert find_driver("auto", str(shim), search) == str(tmp_path / "c/libcuda.so.1")
    with pytest.raises(BrokenNodeError, match="was not found"):
        find_driver("auto", str(shim), search[:2])


def test_configured_driver_must_exist(tmp_path):
    with pytest.raises(BrokenNodeError, match=r"driver\.libcuda"):
        find_driver(str(tmp_path / "libcuda.so.1"), "/s")
    (tmp_path / "libcuda.so.1").touch()
    assert find_driver(str(tmp_path / "libcuda.so.1"), "/s") == str(tmp_path / "libcuda.so.1")


def test_driver_is_found_where_the_loader_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.platform, "machine", lambda: "x86_64")
    listing = (
        "3 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6,x86-64, OS ABI: Linux 4.4.0) => /opt/nvidia/lib/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6) => /opt/nvidia/lib32/libcuda.so.1\n"
        "\tlibcuda.so (libc6,x86-64) => /opt/other/libcuda.so\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/qgpu/sim/libcuda.so.1\n"
    )
    assert driver.cached(listing) == ["/opt/nvidia/lib", "/usr/lib/qgpu/sim"]
    assert driver.cached("") == []


def loader(tmp_path: Path, text: str) -> driver.LoaderCache:
    """A loader's cache, and a program that notes each run and prints `text`."""
    (tmp_path / "cache").write_text("1")
    program = tmp_path / "ldconfig"
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\n{text}\n")
    program.chmod(0o755)
    return driver.LoaderCache(str(tmp_path / "cache"), str(program))


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


def test_the_loader_is_asked_again_only_when_its_cache_changed(tmp_path: Path) -> None:
    cache = loader(tmp_path, f"cat {tmp_path}/cache")
    assert [cache.listing() for _ in range(3)] == ["1"] * 3
    assert runs(tmp_path) == 1
    (tmp_path / "new").write_text("2")
    (tmp_path / "new").rename(tmp_path / "cache")
    assert [cache.listing() for _ in range(3)] == ["2"] * 3
    assert runs(tmp_path) == 2
    (tmp_path / "cache").unlink()
    assert cache.listing() == ""
    assert runs(tmp_path) == 2


def test_a_loader_that_fails_leaves_the_last_listing_and_is_asked_again(tmp_path: Path) -> None:
    cache = loader(tmp_path, f"test -e {tmp_path}/fails && exit 1; cat {tmp_path}/cache")
    assert cache.listing() == "1"
    (tmp_path / "fails").touch()
    (tmp_path / "cache").write_text("22")
    assert [cache.listing(), cache.listing()] == ["1", "1"]
    assert runs(tmp_path) == 3
    (tmp_path / "fails").unlink()
    assert cache.listing() == "22"


def test_a_loader_that_hangs_ends_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "RUN_S", 0.05)
    assert loader(tmp_path, "exec sleep 600").listing() == ""


def test_relative_entries_of_the_search_path_are_not_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f".::{tmp_path}")
    assert find_driver("auto", "/s") == str(tmp_path / "libcuda.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", ".:")
    try:
        found = find_driver("auto", "/s")
    except BrokenNodeError:
        return
    assert found.startswith("/usr") or found.startswith("/run")


def test_line_is_one_line_of_words_and_quotes():
    assert (
        line("x", job=7, why='a "b"\nc', none=None, empty="")
        == 'event=x job=7 why="a \'b\'\\x0ac" empty=""'
    )


def test_journal_gets_priorities_and_no_clock():
    record = logging.LogRecord("qgpud", logging.WARNING, "f", 1, "event=x", None, None)
    assert _Formatter(journal=True).format(record) == "<4>event=x"
    assert "WARNING event=x" in _Formatter(journal=False).format(record)


def test_notify_reaches_systemd_and_is_silent_without(tmp_path, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify("READY=1")
        assert systemd.recv(100) == b"READY=1"


@pytest.mark.parametrize("kind", sorted(SAMPLES_NEEDED))
def test_finding_counts_after_some_samples_and_again_after_it_was_gone(kind):
    looks = SAMPLES_NEEDED[kind]
    finding = Finding(kind, "GPU-1", 5, figures={"mem": 1})
    again = Finding(kind, "GPU-1", 5, figures={"mem": 2})  # other figures are the same finding
    patience = Confirmation()
    due = [patience.due([finding if look % 2 else again]) for look in range(looks + 3)]
    assert due == [[]] * (looks - 1) + [[finding]] * 4 and not patience.pending
    patience.due([])
    assert [patience.due([finding]) for _ in range(looks)] == [[]] * (looks - 1) + [[finding]]


def test_patience_begins_anew_after_a_finding_was_acted_upon():
    finding, patience = Finding("over", "GPU-1", 5), Confirmation()
    assert [patience.due([finding]) for _ in range(2)] == [[], [finding]]
    patience.again(finding)
    assert patience.pending
    assert [patience.due([finding]) for _ in range(2)] == [[], [finding]]


def _unregistered(pid: int, job: int = 5) -> Finding:
    return Finding("unregistered", "GPU-1", job, pid, (pid,))


@pytest.mark.parametrize("pause", [0, 1, 2])
def test_changing_ones_processes_wins_no_patience(pause):
    """Two looks for each process, then another one, with a pause of some looks in between."""
    patience = Confirmation()
    said = []
    for pid in range(100, 150):
        for found in ([_unregistered(pid)] * 2, [None] * pause):
            said += [patience.due([f] if f else []) for f in found]
    told = list(dict.fromkeys(finding for look in said for finding in look))
    assert told and told[0].pid < 150 - 20
    assert [f.pid for f in told] == list(range(told[0].pid, 150)), "from then on each one"
    other = _unregistered(7, job=6)
    assert patience.due([other]) == [] and patience.due([other]) == [], (
        "another job has its own patience"
    )


def test_memory_dropped_before_each_second_sample_wins_no_patience() -> None:
    """Above the cap for one sample, below it for the next one or two."""
    for pause in (1, 2):
        over, patience, said = Finding("over", "GPU-1", 5), Confirmation(), []
        for _ in range(60):
            said.append(patience.due([over]))
            for _ in range(pause):
                assert patience.due([]) == []
        first = said.index([over])
        assert first < 50 and said[first:] == [[over]] * (60 - first)
        assert patience.due([_unregistered(7)]) == [], "of other kinds nothing is suspected"
        patience.again(over)
        assert patience.due([over]) == [], "those that come next did nothing"


def test_samples_right_after_another_count_once() -> None:
    """A process needs a moment to register, and samples come at random."""
    finding, patience = _unregistered(7), Confirmation(apart_ns=500)
    said = [patience.due([finding], now_ns=now) for now in (0, 20, 400, 499, 500, 700, 999, 1000)]
    assert said == [[]] * 7 + [[finding]]
    assert patience.due([], now_ns=1100) == [] and patience.due([finding], now_ns=2000) == []


def test_next_job_with_the_number_has_its_own_patience():
    patience = Confirmation()
    for pid in range(100, 150):
        patience.due([_unregistered(pid)])
    patience.ended(5)
    assert not patience.pending and patience.due([_unregistered(150)]) == []
    patience.due([_unregistered(150)])
    patience.ended(6)
    assert patience.due([_unregistered(150)]), "of other jobs nothing is forgotten"


def test_now_and_then_a_process_that_is_just_starting_is_no_suspicion():
    patience = Confirmation()
    for pid in range(1000):
        assert patience.due([_unregistered(pid)]) == []
        for _ in range(4):
            assert patience.due([]) == []


@pytest.mark.parametrize(
    ("more", "together"),
    [
        ("", True),
        ("classes: {online: {reserves: [memory], isolation: none}}", True),
        ("cards: [{nodes: n1, isolation: none}]", True),
        ("enforcer: {isolation: none, suspend_together: false}", False),
    ],
)
def test_card_is_sent_to_the_arbiter_as_configured(more, together):
    config = parse_config(CONFIG + more)
    told = card_settings(config, "GPU-1", plan_card(config, config.node("n1"), 0, "GPU-1"))
    assert (told.governed, told.together) == (True, together), "isolation is the grant's"
    assert (told.window_us, told.slice_us, told.idle_release_ms) == (275, 2000, 100)


@pytest.mark.parametrize(
    ("release", "told_ms", "delay_us", "share"),
    [("auto", 100, 1500, 5), ("20ms", 20, 0, 0), ("100ms", 100, 0, 0)],
)
def test_auto_is_sent_to_the_arbiter_as_100_ms_and_the_delay(release, told_ms, delay_us, share):
    more = f"idle_release: {release}, online_delay: 1500us, online_share: 5%"
    config = parse_config(CONFIG + f"enforcer: {{{more}}}")
    told = card_settings(config, "GPU-1", plan_card(config, config.node("n1"), 0, "GPU-1"))
    assert (told.idle_release_ms, told.online_delay_us) == (told_ms, delay_us)
    assert told.online_share == share
