"""`qgpu collect`: merge the nodes' ledgers into one, from a directory or over ssh; a summary for
Slurm if wanted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import click

from cli.output import fail, say
from cli.report.command import DEFAULT_CONFIG
from enforcer.ledger.merge import (
    MAX_LINE,
    OVERLAP_NS,
    CardBuckets,
    Merged,
    Record,
    card_records,
    merge,
    parse_line,
    read_lines,
    records,
)
from enforcer.ledger.prune import Limits, prune
from enforcer.ledger.schema import FILE_NAME, LedgerError
from enforcer.ledger.store import Ledger
from gres.config.site import Config, ConfigError, digest_of, load_config
from slurm_plugin.accounting import summary
from slurm_plugin.records import SlurmError

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
REMOTE = "qgpu collect --send"


@dataclass(frozen=True)
class Source:
    """One node's records: a file here, or a command whose output they are."""

    name: str
    path: Path | None = None
    command: tuple[str, ...] = ()

    def records(self, after_ns: int, timeout_s: float) -> Iterator[Record | CardBuckets]:
        """Raises LedgerError with a sentence."""
        if self.path is not None and self.path.suffix == ".jsonl":
            return read_lines(self.path)
        if self.path is not None:
            return chain(records(self.path, after_ns), card_records(self.path, after_ns))
        return self._remote([*self.command, "--after", str(after_ns)], timeout_s)

    def _remote(self, command: Sequence[str], timeout_s: float) -> Iterator[Record | CardBuckets]:
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
            killer = threading.Timer(timeout_s, process.kill)
            killer.daemon = True
            killer.start()
            try:
                assert process.stdout is not None
                while line := process.stdout.readline(MAX_LINE + 1):
                    yield self._own(parse_line(line))
                if process.wait() != 0:
                    errors.seek(0)
                    words = " ".join(errors.read(2000).decode(errors="replace").split())
                    raise LedgerError(
                        f"{command[0]} ended with status {process.returncode}: {words}"
                    )
            finally:
                killer.cancel()
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    def _own(self, record: Record | CardBuckets) -> Record | CardBuckets:
        """Reject records about other nodes: a compromised node must not report for others."""
        node = record.usage.node if isinstance(record, Record) else record.node
        if node != self.name:
            raise LedgerError(f"it sent a row of node {node!r:.60}")
        return record


def sources(config: Config, directory: str | None, ssh: str | None, remote: str) -> list[Source]:
    """Where the nodes' records are: DIR/NODE.sqlite, DIR/NODE/ledger.sqlite or DIR/NODE.jsonl; ssh;
    or this machine.
    """
    names = config.node_names()
    if ssh is not None:
        return [Source(name, command=(*shlex.split(ssh), name, remote)) for name in names]
    found = []
    for name in names:
        if directory is None:
            candidates = [Path(config.node(name).state_dir) / FILE_NAME]
        else:
            base = Path(directory)
            candidates = [base / f"{name}.sqlite", base / name / FILE_NAME, base / f"{name}.jsonl"]
        found += [Source(name, path) for path in candidates if path.exists()][:1]
    return found


def send(config: Config, node: str, after_ns: int, digest: str = "") -> None:
    """Print this node's records, with the digest of its qgpu.yaml; the other end merges them."""
    path = Path(config.node(node).state_dir) / FILE_NAME
    cards = (replace(card, config=digest) for card in card_records(path, after_ns))
    lines: Iterator[Record | CardBuckets] = chain(records(path, after_ns), cards)
    for record in lines:
        click.echo(record.to_line())


def cursor(ledger: Ledger, node: str) -> int:
    """From when on grants of a node may be new to us (ns): the last end that we know, less an
    overlap.
    """
    row = ledger.db.execute("SELECT max(ended_at) FROM usage WHERE node = ?", (node,)).fetchone()
    standing = ledger.db.execute(
        "SELECT min(granted_at) FROM usage WHERE node = ? AND ended_at IS NULL", (node,)
    ).fetchone()
    known = [value for value in (row[0], standing[0]) if value is not None]
    return max(0, min(known) - OVERLAP_NS) if row[0] is not None else 0


def collect_all(
    ledger: Ledger, found: Sequence[Source], pause_s: float, timeout_s: float, oldest_ns: int
) -> list[str]:
    """Merge every source; a sentence for each that failed. One that fails does not stop the others.

    What ended before `oldest_ns` would be forgotten again at once.
    """
    problems = []
    for source in found:
        done = Merged()
        try:
            after = max(cursor(ledger, source.name), oldest_ns)
            for step in merge(ledger, _recent(source.records(after, timeout_s), oldest_ns)):
                done = step
                time.sleep(pause_s)
        except (LedgerError, OSError) as error:
            problems.append(f"{source.name}: {error}")
        click.echo(f"{source.name}: {done.new} new, {done.changed} changed, {done.same} as before")
    return problems


