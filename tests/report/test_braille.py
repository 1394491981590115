"""Curves as dots."""

import pytest

from archipel.report.braille import Curve, Level, chart


def drawn(curves, levels=(), rounds=10, width=40, height=9, **more):
    """The lines of a chart, without colours."""
    return [
        "".join(text for text, _ in line)
        for line in chart(curves, levels, rounds, width, height, **more)
    ]


def rows_with_dots(lines):
    """The lines that hold a dot."""
    return [row for row, line in enumerate(lines) if any("\u2800" < c <= "\u28ff" for c in line)]


def test_a_rising_curve_goes_from_bottom_left_to_top_right():
    lines = drawn([Curve("it", "red", [0, 10], [0.0, 1.0])])

    assert rows_with_dots(lines) == list(range(8))
    columns = [next(i for i, c in enumerate(line) if c > "\u2800") for line in lines[:8]]
    assert columns == sorted(columns, reverse=True)


def test_a_level_is_a_line_beside_its_label():
    lines = drawn([], [Level("alone", "red", 0.2), Level("pooled", "green", 0.8)])

    low, high = (
        next(i for i, line in enumerate(lines) if name in line) for name in ("alone", "pooled")
    )
    assert rows_with_dots(lines) == [high, low]
    assert high < low


def test_labels_never_share_a_line():
    levels = [Level(name, "", 0.5) for name in ("one", "two", "three")]
    lines = drawn([Curve("it", "red", [1], [0.5])], levels)

    for name in ("one", "two", "three", "it"):
        assert sum(line.endswith(" " + name) for line in lines) == 1


def test_axes_have_round_numbers():
    lines = drawn([Curve("it", "", [0, 100], [0.41, 0.79])], rounds=100, width=60)

    assert [line[:4] for line in lines if "┤" in line] == [" 0.8", " 0.6", " 0.4"]
    assert lines[-1].startswith("    └0─")
    assert lines[-1].endswith("─100")
    assert "─50─" in lines[-1]


def test_a_gap_is_not_joined():
    lines = drawn([Curve("", "", [0, 4, 5, 6, 10], [1.0, 1.0, float("nan"), 1.0, 1.0])])
    (row,) = rows_with_dots(lines)

    assert " " in lines[row].split("│")[-1].split("┤")[-1].strip()


@pytest.mark.parametrize(("better", "bad"), [(True, -1e6), (False, 1e6)])
def test_a_bad_start_does_not_flatten_the_rest(better, bad):
    values = [bad] + [0.5 + 0.01 * t for t in range(20)]
    lines = drawn([Curve("", "", range(21), values)], rounds=20, larger_is_better=better)

    assert len(rows_with_dots(lines)) == 8


def test_no_room_no_chart():
    assert drawn([Curve("it", "", [1], [1.0])], height=1) == []
    assert drawn([Curve("it", "", [1], [1.0])], width=3) == []
