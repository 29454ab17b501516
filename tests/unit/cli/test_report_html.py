"""`qgpu report --html`: one page that loads nothing, is well formed, and shows what it should."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from records_support import recorded
from records_support import sacct as fake_sacct

from cli.report.command import report
from enforcer.ledger.store import CardSample, Ledger, Sample
from gres.config.schema import JobClass
from gres.grant.store import Grant, GrantCard
from slurm_plugin import records

GIB = 1 << 30
SECOND = 10**9
START = 1_700_000_100
UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in range(2)]
HEADER = (
    "JobID|JobIDRaw|User|State|Elapsed|NodeList|QOS|Partition|AllocTRES|Account|Start|End|JobName"
)
TRES = "gres/qgpu:{kind}=30,gres/qgpu=30,gres/vram=12G"
VOID = {"meta", "wbr", "link", "br", "hr", "img", "input"}


def job(number: int, kind: str, name: str = "train") -> str:
    times = f"{START}|{START + 100}"
    tres = TRES.format(kind=kind)
    first = f"{number}|{number}|<b>al$ice|COMPLETED|00:01:40|n1|{kind}|gpu"
    return f"{first}|{tres}|acct|{times}|{name}"


class Page(HTMLParser):
    """Checks that tags close in order, and remembers what matters."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "data", "action") and not (
                value or ""
            ).startswith("#"):
                self.loads.append(f"{tag} {name}={value}")
        if tag in ("script", "iframe", "link", "img", "object"):
            self.loads.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def grant(number: int, kind: JobClass, uuid: str, begin: int) -> Grant:
    card = GrantCard(uuid, 0, UUIDS.index(uuid), 30, 12 * GIB, 80 * GIB)
    at = begin * SECOND
    return Grant(number, 1000, 100, "n1", "active", kind, at, "", (card,), "/r", "/d", "/s")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for number, (kind, uuid) in enumerate(
        (("online", UUIDS[0]), ("offline", UUIDS[0]), ("offline", UUIDS[1])), 1
    ):
        ledger.open_grant(grant(number, kind, uuid, START))
        for second in (*range(0, 40, 2), *range(60, 100, 2)):
            used = {
                "busy_ns": second * SECOND // 4,
                "launches": second,
                "mem_used": GIB,
                "mem_peak": GIB,
            }
            ledger.record([Sample(number, uuid, 1, 5, **used)], (START + second) * SECOND)  # type: ignore[arg-type]
        ledger.end(number, "epilog", (START + 100) * SECOND)
    ledger.record_cards("n1", [CardSample(UUIDS[0], 0, 55, GIB)], (START + 5) * SECOND)
    ledger.close()
    text = "\n".join(
        [
            HEADER,
            job(1, "online", "<script>alert(1)</script>"),
            job(2, "offline"),
            job(3, "offline"),
        ]
    )

    monkeypatch.setattr(records, "run", fake_sacct(recorded(text)))
    out = tmp_path / "page.html"
    done = CliRunner().invoke(
        report, ["1", "2", "3", "--html", str(out), "--ledger", str(tmp_path / "ledger.sqlite")]
    )
    assert done.exit_code == 0, done.output
    return out


def parsed(path: Path) -> Page:
    found = Page()
    found.feed(path.read_text())
    found.close()
    return found


def test_page_is_well_formed_loads_nothing_and_has_each_id_once(page):
    found = parsed(page)
    assert found.open == [] and found.loads == []
    assert len(found.ids) == len(set(found.ids)) > 50
    assert "default-src 'none'" in page.read_text()


def test_users_words_are_text_and_nothing_else(page):
    text = page.read_text()
    assert "<b>al" not in text and "&lt;b&gt;al$ice" in text and "<script" not in text


def test_page_says_the_numbers_and_the_advice(page):
    words = parsed(page).words
    assert "24.5" in words and "job 1: it held at most 1.0 of 12.0 GiB" in words
    for title in ("Cards by class", "Job 1 <script>alert(1)</script> on n1:0", "Job 3 train on"):
        assert title in words


def test_plots_are_svg_with_one_bar_per_grant_by_class(page):
    svgs = re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL)
    assert len(svgs) == 4
    trees = [ElementTree.fromstring(svg) for svg in svgs]
    styles = [e.get("style", "") for e in trees[0].iter("{http://www.w3.org/2000/svg}path")]
    legend = 1
    assert sum("#1f77b4" in style for style in styles) == 1 + legend
    assert sum("#ff7f0e" in style for style in styles) == 2 + legend
    assert "n1:1" in "".join(trees[0].itertext())


def test_gap_in_the_samples_is_a_gap_in_the_line():
    from cli.report.plots import Piece, _steps

    found = [Piece(at, at + 10, 1, 0, None) for at in (0, 10, 40)]
    _, values = _steps(found, lambda piece: 1.0)
    assert [value == value for value in values] == [True] * 4 + [False] + [True] * 2


