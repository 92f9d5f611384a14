"""A few rows of a source, for checks before a run: no network, nobody's environment, no whole file or world."""

from __future__ import annotations

import json

import pytest
from support import toy_rows, write_pairs

from rlhf_lab.core.errors import DataError
from rlhf_lab.data.few import few_rows
from rlhf_lab.data.file_settings import ForeignEnvironment, Pairs
from rlhf_lab.data.settings import Mix
from rlhf_lab.data.world_settings import ArithmeticData


def test_a_file_is_read_up_to_the_few_rows(tmp_path):
    """16 rows per split; with a tenth held out the 2,000th row is far behind the last one that is needed."""
    file = write_pairs(tmp_path / "rows.jsonl", toy_rows(2000))
    with file.open("a") as rows:
        rows.write("no JSON\n")
    corpus = few_rows(Pairs(path=str(file)))
    assert corpus is not None and (len(corpus.train), len(corpus.test)) == (16, 16)


def test_a_world_is_drawn_small_alone_and_in_a_mix(tmp_path):
    corpus = few_rows(ArithmeticData())
    assert corpus is not None and len(corpus.train) == 16
    file = tmp_path / "sums.jsonl"
    rows = [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(400)]
    file.write_text("\n".join(map(json.dumps, rows)))
    mixed = few_rows(Mix(sources={"world": {"kind": "arithmetic"}, "file": {"kind": "gsm8k", "path": str(file)}}))
    assert mixed is not None and len(mixed.train) <= 16 and mixed.answers


def test_what_has_no_file_here_is_left_alone_or_named(tmp_path):
    assert few_rows(Pairs(path="owner/name")) is None
    assert few_rows(Mix(sources={"hub": {"kind": "pairs", "path": "owner/name"}})) is None
    assert few_rows(ForeignEnvironment(style="verifiers", environment="name")) is None
    with pytest.raises(DataError, match="there is no such file"):
        few_rows(Pairs(path=str(tmp_path / "rows.jsonl")))
