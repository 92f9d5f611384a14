"""Graded replies in the form of HelpSteer2: pairing, marks between turns, ties, and what cannot be read."""

from __future__ import annotations

import numpy as np
import pytest
from support import write_jsonl as write

from rlhf_lab.config.registry import build
from rlhf_lab.core.errors import DataError
from rlhf_lab.data.file_settings import GradedData
from rlhf_lab.data.graded import ALONE, NO_QUESTION, TIED, transcript_of
from rlhf_lab.data.loading import UNREADABLE
from rlhf_lab.data.split_rows import IDENTICAL

ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")


def row(prompt, response, *grades):
    return {"prompt": prompt, "response": response, **dict(zip(ATTRIBUTES, grades, strict=True))}


def both(question, better=(4, 4, 4, 2, 2), worse=(1, 0, 3, 1, 0)):
    return [row(question, "the worse one", *worse), row(question, "the better one", *better)]


def load(path, **settings):
    return build("data", GradedData(path=str(path), test_fraction=0.5, **settings))


def pairs_of(corpus):
    return [*corpus.train, *corpus.test]


def test_two_rows_make_a_pair_that_keeps_its_grades(tmp_path):
    rows = [each for i in range(40) for each in both(f"Question {i}?")]
    corpus = load(write(tmp_path / "a.jsonl", rows))
    assert corpus.report["all"].kept == corpus.report["all"].rows == 40
    assert corpus.rubric.attributes == ATTRIBUTES
    assert (corpus.rubric.low, corpus.rubric.high) == (0, 4)
    for pair in pairs_of(corpus):
        assert (pair.chosen, pair.rejected) == ("the better one", "the worse one")
        assert pair.meta["grades_chosen"] == (4, 4, 4, 2, 2)
        assert pair.meta["grades_rejected"] == (1, 0, 3, 1, 0)
        assert pair.prompt.startswith("\n\nHuman: Question")
    assert corpus.rubric.shares(np.array((1, 0, 3, 1, 0))).tolist() == [0.25, 0, 0.75, 0.25, 0]


def test_every_row_is_accounted_for(tmp_path):
    rows = [each for i in range(20) for each in both(f"q{i}")]
    rows += [row("alone", "a", 4, 4, 4, 4, 4)]
    rows += both("tie", better=(2, 4, 4, 4, 4), worse=(2, 0, 0, 0, 0))
    rows += [row("same", "a", 4, 4, 4, 4, 4), row("same", "a", 0, 4, 4, 4, 4)]
    rows += both("a\n<extra_id_1>Assistant\nb")
    rows += both("bad grade", better=(5, 4, 4, 4, 4)) + both("q", better=(True, 4, 4, 4, 4))
    report = load(write(tmp_path / "a.jsonl", rows), max_bad_rows=2).report["all"]
    assert report.kept == 20
    assert report.dropped == {ALONE: 1, TIED: 1, IDENTICAL: 1, NO_QUESTION: 1, UNREADABLE: 2}
    assert report.rows == report.kept + sum(report.dropped.values())


def test_marks_between_turns_become_a_transcript():
    marked = "first\nline\n<extra_id_1>Assistant\nan answer\n<extra_id_1>User\nand then?"
    assert transcript_of(marked) == "\n\nHuman: first\nline\n\nAssistant: an answer\n\nHuman: and then?\n\nAssistant:"
    assert transcript_of("c#") == "\n\nHuman: c#\n\nAssistant:"
    assert transcript_of("\n\nHuman: hi\n\nAssistant:") == "\n\nHuman: hi\n\nAssistant:"
    assert transcript_of("q\n<extra_id_1>Assistant\na") is None


def test_other_columns_and_another_scale(tmp_path):
    rows = [
        {"question": f"q{i}", "text": text, "good": good, "short": 6 - good}
        for i in range(20)
        for text, good in (("a", 1), ("b", 5))
    ]
    settings = {"prompt": "question", "response": "text", "attributes": ("good", "short"), "low": 1.0, "high": 5.0}
    corpus = load(write(tmp_path / "a.jsonl", rows), rank_by="short", **settings)
    assert {pair.chosen for pair in pairs_of(corpus)} == {"a"}
    assert pairs_of(corpus)[0].meta["grades_chosen"] == (1, 5)
    with pytest.raises(DataError, match="'good' is a number 1; expected a grade 2…5"):
        load(write(tmp_path / "a.jsonl", rows), rank_by="short", **{**settings, "low": 2.0})


def test_other_grades_have_another_fingerprint(tmp_path):
    rows = [each for i in range(20) for each in both(f"q{i}")]
    other = [each for i in range(20) for each in both(f"q{i}", better=(3, 4, 4, 2, 2))]
    fingerprint = load(write(tmp_path / "a.jsonl", rows)).fingerprint
    assert load(write(tmp_path / "b.jsonl", rows)).fingerprint == fingerprint
    assert load(write(tmp_path / "c.jsonl", other)).fingerprint != fingerprint
    assert load(write(tmp_path / "a.jsonl", rows), streaming=True).fingerprint == fingerprint
