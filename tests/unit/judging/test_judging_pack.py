"""What the pack adds to the core is found there."""

from __future__ import annotations

from types import SimpleNamespace

from rlhf_lab.core.packs import load, packs
from rlhf_lab.packs.judging import PACK
from rlhf_lab.packs.judging.grading import graded, settings


def test_it_is_found_and_what_it_names_is_there():
    assert PACK in packs()
    references = [*PACK.commands.values(), *PACK.answers.values(), *PACK.preflight, *PACK.code_files, *PACK.doctor]
    assert {"rlhf_lab.packs.judging.commands:judge_command", "rlhf_lab.packs.judging.answers:safety"} <= {*references}
    for reference in references:
        assert load(reference) is not None, reference


def test_rows_of_grades_name_a_reply_by_its_place():
    pairs = [SimpleNamespace(prompt="p", chosen="a", rejected="b")]
    rows = list(graded.replies_of("train", pairs, [0]))
    assert [(row.side, row.response) for row in rows] == [("chosen", "a"), ("rejected", "b")]
    assert settings.Grade().answer in PACK.answers
