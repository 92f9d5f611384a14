"""Specifications of figures: which rows and marks they hold, what tooltips say, and that text stays text."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path

import altair as alt
import numpy as np
import pytest
from browser import decode_png

from rlhf_lab.figures import render
from rlhf_lab.figures.charts import (
    Level,
    Point,
    Series,
    curves,
    dot_chart,
    estimate_tooltip,
    frontier,
    gain_curves,
    spread,
    unique,
)
from rlhf_lab.figures.labels import NARROW, TextLabel, place_labels
from rlhf_lab.figures.layers import Chart, EventMark, span
from rlhf_lab.figures.vegalite import MarkLayer, Tables, channel, layered, to_number_or_text
from rlhf_lab.reports.page import PageFigures
from rlhf_lab.results.glossary import FORMS, GLOSSARY, meaning, term
from rlhf_lab.results.samples import pack
from rlhf_lab.results.wording import compact, p_text, signed
from rlhf_lab.statistics.inference import Estimate, seed_mean

ATTACK = '</script><script>alert(1)</script>"+alert(2)+"\u2028'


def layers(chart: Chart, mark: str) -> list[dict]:
    """Layers of one kind of mark."""
    return [layer for layer in chart.specification["layer"] if layer["mark"]["type"] == mark]


def rows(chart: Chart, layer: dict) -> list[dict]:
    """The rows that a layer draws, before its filters."""
    source = layer.get("data") or chart.specification["data"]  # what all layers share is written once
    return chart.specification["datasets"][source["name"]]


def said(chart: Chart, layer: dict) -> list[dict[str, str]]:
    """The tooltip of each row: title → text."""
    fields = {tip["field"]: tip["title"] for tip in layer["encoding"]["tooltip"]}
    return [{title: row[field] for field, title in fields.items()} for row in rows(chart, layer)]


def every_kind(name: str = "gold") -> list[Chart]:
    points = [Point(0, 0, label=name), Point(1, 0.5, 0.4, 0.6, 0.9, 1.1, name, {"policy": name})]
    gains = [{"series": name, "metric": kind, "x": 1, "y": 2, "facts": {"level": name}} for kind in ("gold", "proxy")]
    one = [Series(name, points, 1)]
    mean, none = seed_mean([1.0, 2.0]), seed_mean([])
    return [
        curves([*one, Series("b", points)], title=name, events=[EventMark(0.5, name)]),
        frontier(one, title=name, x_label=name, y_label=name, origin=True),
        frontier(one, title=name, x_label="x", y_label="y", diagonal=(0.5, 1.0)),
        dot_chart(
            [Level(name, mean, [1, 2], True), Level("b", mean, [1, 2]), Level("c", none)], title=name, x_label=name
        ),
        spread({name: [0, 1, 2, 3, 4]}, title=name, x_label=name),
        gain_curves(gains, gains, [name], title=name, description=name, x_label=name, y_label=name),
    ]


def test_specifications_are_vega_lite():
    for chart in every_kind():
        assert alt.LayerChart.from_dict(chart.specification, validate=True)


def test_layers_share_what_stands_before_them():
    """A step returns another layer; a second end has no type; one table is named once."""
    base = MarkLayer("rows0").encode(x=channel("x:Q", scale={"nice": False, "domain": [0, 1]}))
    ends = base.where("isValid(datum.low)").mark("rule", size=2, clip=True).encode(x2="high:Q")
    dots = base.mark("point").encode(y="name:N")
    selected = layered([ends, dots], [{"name": "zoom"}], 100, 50)
    first, second = selected["layer"]
    assert selected["data"] == {"name": "rows0"} and "data" not in first
    assert first["encoding"]["x2"] == {"field": "high"}
    assert first["transform"] == [{"filter": "isValid(datum.low)"}] and "transform" not in second
    assert second["encoding"]["y"] == {"field": "name", "type": "nominal"} and "x2" not in second["encoding"]
    assert selected["params"] == [{"name": "zoom", "views": [first["name"]]}]
    two = layered([ends, MarkLayer("rows1").mark("point")], [], 100, 50)
    assert "data" not in two and [layer["data"]["name"] for layer in two["layer"]] == ["rows0", "rows1"]


def test_text_from_data_is_data():
    """Nothing but rows, axis titles and the domains of scales may hold a name: no expression, field or markup."""

    def visit(node: object, path: tuple[str, ...]) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                assert ATTACK not in str(key), path
                visit(value, (*path, key))
        elif isinstance(node, list):
            for value in node:
                visit(value, path)
        elif isinstance(node, str) and "alert" in node:
            assert "datasets" in path or path[-1] in ("domain", "title"), path

    for chart in every_kind(ATTACK):
        visit(chart.specification, ())
        assert not set("<>&\u2028") & set(pack(chart.specification))
        selected = render.page_svg(chart)
        assert "<script" not in selected and "&lt;script&gt;" in selected


def test_every_point_has_a_row_with_its_interval_and_a_tooltip():
    estimate = Estimate(0.5, 0.4, 0.6, 60, 30)
    points = [
        Point(0, 0),
        Point(1, 0.5, 0.4, 0.6, label="DPO", tooltip=estimate_tooltip("gain", estimate) | {"seed": "3"}),
    ]
    chart = frontier([Series("gold", points)], title="t", x_label="√KL", y_label="gain", origin=True)
    (mark,) = layers(chart, "point")
    assert [(row["x"], row["y"]) for row in rows(chart, mark)] == [(0, 0), (1, 0.5)]
    first, second = said(chart, mark)
    assert second == {
        **{"series": "gold", "gain": "0.500", "95 % interval": "0.400 to 0.600"},
        **{"n": "60", "prompts": "30", "seed": "3", "√KL": "–"},
    }
    assert first["√KL"] == "0.00" and first["n"] == "–"
    assert [row["word"] for row in rows(chart, layers(chart, "text")[-1])] == ["DPO"]


@pytest.mark.parametrize("positions", [[0, 1], [0, 1, 2], [1, 2]])
def test_an_axis_of_positions_has_each_whole_number_once(positions):
    points = [Point(position, 1) for position in positions]
    chart = frontier([Series("a", points)], title="t", x_label="policy", y_label="y", integers=True)
    selected = render.page_svg(chart)
    axis = re.findall(r"role-axis-label.*?</g>", selected, re.DOTALL)[0]
    assert re.findall(r"<text[^>]*>([^<]*)</text>", axis) == [str(position) for position in positions]


def test_whiskers_need_both_bounds():
    points = [Point(0, 1, 0.5, 1.5), Point(1, 1, -math.inf, math.inf), Point(2, 1)]
    svg = render.page_svg(frontier([Series("a", points)], title="t", x_label="x", y_label="y"))
    assert svg.count('stroke-width="1.3"') == 1 and "NaN" not in svg and "Infinity" not in svg


def test_nan_breaks_a_line_and_a_lone_point_is_marked():
    points = [Point(0, 1), Point(1, 2), Point(2, math.nan), Point(3, 1), Point(4, 2), Point(5, math.nan), Point(6, 1)]
    chart = curves([Series("loss", points)], title="loss")
    (line,) = layers(chart, "line")
    assert [row["y"] for row in rows(chart, line)] == [1, 2, None, 1, 2, None, 1]
    (path,) = re.findall(r'aria-label|d="(M[^"]+)" stroke="#3a60ab"', render.page_svg(chart))
    assert path.count("M") == 3
    (mark,) = layers(chart, "point")
    assert [row["x"] for row in rows(chart, mark)] == [6]


def test_dots_show_levels_runs_and_the_baseline():
    known, unknown = seed_mean([1.0, 2.0, 3.0]), seed_mean([2.0])
    levels = [
        Level("a", known, [1, 2, math.nan], True, run_names=["seed 0", "seed 1", "seed 2"], units="seeds"),
        Level("b", unknown, [2]),
        Level("c", seed_mean([])),
    ]
    chart = dot_chart(levels, title="t", x_label="gold")
    runs, means = layers(chart, "circle")[0], layers(chart, "point")[0]
    assert said(chart, runs)[0] == {"level": "a", "run": "seed 0", "gold": "1.00"}
    assert len(rows(chart, runs)) == 3
    assert said(chart, means)[0]["seeds"] == "3" and said(chart, means)[1]["seeds"] == "–"
    whiskers, baseline = layers(chart, "rule")
    assert rows(chart, baseline) == [{"x": 2.0}]
    assert ["low" in row for row in rows(chart, whiskers)] == [True, False]
    assert rows(chart, layers(chart, "text")[0]) == [{"name": "c", "word": "no result"}]


def test_a_huge_interval_leaves_room_for_the_values():
    wild = Estimate(0.5, -300.0, 300.0, 2, 2)
    chart = dot_chart([Level("a", wild, [0.4, 0.6])], title="t", x_label="x")
    low, high = layers(chart, "rule")[0]["encoding"]["x"]["scale"]["domain"]
    assert -1 < low < 0.4 < 0.6 < high < 2
    assert all(layer["mark"]["clip"] for layer in layers(chart, "rule")[:1])


def test_levels_of_one_name_have_rows_of_their_own():
    assert unique(["a", "b", "a"]) == ["a", "b", "a (2)"]
    chart = dot_chart([Level("a", seed_mean([1.0])), Level("a", seed_mean([2.0]))], title="t", x_label="x")
    assert len({row["name"] for row in rows(chart, layers(chart, "point")[0])}) == 2


def test_labels_avoid_one_another_and_the_frame():
    labels = [TextLabel(0, 0, "SFT"), TextLabel(0.95, 0.9, "iteration 2"), TextLabel(1.0, 0.95, "iteration 3")]
    placed = place_labels(labels, (-0.1, 1.1), (-0.1, 1.1), height=230)
    assert [label.text for label, _, _ in placed] == ["SFT", "iteration 2", "iteration 3"]
    boxes = []
    for label, dx, dy in placed:
        x, y = (label.x + 0.1) / 1.2 * NARROW + dx, (1.1 - label.y) / 1.2 * 230 + dy
        left = x if dx > 0 else x - 6 * len(label.text)
        boxes.append((left, y - 6, left + 6 * len(label.text), y + 6))
    for index, box in enumerate(boxes):
        assert box[0] >= 0 and box[2] <= NARROW
        for other in boxes[index + 1 :]:
            assert box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]


@pytest.mark.skipif(shutil.which("rsvg-convert") is None, reason="rsvg-convert is not installed (librsvg2-bin)")
@pytest.mark.parametrize("kind", [0, 1, 3, 4])
def test_other_viewers_draw_the_same_figure(tmp_path: Path, kind: int):
    chart = every_kind()[kind]
    svg, png = render.plot_files(chart)
    (tmp_path / "plot.svg").write_text(svg, encoding="utf-8")
    scale = str(render.PNG_SCALE)
    command = ["rsvg-convert", "-z", scale, "-b", "white", "plot.svg", "-o", "rsvg.png"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    theirs = decode_png((tmp_path / "rsvg.png").read_bytes()).astype(int)
    ours = decode_png(png).astype(int)
    assert np.abs(np.subtract(theirs.shape, ours.shape)).max() <= 2
    height, width = (min(a, b) for a, b in zip(theirs.shape[:2], ours.shape[:2], strict=True))
    # Fonts and smoothing differ: blocks of 8 × 8 pixels are compared.
    blocks = [
        image[: height // 8 * 8, : width // 8 * 8].reshape(height // 8, 8, width // 8, 8, 3).mean(axis=(1, 3))
        for image in (theirs, ours)
    ]
    assert np.abs(blocks[0] - blocks[1]).mean() < 6
    saturation = [(block.max(axis=2) - block.min(axis=2) > 12).mean() for block in blocks]
    assert saturation[1] > 0.005 and saturation[0] == pytest.approx(saturation[1], rel=0.2), "lines and colours"


def test_span_is_never_empty():
    assert span([math.nan, math.inf, None]) == (0.0, 1.0)
    assert span([2.0, 2.0]) == (1.8, 2.2)
    assert span([0.0, 10.0], pad=0.1) == (-1.0, 11.0)


def test_numbers_read_well():
    assert compact(Estimate(-0.7064, -0.8314, -0.5814, 60, 30)) == "−0.71 ±0.12"
    assert compact(Estimate(-0.004, -0.5, 0.492, 9, 9)) == "0.00 ±0.50"
    assert compact(Estimate(1.5, -math.inf, math.inf, 0, 0)) == "1.50"
    assert compact(math.nan) == "–" and compact(12345.6) == "12346"
    # Rounding comes first: 0.99999 has as many digits as 1.
    assert compact(0.99999) == "1.00" and compact(-9.9999) == "−10.0" and compact(0.994) == "0.994"
    assert compact(Estimate(1.0, 0.90001, 1.09999, 9, 9)) == "1.00 ±0.10"
    assert signed(Estimate(0.25, 0.05, 0.45, 9, 9)) == "+0.25 ±0.20"
    assert [p_text(p) for p in (0.0004, 0.034, 0.34, math.nan)] == ["< 0.001", "0.034", "0.34", "–"]


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


def test_forms_lead_to_words_that_are_there():
    assert set(FORMS.values()) <= set(GLOSSARY)
    assert meaning("Gold reward") == GLOSSARY["gold"] and meaning("KL,\u00a0nats") == GLOSSARY["kl"]
    assert meaning("policy") == ""


def test_a_term_is_escaped_and_can_have_the_focus():
    assert term("lead") == f'<abbr tabindex="0" title="{GLOSSARY["lead"]}">lead</abbr>'
    assert term("<b>") == "&lt;b&gt;" and term("x", '"><i>') == '<abbr tabindex="0" title="&#34;&gt;&lt;i&gt;">x</abbr>'
