"""Any text in a field that a user controls: what we read stays whole, what we write parses back."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from gres_support import job_submit
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_fd_to_metric_families
from records_support import answer, columns
from records_support import sacct as fake_sacct
from rich.console import Console

from cli.live.view import Shown, picture
from cli.output import aligned, parsable, show
from cli.report.html import Plot, Table, _page
from enforcer.daemon.granting.hookproto import Answer, format_answer
from enforcer.daemon.log import MAX_VALUE, line
from enforcer.reporting.metrics import text_of
from enforcer.reporting.state import CardState, NodeState
from gres import mounttable
from gres.grant.store import MAX_MESSAGE_BYTES, clip_message
from gres.grant.tag import looks_like_tag, parse_tag
from gres.printable import printable
from slurm_plugin import control, guard
from slurm_plugin.accounting import sacct, summary
from slurm_plugin.records import Columns, unique
from slurm_plugin.submission import RequestError, Submission

JOB_SUBMIT = job_submit("lua54", "one")
# What ends lines or fields somewhere, commands a terminal, hides, or is no text at all.
NASTY = "\0\n\r\x0b\x0c\x1c\x1d\x1e\x1b\x85\u2028\u2029\u202e\u2066\u200b\ufeff\u3164\ufe0f|=\"'<&;"
text = st.one_of(
    st.text(st.one_of(st.sampled_from(NASTY), st.characters(exclude_categories=[])), max_size=40),
    st.binary(max_size=40).map(lambda data: data.decode(errors="surrogateescape")),
    st.just("\n9|9|bob|COMPLETED|8760:00:00|n1|x"),
)
# Slurm keeps C strings: a NUL ends them. What it prints is decoded, so it has no surrogates.
value = text.map(lambda t: t.replace("\0", "").encode(errors="replace").decode(errors="replace"))
ROW = {"State": "COMPLETED", "Elapsed": "01:00:00", "User": "bob", "End": "5", "Start": "1"}


def bobs(number: int, **more: str) -> dict[str, str]:
    return ROW | {"JobIDRaw": str(number), "JobID": str(number), "AllocTRES": "gres/gpu=1"} | more


# ---- what we read ------------------------------------------------------------------------------


@given(st.lists(st.tuples(value, value, value), max_size=6))
def test_records_come_back_as_they_were(rows: list[tuple[str, str, str]]) -> None:
    asked = Columns.of("a", "b", "c")
    printed = "".join("".join(f"{one}{asked.end}" for one in row) + "\n" for row in rows)
    assert asked.read(printed, "x") == [list(row) for row in rows]


@given(value, value, value)
def test_a_job_changes_no_other_job_of_a_report(name: str, account: str, wckey: str) -> None:
    rows = [bobs(1), bobs(2, JobName=name, Account=account, WCKey=wckey), bobs(3)]
    for found in (
        sacct.jobs_between(sacct.Window(0, 9), lambda command: answer(command, rows)),
        sacct.jobs(["1", "2", "3"], fake_sacct(rows)),
    ):
        first, second, third = found
        assert (second.raw_id, second.account, second.elapsed_s) == (2, account, 3600)
        assert first._replace(raw_id=3, job_id="3") == third and third.elapsed_s == 3600
    assert second.name == name


@given(value.filter(lambda t: not t.startswith("\n")), value, st.integers(0, 3))
def test_who_read_the_mark_speaks_for_no_other_job(theirs: str, mine: str, forged: int) -> None:
    """Its words are in /proc while the command runs: a job's text may hold even the mark."""

    def runner(command: Sequence[str]) -> str:
        end = columns(command).end
        fake = f"{mine}{end}\n3{end}5{end}{end}" * forged + f"{mine}{end}\n7{end}8"
        rows = [bobs(1, Extra=theirs), bobs(2, Extra=fake), bobs(3, Extra=theirs)]
        return answer(command, rows)

    found = summary.current("extra", [1, 2, 3], runner)
    assert found[1] == theirs and found.get(3, theirs) == theirs


def test_a_job_that_has_two_records_is_left_out() -> None:
    rows = [["1", "a"], ["2", "b"], ["1", "c"], ["x", "d"], ["\u0663", "e"], ["2", "b"], ["4", "f"]]
    assert unique(rows) == {4: ["4", "f"]}


@given(value, value)
def test_other_fields_of_squeue_stay_where_they_are(partition: str, request: str) -> None:
    words = {"JobID": "7", "State": "PENDING", "tres-per-node": "gres/qgpu:30"}
    rows = [words, words | {"Partition": partition, "tres-per-task": request}, words]
    found = guard.bypassed((), lambda command: answer(command, rows))
    assert len(found) in (2, 3) and {job.job_id for job in found} == {7}
    assert all(job.sentence.isprintable() for job in found)
    rows = [{"%A": "7", "%q": "low", "%l": "10:00", "%S": "9", "%P": partition, "%R": partition}]
    assert [job.job_id for job in control.running(["low"], lambda c: answer(c, rows))] == [7]


@given(st.binary(min_size=1, max_size=40).filter(lambda path: b"\0" not in path))
def test_a_mount_forges_no_row(path: bytes) -> None:
    """The kernel escapes blank, tab, newline and backslash."""
    escaped = re.sub(rb"[ \t\n\\]", lambda m: b"\\%03o" % m[0][0], path)
    table = b"a /x tmpfs rw 0 0\nfuse " + escaped + b" fuse rw 0 0\ncgroup2 /c cgroup2 rw 0 0\n"
    first, second, third = mounttable.rows(table)
    assert (second[1].encode(errors="surrogateescape"), second[2]) == (path, "fuse")
    assert (first[1], third[1], third[2]) == ("/x", "/c", "cgroup2")