@pytest.mark.parametrize(
    ("granted", "ended", "spans"),
    [
        (103, 107, [(103, 107)]),
        (103, 132, [(103, 110), (110, 120), (120, 132)]),  # two seconds of the last bucket
        (107, 128, [(107, 120), (120, 128)]),
        (100, None, [(100, 110), (110, 120), (120, 131)]),  # it runs, and was sampled at 131
    ],
)
def test_curves_show_the_jobs_own_time_only(page, tmp_path, granted, ended, spans):
    from cli.report.ledgers import Row
    from cli.report.plots import pieces
    from enforcer.ledger.read import reading, usage_of_jobs
    from enforcer.ledger.schema import Point

    with reading(tmp_path / "ledger.sqlite") as database:
        ((_, usage),) = usage_of_jobs(database, [1])
    usage = usage._replace(
        granted_at=granted * SECOND,
        ended_at=ended and ended * SECOND,
        sampled_at=131 * SECOND,
    )
    points = tuple(Point(at, 10, SECOND, 0, 0, 0, GIB) for at in (100, 110, 120, 130))
    found = pieces(Row(usage, points))
    assert [(piece.begin, piece.end) for piece in found] == spans
    inside = [point for point in points if point.at < (ended or 131)]
    assert sum(piece.busy_ns for piece in found) == len(inside) * SECOND


def test_without_matplotlib_the_page_says_so(tmp_path, page, monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    done = CliRunner().invoke(
        report, ["1", "--html", str(page), "--ledger", str(tmp_path / "ledger.sqlite")]
    )
    assert done.exit_code == 0
    assert "pip install 'qgpu[plots]'" in parsed(page).words.replace("&#39;", "'")


@pytest.mark.usefixtures("page")
def test_a_page_that_cannot_be_written_is_named(tmp_path):
    where = tmp_path / "nosuch" / "page.html"
    words = ["1", "--html", str(where), "--ledger", str(tmp_path / "ledger.sqlite")]
    done = CliRunner().invoke(report, words)
    assert done.exit_code == 2
    said = f"{where} cannot be written: No such file or directory; name another file with --html"
    assert said in done.output


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


def browse(path: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The page's elements as the browser has them."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return subprocess.run(
        [
            BROWSER or "",
            "--headless",
            *sandbox,
            "--disable-gpu",
            f"--user-data-dir={tmp_path}/profile",
            "--enable-logging=stderr",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


@pytest.mark.skipif(BROWSER is None, reason="no headless Chromium is installed here")
def test_a_browser_draws_the_page_without_complaint(page, tmp_path):
    done = browse(page, tmp_path)
    assert done.stdout.count("<svg") == 4 and "CONSOLE" not in done.stderr


FRAMES = """<!DOCTYPE html><body><p id="found"></p><script>
addEventListener("load", () => {
  const frames = [...document.querySelectorAll("iframe")];
  const roots = frames.map(frame => frame.contentDocument.documentElement);
  found.textContent = JSON.stringify(roots.map(r => [r.clientWidth, r.scrollWidth]));
});</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no headless Chromium is installed here")
def test_no_column_is_beside_the_screen(page, tmp_path):
    frame = '<iframe style="width:{0}px;height:900px;border:0" srcdoc="{1}"></iframe>'
    text = html.escape(page.read_text())
    frames = tmp_path / "frames.html"
    frames.write_text(FRAMES + "".join(frame.format(width, text) for width in (420, 800, 1280)))
    found = re.search(r'<p id="found">(.*?)</p>', browse(frames, tmp_path).stdout)
    assert found is not None
    sizes = json.loads(found[1])
    assert len(sizes) == 3 and all(shown >= needed > 0 for shown, needed in sizes), sizes


def test_a_window_lists_the_newest_and_draws_the_longest_first(tmp_path, monkeypatch):
    """45 short jobs, of which nothing was sampled, then one of a minute: row 10 of a trial."""
    from cli.report import html as report_html

    monkeypatch.setattr(report_html, "MAX_LISTED", 40)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    rows = [HEADER]
    for number in range(1, 47):
        length = 60 if number == 46 else 1
        begin = START + 2 * number
        ledger.open_grant(grant(number, "online", UUIDS[0], begin))
        if number in (1, 46):
            for second in range(length):
                sample = Sample(number, UUIDS[0], 1, 5, busy_ns=second * SECOND // 2, mem_used=GIB)
                ledger.record([sample], (begin + second) * SECOND)
        ledger.end(number, "epilog", (begin + length) * SECOND)
        rows.append(
            f"{number}|{number}|alice|COMPLETED|00:00:{length - 1:02}|n1|online|gpu|"
            f"{TRES.format(kind='online')}|acct|{begin}|{begin + length}|job-{number}"
        )
    ledger.close()
    monkeypatch.setattr(records, "run", fake_sacct(recorded("\n".join(rows))))
    out = tmp_path / "page.html"
    words = [
        "--since",
        "2023-11-14",
        "--html",
        str(out),
        "--ledger",
        str(tmp_path / "ledger.sqlite"),
    ]
    done = CliRunner().invoke(report, words)
    assert done.exit_code == 0, done.output
    words = parsed(out).words
    listed = re.findall(r">job-(\d+)<", out.read_text())
    assert listed == [str(number) for number in range(46, 6, -1)]
    assert re.findall(r"Job (\d+) job-\1 on", words) == ["46", "1"], "plots, the longest first"
    assert "The newest 40 of 46 jobs" in words and "44 of 46 grants have no plot" in words
    assert "nothing was sampled of this grant" not in words