def _recent(
    found: Iterable[Record | CardBuckets], oldest_ns: int
) -> Iterator[Record | CardBuckets]:
    for record in found:
        if isinstance(record, CardBuckets):
            yield replace(
                record, buckets=tuple(b for b in record.buckets if (b[1] or 0) * 10**9 > oldest_ns)
            )
        elif record.usage.ended_at is None or record.usage.ended_at > oldest_ns:
            yield record


def totals_since(ledger: Ledger, since_ns: int) -> dict[int, summary.Totals]:
    """Measured jobs whose last grant ended since then, on all cards together."""
    rows = ledger.db.execute(
        "SELECT job_id, sum(busy_ns), sum(closed_preempted_ns), max(coalesce(mem_peak, 0)),"
        " sum(denied) FROM usage WHERE job_id < 4294967296 GROUP BY job_id HAVING min(ended_at IS"
        " NOT NULL) AND max(ended_at) > ? AND min(busy_ns IS NOT NULL)",
        (since_ns,),
    )
    return {
        job: summary.Totals(busy / 1e9, (closed or 0) / 1e9, peak, denied or 0)
        for job, busy, closed, peak, denied in rows
    }


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """One collection at a time; a second one ends at once."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fail("collect", "another collection is running")
        yield
    finally:
        os.close(fd)


def housekeep(ledger: Ledger, config: Config) -> None:
    """The collected ledger has the same retention; its bound is per node."""
    limits = Limits(
        config.ledger.retention.seconds, (config.ledger.max_size << 20) * len(config.node_names())
    )
    while prune(ledger, limits, time.time_ns()):
        pass


@click.command()
@click.option(
    "--config", envvar="QGPU_CONFIG", default=DEFAULT_CONFIG, show_default=True, help="qgpu.yaml."
)
@click.option("--into", help="The collected ledger. Default: reports.collected of qgpu.yaml.")
@click.option(
    "--from", "directory", help="Directory of NODE.sqlite, NODE/ledger.sqlite or NODE.jsonl."
)
@click.option(
    "--ssh", is_flag=False, flag_value=SSH, help=f"Ask each node with this command. Default: {SSH}"
)
@click.option("--remote", default=REMOTE, show_default=True, help="What to run there.")
@click.option(
    "--pause",
    type=click.FloatRange(0, 60),
    default=0.05,
    show_default=True,
    help="Seconds per batch.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1, 3600),
    default=120,
    show_default=True,
    help="Seconds per node.",
)
@click.option("--send", "sending", is_flag=True, help="Print this node's records instead.")
@click.option("--node", help="With --send: this node instead of the one we are on.")
@click.option(
    "--after", type=int, default=0, help="With --send: grants that ended after this (ns)."
)
def collect(
    config: str,
    into: str | None,
    directory: str | None,
    ssh: str | None,
    remote: str,
    pause: float,
    timeout: float,
    sending: bool,
    node: str | None,
    after: int,
) -> None:
    """Merge the usage ledgers of all nodes into one file, for `qgpu report` on any machine."""
    try:
        loaded = load_config(config, trusted=True)
        if sending:
            from cli.daemon import configured_node

            send(loaded, configured_node(node, loaded), after, digest_of(config))
            return
        target = into or loaded.reports.collected
        if target is None:
            fail("collect", "name a file with --into, or as reports.collected in qgpu.yaml")
        problems = run(
            loaded, Path(target), sources(loaded, directory, ssh, remote), pause, timeout
        )
    except (ConfigError, LedgerError, SlurmError, OSError) as error:
        fail("collect", str(error))
    for problem in problems:
        say("collect", problem)
    sys.exit(1 if problems else 0)


def run(
    config: Config, target: Path, found: Sequence[Source], pause_s: float, timeout_s: float
) -> list[str]:
    """Collect, keep house, and write the summaries that are wanted."""
    if not found:
        return ["no node has a ledger there"]
    with only_one(target.with_name(f".{target.name}.lock")):
        ledger = Ledger(target)
        try:
            oldest = max(0, time.time_ns() - config.ledger.retention.ns)
            problems = collect_all(ledger, found, pause_s, timeout_s, oldest)
            housekeep(ledger, config)
            if config.reports.summary != "none":
                totals = totals_since(ledger, time.time_ns() - 24 * OVERLAP_NS)
                written, foreign = summary.write(config.reports.summary, totals)
                click.echo(f"summary: {len(written)} written, {len(foreign)} left as they are")
        finally:
            ledger.close()
    if not config.reports.private_data:
        target.chmod(0o644)  # as sacct shows all to all here
    return problems
