"""tools/constants.py: each number of scheduling has unit, reason and evidence, or is named."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import constants
import pytest

ROOT = constants.ROOT
GOOD = "/* ns: It waits this long. Evidence: none. */\n"
EXAMPLES = "enforcer/native/arbiter/card"


@pytest.fixture(name="tree")
def small_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A tree with no constant yet: write() makes its only header."""
    (tmp_path / EXAMPLES).mkdir(parents=True)
    (tmp_path / "docs/specs").mkdir(parents=True)
    (tmp_path / "docs/adr").mkdir()
    (tmp_path / "docs/adr/0018-a-page.md").touch()
    monkeypatch.setattr(constants, "ROOT", tmp_path)
    return tmp_path


def write(tree: Path, text: str) -> None:
    (tree / EXAMPLES / "a.h").write_text(text)


def test_the_committed_page_is_that_of_the_sources() -> None:
    assert constants.main(["--check"]) == 0


def test_no_group_is_empty() -> None:
    for patterns in constants.GROUPS.values():
        assert all(constants.files((pattern,)) for pattern in patterns), patterns


def test_a_row_has_value_unit_reason_and_evidence(tree: Path) -> None:
    write(
        tree,
        "/* what follows */\n\n"
        "/* ns of card time: One tick. It is\n * short | cheap. Evidence: decision (ADR 18,\n"
        " * docs/specs/a.md). */\n#define TICK (1 * MS)\n"
        "/* ns: In a millisecond. Evidence: protocol (b.c). */\n#define MS 1000000ull\n"
        "/* mark: No time. Evidence: bound. */\n#define NEVER UINT64_MAX\n"
        "/* count: Places. Evidence: bound. */\nstatic const uint32_t places = 1u << 16;\n"
        "enum kind { FIRST, SECOND = 1,\n"
        "/* count: Tries. Evidence: none. */\n    TRIES = 7 };\n",
    )
    assert constants.main([]) == 0
    page = (tree / constants.PAGE).read_text()
    rows = re.findall(r"^\| `.*", page, re.M)
    assert rows == [
        "| `TICK` | 1 000 000 | ns of card time | One tick. It is short \\| cheap. "
        "| decision ([ADR 18](../adr/0018-a-page.md), [a.md](a.md)) |",
        "| `MS` | 1 000 000 | ns | In a millisecond. | protocol (`b.c`) |",
        "| `NEVER` | 2^64 - 1 | mark | No time. | bound |",
        "| `places` | 2^16 | count | Places. | bound |",
        "| `TRIES` | 7 | count | Tries. | none |",
    ]
    kinds = ["promise", "protocol", "decision", "attack", "measured", "simulator", "bound", "none"]
    assert f"| files | constants | {' | '.join(kinds)} | marks |" in page
    assert "| all | 4 | 0 | 1 | 1 | 0 | 0 | 0 | 1 | 1 | 1 |" in page


@pytest.mark.parametrize(
    "line",
    [
        "#define QG_GUARD_H",
        "#define QG_ROUTE other_route",
        '#define NAME "text with 5"',
        "#define ANY(of) (of ? 1 : 0)",
        "#define BITS (EPOLLIN | EPOLLOUT)",
        "enum { FIRST, SECOND };",
        "    static const uint64_t one = 1; /* of a function */",
    ],
)
def test_what_is_no_constant_needs_no_comment(tree: Path, line: str) -> None:
    write(tree, f"{line}\n")
    assert constants.read() == ([], [])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("#define X 5\n", "2: X has no comment of its own directly before it: write /* <unit>: "),
        (f"{GOOD}\n#define X 5\n", "4: X has no comment of its own directly before it"),
        (f"{GOOD}#define Y 4\n#define X 5\n", "4: X has no comment of its own directly before it"),
        (f"{GOOD}int y;\nconst int X = 5;\n", "4: X has no comment of its own directly before it"),
        ("enum {\n    X = 5,\n};\n", "3: X has no comment of its own directly before it"),
        ("/* It waits. */\n#define X 5\n", '3: X has the unit "It waits.": begin its comment with'),
        ("/* fortnights: It waits. Evidence: none. */\n#define X 5\n", 'the unit "fortnights"'),
        ("/* ns: It waits. */\n#define X 5\n", "3: X has no evidence: end its comment with"),
        ("/* ns: Evidence: none. */\n#define X 5\n", "3: X has no reason: say in a sentence what"),
        ("/* ns: it waits Evidence: none. */\n#define X 5\n", "3: X has no reason: say in a"),
        ("/* ns: It waits. Evidence: yes. */\n#define X 5\n", 'the evidence "yes": write one of'),
        ("/* ns: It waits. Evidence: measured. */\n#define X 5\n", "names no source of its"),
        ("/* ns: It waits. Evidence: decision (ADR 99). */\n#define X 5\n", "names ADR 99, which"),
        (f"{GOOD}#define X (5 * other)\n", "3: X has a number in a text that is no constant"),
        ("#define HALF(x) ((x) / 2)\n", "2: HALF has a number in a text that is no constant"),
    ],
)
def test_each_refusal_is_a_sentence(
    tree: Path, capsys: pytest.CaptureFixture[str], text: str, fault: str
) -> None:
    write(tree, f"\n{text}")
    assert constants.main(["--check"]) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"{EXAMPLES}/a.h:") and fault in said and said.count("\n") == 1


def test_a_stale_page_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tree, f"{GOOD}#define X 5\n")
    assert constants.main([]) == 0 and constants.main(["--check"]) == 0
    write(tree, f"{GOOD}#define X 6\n")
    assert constants.main(["--check"]) == 1
    assert capsys.readouterr().out == (
        "docs/specs/constants.md differs from the sources: run `make layouts` and commit the page\n"
    )


def test_each_commit_that_is_evidence_is_there() -> None:
    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)

    if git("rev-parse", "--is-shallow-repository").stdout != "false\n":
        pytest.skip("this copy has not the whole history")
    rows, _ = constants.read()
    named = {commit for row in rows for commit in re.findall(r"commit (\w+)", row.source)}
    assert not [
        commit for commit in named if git("cat-file", "-e", f"{commit}^{{commit}}").returncode
    ]
