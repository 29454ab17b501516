"""Jobs as sacct spells them (cli/report/ids.py)."""

from __future__ import annotations

import pytest

from cli.report.ids import MAX_JOBS, parse, unknown


@pytest.mark.parametrize(
    ("arguments", "jobs"),
    [
        (["12"], ["12"]),
        (["12,13", "14"], ["12", "13", "14"]),
        (["12.0", "13.batch", "14_3.extern", "15+1.2"], ["12", "13", "14_3", "15+1"]),
        (["12_3", "12_[1-3]"], ["12_3", "12_1", "12_2", "12_3"]),
        (["12_[0,4-8:2%2],7"], ["12_0", "12_4", "12_6", "12_8", "7"]),
        (["8-10,0012_03"], ["8", "9", "10", "12_3"]),
        (["1795957417517869"], ["1795957417517869"]),
    ],
)
def test_words_of_sacct(arguments: list[str], jobs: list[str]) -> None:
    assert [job for found in parse(arguments).values() for job in found] == jobs


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("12,abc,13", "'abc' is not a job id; write for example 12"),
        ("12,", "'' is not a job id"),
        ("12.foo", "'12.foo' is not a job id"),
        ("12_[1-", "'12_[1-' is not a job id"),
        ("12_[1-2,,3]", "'' of '12_[1-2,,3]' is no task"),
        ("40-1", "'40-1' ends before it begins; write 1-40"),
        ("12_[9-3]", "'12_[9-3]' ends before it begins; write 3-9"),
        (
            "1-9999999999",
            f"'1-9999999999' names more jobs than one report takes, which are {MAX_JOBS}",
        ),
        ("1-4000,10000-14000", "'10000-14000' names more jobs"),
        (",".join(map(str, range(1, MAX_JOBS + 2))), f"'{MAX_JOBS + 1}' names more jobs"),
        ("0", "'0' is not a job id, because Slurm counts from 1"),
        ("0-3", "'0-3' is not a job id"),
        ("12\n13", "is not a job id"),
        ("１２", "is not a job id"),
        ("--format", "'--format' is not a job id"),
    ],
)
def test_refusals_name_the_word(argument: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse([argument])
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "known", "none", "some"),
    [
        (["12,13"], ["12"], ["13"], []),
        (["12"], ["12_1", "15"], [], []),
        (["12_1", "12_9"], ["12_1", "12_[5-100000%4]"], [], []),
        (["10+1"], ["10+1", "11"], [], []),
        (["1-4"], ["2", "4"], [], ["2 of the 4 jobs 1-4 are not known to sacct"]),
        (["1-4"], [], ["1-4"], []),
    ],
)
def test_what_sacct_does_not_know(
    asked: list[str], known: list[str], none: list[str], some: list[str]
) -> None:
    assert unknown(parse(asked), known) == (none, some)
