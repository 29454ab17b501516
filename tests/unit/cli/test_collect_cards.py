"""`qgpu collect`: what whole cards did comes along and is counted once; a node speaks for itself
alone.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from test_collect_command import START, run
from test_collect_command import cluster as cluster

from enforcer.ledger.merge import CardBuckets, card_records, parse_line, put_card, records
from enforcer.ledger.read import card_series, node_configs, reading
from enforcer.ledger.schema import LedgerError
from enforcer.ledger.store import CardSample, Ledger

SECOND = 10**9


def cards_of(path: Path) -> list[tuple[str, int, int, float | None, int | None]]:
    with reading(path) as database:
        return [(p.node, p.at, p.step, p.util, p.mem_used) for p in card_series(database, 0, 2**40)]


def look(ledger: Ledger, node: str, *seconds: int, util: int = 40) -> None:
    for second in seconds:
        sample = CardSample(f"GPU-{node}-0000-0000-0000-000000000001", 0, util, second)
        ledger.record_cards(node, [sample], (START + second) * SECOND)


@pytest.mark.parametrize("way", ["file", "lines"])
def test_what_whole_cards_did_is_collected_too_and_grows(cluster, way):
    def collected() -> list[tuple[str, int, int, float | None, int | None]]:
        for node in ("n1", "n2"):
            path = cluster / node / "ledger.sqlite"
            if way == "lines":
                lines = [r.to_line() for r in (*records(path), *card_records(path))]
                (cluster / f"{node}.jsonl").write_text("".join(f"{line}\n" for line in lines))
                path.rename(path.with_name("away"))
        assert run(cluster, "--from", str(cluster)).exit_code == 0
        for node in ("n1", "n2"):
            if way == "lines":
                (cluster / node / "away").rename(cluster / node / "ledger.sqlite")
        return cards_of(cluster / "all.sqlite")

    for node in ("n1", "n2"):
        ledger = Ledger(cluster / node / "ledger.sqlite")
        look(ledger, node, 0, 4, 10)
        ledger.close()
    first = collected()
    assert first == [
        (n, START + at, 10, 40.0, mem) for at, mem in ((0, 4), (10, 10)) for n in ("n1", "n2")
    ]
    assert collected() == first, "the same twice changes nothing"
    ledger = Ledger(cluster / "n1" / "ledger.sqlite")
    look(ledger, "n1", 12, 20, util=80)
    ledger.close()
    assert [p for p in collected() if p[0] == "n1"] == [
        ("n1", START, 10, 40.0, 4),
        ("n1", START + 10, 10, 60.0, 12),
        ("n1", START + 20, 10, 80.0, 20),
    ]


def test_coarse_buckets_take_the_place_of_fine_ones_and_time_is_counted_once(tmp_path):
    ledger = Ledger(tmp_path / "all.sqlite")
    fine = ((10, START, 0, 2, 80, 5), (10, START + 10, 0, 2, 80, 7), (10, START + 300, 0, 1, 9, 1))
    put_card(ledger, CardBuckets("GPU-1", "n1", fine))
    put_card(ledger, CardBuckets("GPU-1", "n1", ((300, START, 0, 4, 160, 7),)))
    put_card(ledger, CardBuckets("GPU-1", "n1", fine))
    assert cards_of(ledger.path) == [("n1", START, 300, 40.0, 7), ("n1", START + 300, 10, 9.0, 1)]
    put_card(ledger, CardBuckets("GPU-1", "n1", ((300, START, 0, 3, 3, 3),)))
    assert cards_of(ledger.path)[0] == ("n1", START, 300, 40.0, 7), "an older copy undoes nothing"
    ledger.close()


def test_node_speaks_for_itself_alone_over_ssh(cluster):
    other = next(records(cluster / "n2" / "ledger.sqlite")).to_line()
    for line in (other, CardBuckets("GPU-1", "n2", ()).to_line()):
        script = cluster / "ssh"
        script.write_text(f"#!/bin/sh\nif [ $1 = n1 ]; then cat <<'E'\n{line}\nE\nfi\n")
        script.chmod(0o755)
        done = run(cluster, "--ssh", str(script))
        assert done.exit_code == 1 and "n1: it sent a row of node 'n2'" in done.output


def test_texts_hold_nothing_that_a_terminal_obeys(cluster):
    bad = json.loads(next(records(cluster / "n1" / "ledger.sqlite")).to_line())
    bad["usage"]["uuid"] = "GPU\x1b]0;owned\x07"
    with pytest.raises(LedgerError, match="uuid is"):
        parse_line(json.dumps(bad))


def test_a_line_without_end_is_not_read_into_memory(cluster):
    script = cluster / "ssh"
    script.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    script.chmod(0o755)
    began = time.monotonic()
    done = run(cluster, "--ssh", str(script), "--timeout", "60")
    assert done.exit_code == 1 and "this is no record of a ledger" in done.output
    assert time.monotonic() - began < 30


def test_each_node_tells_which_qgpu_yaml_it_has(cluster):
    """A collector keeps the last that it heard; an older one passes over the key, and an older
    node tells none.
    """
    for node, digest in (("n1", "a" * 64), ("n2", "b" * 64), ("n1", "c" * 64)):
        line = CardBuckets(f"GPU-{node}", node, ((10, START, 0, 1, 40, 5),), digest).to_line()
        (cluster / f"{node}.jsonl").write_text(f"{line}\n")
        for name in ("n1", "n2"):
            (cluster / name / "ledger.sqlite").unlink(missing_ok=True)
        assert run(cluster, "--from", str(cluster)).exit_code == 0
    with reading(cluster / "all.sqlite") as database:
        told = {node: digest for node, (digest, _) in node_configs(database).items()}
    assert told == {"n1": "c" * 64, "n2": "b" * 64}
    old = json.loads(line)
    del old["card"]["config"]
    assert parse_line(json.dumps(old)).config == ""


@pytest.mark.parametrize("digest", ["A" * 64, "a" * 63, "\x1b", 7, None, ["a" * 64]])
def test_a_digest_that_is_none_is_refused(digest):
    line = json.loads(CardBuckets("GPU-1", "n1", ()).to_line())
    line["card"]["config"] = digest
    with pytest.raises(LedgerError, match="config is"):
        parse_line(json.dumps(line))