def test_64_kib_in_a_field_are_read_and_cut() -> None:
    huge = "A\n" * 32768
    rows = [bobs(1, JobName=huge), bobs(2, JobName="b")]
    assert [job.name for job in sacct.jobs(["1", "2"], fake_sacct(rows))] == [huge, "b"]
    assert len(line("x", why=huge)) < MAX_VALUE + 20 and len(clip_message(huge)) < 600
    assert len(printable(huge, 80)) == 80


# ---- what we show ------------------------------------------------------------------------------


@given(text)
def test_printable_text_is_one_line_of_visible_characters(foreign: str) -> None:
    shown = printable(foreign)
    assert shown.isprintable() and len(shown.splitlines()) <= 1 and shown == printable(shown)
    assert not set(shown) & set("\u3164\ufe0f\u115f\u2800") and shown.encode().decode() == shown
    assert len(printable(foreign, 50)) <= 50
    if foreign.isascii() and foreign.isprintable():
        assert shown == foreign


@given(st.lists(st.tuples(text, text, text), min_size=1, max_size=4))
def test_tables_and_lines_keep_their_rows_and_fields(rows: list[tuple[str, str, str]]) -> None:
    assert len("\n".join(aligned([*rows, ("a", "b", "c")], 1)).splitlines()) == len(rows) + 1
    lines = "\n".join(parsable(rows)).splitlines()
    assert [line.count("|") for line in lines] == [2] * len(rows)


@given(text, text)
def test_a_log_has_one_line_whose_words_parse_back(foreign: str, other: str) -> None:
    written = line("x", job=7, why=foreign, then=other)
    assert written.isprintable()
    found = re.findall(r'(\w+)=("[^"]*"|[^ "]*)(?: |$)', written)
    assert [key for key, _ in found] == ["event", "job", "why", "then"]
    assert found[2][1].strip('"') == printable(foreign, MAX_VALUE).replace('"', "'").strip('"')


@given(text)
def test_json_comes_back_as_it_was(foreign: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show({"name": foreign}, [], "json", 0)
    assert json.loads(out.getvalue()) == {"name": foreign, "version": 1}
    assert out.getvalue().replace("\n", "").isprintable() and out.getvalue().isascii()


@given(text, text)
def test_labels_of_metrics_parse_back(user: str, card: str) -> None:
    family = GaugeMetricFamily("qgpu_x", "Text.", labels=("user", "card"))
    family.add_metric((printable(user), card), 1)
    family.add_metric(("bob", "y"), 2)
    lines = io.StringIO(text_of([family]).decode(), newline="\n")
    (found,) = text_fd_to_metric_families(lines)
    assert [sample.value for sample in found.samples] == [1, 2]
    assert found.samples[0].labels["user"] == printable(user)
    assert found.samples[1].labels == {"user": "bob", "card": "y"}


class Cells(HTMLParser):
    """Texts of the cells of a page, and all its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "td":
            self.cells[-1] += data


def page(user: str) -> Cells:
    rows = [[user, "b"], ["c", "d"]]
    written = _page(
        title=user,
        subtitle=user,
        tables=[Table("title", ["NAME", "B"], rows, 1)],
        advice=[user],
        plots=[Plot(user, Markup("<svg></svg>"), [user])],
        note="",
    )
    assert written.encode()
    return Cells(written)


@given(text)
def test_a_page_shows_text_and_gets_no_tag_of_it(user: str) -> None:
    found = page(user)
    assert found.tags == page("alice").tags
    assert found.cells[0].strip() == printable(user).strip() and found.cells[2].strip() == "c"


@given(text, text)
def test_a_terminal_gets_no_command_from_a_card(name: str, note: str) -> None:
    card = CardState("GPU-1", 0, name, 1 << 30, 0, 0)
    state = NodeState("n1", 0.0, True, cards=(card,))
    out = io.StringIO()
    Console(file=out, width=200).print(picture([state], [note], Shown()))
    assert all(line.isprintable() for line in out.getvalue().split("\n"))


@given(text)
def test_sentences_to_users_are_whole(foreign: str) -> None:
    clipped = clip_message(foreign)
    assert clipped.isprintable() and len(clipped.encode()) <= MAX_MESSAGE_BYTES
    assert format_answer(Answer(0, foreign)).partition(b"\0")[2].decode().isprintable()


# ---- job_submit --------------------------------------------------------------------------------


@given(value, value, st.sampled_from(["gres", "qos", "partition", "cards", "vram", "comment"]))
def test_job_submit_keeps_words_and_tags_apart(foreign: str, prefix: str, field: str) -> None:
    """Any text in any field: a printable refusal, or our tag in front of what the user wrote."""
    fields = {"gres": "qgpu:5", "qos": "online", "comment": prefix, field: foreign}
    if field == "gres":
        fields["gres"] = f"qgpu:5,{foreign}"
    try:
        found = JOB_SUBMIT.decide(Submission(**fields))
    except RequestError as error:
        assert str(error).isascii() and str(error).isprintable()
        return
    said = found.comment if found.comment is not None else fields["comment"]
    assert found.tag is not None and parse_tag(said) == found.tag
    assert not looks_like_tag(said.partition("; ")[2])


# ---- the rule ----------------------------------------------------------------------------------


def test_no_reader_ends_lines_where_only_python_does() -> None:
    root = Path(__file__).parents[2]
    product = ("slurm_plugin", "gres", "cli", "enforcer/daemon", "enforcer/ledger")
    files = [path for name in product for path in (root / name).rglob("*.py")]
    assert len(files) > 100
    for path in files:
        assert ".splitlines(" not in path.read_text(), f"{path}: docs/specs/text.md, rule 4"
