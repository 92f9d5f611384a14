"""Columns are proposed by what their names say: never one for the opposite role, and always in a form to paste."""

from __future__ import annotations

import re
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rlhf_lab.config.overrides import literal
from rlhf_lab.data.file_settings import Pairs
from rlhf_lab.data.pairs import parse_row
from rlhf_lab.data.roles import role_of
from rlhf_lab.data.rows import RowProblem


def problem(*names):
    with pytest.raises(RowProblem) as caught:
        parse_row(dict.fromkeys(names, "text"), Pairs(path="x"))
    return str(caught.value)


def proposed(message):
    """The settings behind "Then write", read as a shell and then Hydra read them."""
    line = re.search(r"Then write (.*)$", message)[1]
    parser = OverridesParser.create()
    overrides = [parser.parse_override(word) for word in shlex.split(line)]
    return {override.key_or_group: override.value() for override in overrides}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("question", "good answer", "bad answer"), ("question", "good answer", "bad answer")),
        (("question (?)", "it's better", 'the "worse" one'), ("question (?)", "it's better", 'the "worse" one')),
        (("instruction", "winner", "loser"), ("instruction", "winner", "loser")),
        (("query", "preferred", "not_preferred", "chosen_model"), ("query", "preferred", "not_preferred")),
        (("prompt_text", "choosen", "unchosen", "chosen_score"), ("prompt_text", "choosen", "unchosen")),
    ],
)
def test_the_whole_set_is_proposed_and_reads_back(names, expected):
    found = proposed(problem(*names))
    assert found == dict(zip(("data.prompt", "data.chosen", "data.rejected"), expected, strict=True))


def test_only_what_is_missing_is_proposed():
    text = problem("prompt", "choosen", "rejected")
    assert text.endswith("did you mean 'choosen'? Then write data.chosen=choosen")


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (("prompt", "bad answer"), "write data.chosen=COLUMN 'data.rejected=\"bad answer\"', where"),
        (("prompt", "response_a", "response_b"), "write data.chosen=COLUMN data.rejected=COLUMN, where"),
        (("prompt", "good", "better", "bad"), "write data.chosen=COLUMN data.rejected=bad, where"),
        (("chosen", "rejected"), "write data.prompt=COLUMN (or data.prompt= if both sides are full conversations)"),
    ],
)
def test_what_is_not_certain_is_left_to_the_reader(names, line):
    text = problem(*names)
    assert line in text and "did you mean" not in text
    if "data.chosen=COLUMN" in line:
        assert "data.chosen is the preferred response" in text


@pytest.mark.parametrize("name", ["rejected", "bad", "worse answer", "non-chosen", "unpreferred", "less_preferred"])
def test_a_rejected_reply_is_never_the_chosen_one(name):
    assert role_of(name) == "rejected"


@pytest.mark.parametrize("name", ["good_or_bad", "not bad", "chosen_id", "better_prompt", "chosen_rating", "x"])
def test_an_unclear_name_has_no_role(name):
    assert role_of(name) is None


@pytest.mark.parametrize(
    "text",
    ["good answer", "a,b", 'say "x"', "it's", "a\\", 'a\\"b', "fragé", "", "0", "true", "1e-4", "n:train[:10%]", "{}"],
)
def test_text_is_quoted_where_the_grammar_needs_it(text):
    parser = OverridesParser.create()
    for value in (text, [text, "b"], {"k": text}):
        assert parser.parse_override(f"key={literal(value)}").value() == value
