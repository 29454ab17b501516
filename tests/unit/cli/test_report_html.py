"""`qgpu report --html`: one page that loads nothing, is well formed, and shows what it should."""

from __future__ import annotations

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
VOID = {"meta", "link", "br", "hr", "img", "input"}


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


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for number, (kind, uuid) in enumerate(
        (("online", UUIDS[0]), ("offline", UUIDS[0]), ("offline", UUIDS[1])), 1
    ):
        card = GrantCard(uuid, 0, UUIDS.index(uuid), 30, 12 * GIB, 80 * GIB)
        ledger.open_grant(
            Grant(
                number,
                1000,
                100,
                "n1",
                "active",
                kind,
                START * SECOND,
                "",
                (card,),
                "/r",
                "/d",
                "/s",
            )  # type: ignore[arg-type]
        )
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
    assert "24.5" in words and "job 1: it used at most 1.0 GiB of 12.0 GiB" in words
    for title in ("Cards by class", "Job 1 on n1:0", "Job 3 on n1:1"):
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
    from cli.report.plots import _steps
    from enforcer.ledger.schema import Point

    points = [Point(at, 10, 1, 0, 0, 0, None) for at in (0, 10, 40)]
    _, values = _steps(points, lambda point: 1.0)
    assert [value == value for value in values] == [True] * 4 + [False] + [True] * 2


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


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.mark.skipif(BROWSER is None, reason="no headless Chromium is installed here")
def test_a_browser_draws_the_page_without_complaint(page, tmp_path):
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [
            BROWSER or "",
            "--headless",
            *sandbox,
            "--disable-gpu",
            f"--user-data-dir={tmp_path}/profile",
            "--enable-logging=stderr",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.count("<svg") == 4 and "CONSOLE" not in done.stderr
