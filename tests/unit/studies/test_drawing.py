"""Figures on a page: complete without scripts, and a script only where there are figures."""

from __future__ import annotations

import re

from rlhf_lab.figures.charts import Point, Series, curves
from rlhf_lab.figures.vegalite import Tables, to_number_or_text
from rlhf_lab.reports.page import PageFigures


def test_numbers_that_are_not_finite_are_left_out_and_break_a_line():
    assert [to_number_or_text(value) for value in (1.23456789, float("nan"), "a", None)] == [1.23457, None, "a", None]
    tables = Tables()
    tables.chart([{"x": float("inf"), "y": float("nan"), "facts": {}}])
    assert tables.rows == {"rows0": [{"y": None}]}


def test_a_figure_is_complete_before_its_script_and_cannot_end_it():
    figures = PageFigures()
    series = Series("loss </script><b>", [Point(0, 1), Point(1, 2)])
    chart = curves([series], title="loss <b>", legend=True)
    page = str(figures.draw(chart))
    assert page.index("<svg") < page.index('<script type="application/json">')
    assert page.count("</script>") == 1 and "<b>" not in re.sub(r"<(title|desc)>.*?</\1>", "", page)
    assert str(figures.script()).count('id="vega"') == 1
