"""Scales and ticks, by arithmetic; figures, by what they draw."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.figures.charts import Level, Point, Series, curves, dots, frontier
from rlhf_lab.figures.svg import Canvas, span, tick_text, ticks
from rlhf_lab.results.wording import compact, p_text, signed
from rlhf_lab.statistics.inference import Estimate, seed_mean


def test_ticks_are_round():
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(-0.13, 0.31) == pytest.approx([-0.1, 0.0, 0.1, 0.2, 0.3])
    assert ticks(3, 3) == [3]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_lie_inside_and_are_evenly_spaced(low: float, width: float):
    found = ticks(low, low + width)
    assert 2 <= len(found) <= 7
    assert all(low - 1e-6 * width <= tick <= low + width * (1 + 1e-6) for tick in found)


def test_tick_text_has_the_decimals_of_its_step():
    assert [tick_text(value, 0.5) for value in (-0.5, 0, 1.0)] == ["−0.5", "0", "1.0"]
    assert tick_text(0.0001, 2e-5) == "1.0e−4" and tick_text(5e-5, 5e-5) == "5e−5"
    assert tick_text(4000, 2000) == "4k"
    assert tick_text(-0.9000000000000001, 0.0) == "−0.9"  # a single tick has no step


def test_span_is_never_empty():
    assert span([math.nan, math.inf]) == (0.0, 1.0)
    assert span([2.0, 2.0]) == (1.8, 2.2)
    assert span([0.0, 10.0], pad=0.1) == (-1.0, 11.0)


def test_scales_map_corners_to_corners():
    canvas = Canvas(200, 100, (0, 10), (0, 1), "t", "d", left=20, right=10, top=5, bottom=15)
    assert (canvas.x(0), canvas.x(10), canvas.y(0), canvas.y(1)) == (20, 190, 85, 5)


def test_nan_breaks_a_line_and_draws_no_point():
    points = [Point(0, 1), Point(1, 2), Point(2, math.nan), Point(3, 1), Point(4, 2)]
    page = curves([Series("loss", points)], title="loss")
    (path,) = re.findall(r'<path d="(M[^"]+)" fill="none"', page)
    assert path.count("M") == 2 and "nan" not in page


def test_infinite_intervals_are_not_drawn():
    known, unknown = seed_mean([1.0, 2.0, 3.0]), seed_mean([2.0])
    page = dots(
        [Level("a", known, [1, 2, 3], True), Level("b", unknown, [2]), Level("c", seed_mean([]))],
        title="t",
        x_label="x",
    )
    assert page.count('stroke-width="1.3"') == 1  # one whisker
    assert "no result" in page and "inf" not in page and "nan" not in page


def test_whiskers_stay_inside_the_plot():
    wild = Estimate(0.5, -300.0, 300.0, 2, 2)
    page = dots([Level("a", wild, [0.4, 0.6])], title="t", x_label="x")
    start, end = map(float, re.findall(r'd="M([\d.]+) [\d.]+L([\d.]+)', page)[0])
    assert 0 < start < end < 430


def test_a_frontier_keeps_the_origin_in_view():
    page = frontier([Series("gold", [Point(2, 5, 4, 6, 1.8, 2.2)])], title="t", x_label="x", y_label="y", origin=True)
    assert ">0</text>" in page and page.count('stroke-width="1.3"') == 2


def test_numbers_read_well():
    assert compact(Estimate(-0.7064, -0.8314, -0.5814, 60, 30)) == "−0.71 ±0.12"
    assert compact(Estimate(-0.004, -0.5, 0.492, 9, 9)) == "0.00 ±0.50"
    assert compact(Estimate(1.5, -math.inf, math.inf, 0, 0)) == "1.50"
    assert compact(math.nan) == "–" and compact(12345.6) == "12346"
    assert signed(Estimate(0.25, 0.05, 0.45, 9, 9)) == "+0.25 ±0.20"
    assert [p_text(p) for p in (0.0004, 0.034, 0.34, math.nan)] == ["< 0.001", "0.034", "0.34", "–"]
