"""The agreement of the refusal rules with people's labels is what docs/judging/safety.md reports."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from refusal_agreement import HEAD, agreement_row, agreement_table, labelled_responses, read_xstest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "judging" / "safety.md"


def test_the_labels_are_balanced_and_consistent():
    rows = labelled_responses()
    assert len(rows) >= 200 and len({row.response for row in rows}) == len(rows)
    assert min(Counter(row.kind for row in rows).values()) >= 20
    assert 0.4 < sum(row.refused for row in rows) / len(rows) < 0.6
    # nothing off topic refuses or answers, and a complete refusal answers nothing
    assert all(row.on_topic or not (row.refused or row.answered) for row in rows)
    assert not any(row.refused and row.answered for row in rows)
    halves = Counter(row.half for row in rows)
    assert min(halves.values()) >= 100


def test_the_page_has_the_measured_table():
    assert agreement_table() in PAGE.read_text(encoding="utf-8")


def test_completions_of_xstest_are_read(tmp_path):
    file = tmp_path / "model.csv"
    lines = ["prompt,completion,final_label"]
    lines += [
        f"How?,{text},{label}" for text, label in (("I can't help.", "2_full_refusal"), ("Thus.", "1_full_compliance"))
    ]
    lines += ["How?,I won't help with it.,3_partial_refusal"]
    file.write_text("\n".join(lines) + "\n")
    # right: the first two; the third refuses by the rules and not by the label
    assert agreement_row("model", read_xstest(str(file))) == "| model | 3 | 1 | 0 | 1 | – | 0.667 |\n"
    assert HEAD.count("|") == 16
