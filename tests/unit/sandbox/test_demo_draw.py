"""The demo's drawing."""

from cli.demo import draw


def test_line_maps_0_to_blank_and_1_to_full() -> None:
    assert draw.line([0, 0.5, 1, 7, -1]) == " ▄██ "


def test_line_falls_back_to_ascii() -> None:
    assert draw.line([0, 1], "latin-1") == " @"


def test_axis_labels_whole_seconds() -> None:
    assert draw.axis(10, 0.2) == "0    1    "
    assert draw.axis(25, 0.1) == "0         1         2    "
