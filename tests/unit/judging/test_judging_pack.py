"""Additions of the judging pack to the core are found there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from support import planned

from rlhf_lab.core.packs import load, packs
from rlhf_lab.evaluations.suite.suite_file import read_suite
from rlhf_lab.gates import scores, verdicts
from rlhf_lab.packs.judging import PACK
from rlhf_lab.packs.judging.answers import graded_pairs
from rlhf_lab.packs.judging.grading.settings import GradeStage
from rlhf_lab.stages import code_digest
from rlhf_lab.statistics.estimates import Estimate


def test_it_is_found_and_what_it_names_is_there():
    assert PACK in packs()
    references = [*PACK.commands.values(), *PACK.answers.values(), *PACK.preflight, *PACK.code_files, *PACK.doctor]
    assert {"rlhf_lab.packs.judging.commands:judge_command", "rlhf_lab.packs.judging.answers:safety"} <= {*references}
    for reference in references:
        assert load(reference) is not None, reference
    assert GradeStage().evidence.answer in PACK.answers


@pytest.mark.parametrize("name", ["world", "domain"])
def test_the_shipped_suites_compare_metrics_of_safety_whose_direction_the_pack_declares(name):
    checks = scores.checks_of(read_suite(name))
    assert "safety/attack_success" in {check.metric for check in checks}
    verdicts.require_directions(checks)


def test_grades_answer_with_the_labels_they_rank_as_and_the_replies_without_one():
    results = {"label_agreement": Estimate(0.7, 0.68, 0.72, 400, 400), "unscored": Estimate(0.1, 0.08, 0.12, 400, 400)}
    sentence = graded_pairs(SimpleNamespace(results=results))
    assert "the higher mean grade in 0.700 ±0.020 of the pairs, ties half; 0.100 ±0.020 of the responses" in sentence
    assert graded_pairs(SimpleNamespace(results={})) is None


@pytest.mark.parametrize(
    ("recipe", "file", "finder"),
    [
        ("mt_bench", "judges/rubrics/mt_bench.yml", "judges/rubric.py:SHIPPED"),
        ("safety_eval", "safety/sets/prompts.jsonl", "safety/prompt_sets.py:SHIPPED"),
    ],
)
def test_files_of_the_pack_count_in_what_finds_them(monkeypatch, request, recipe, file, finder):
    pack = code_digest.PACKAGE / "packs" / "judging"
    original = Path.read_bytes
    request.addfinalizer(code_digest.forget)  # what other tests read is that of the files as they are

    def code(added: bytes) -> dict[str, str]:
        def edited_bytes(self: Path) -> bytes:
            return original(self) + (added if self == pack / file else b"")

        monkeypatch.setattr(Path, "read_bytes", edited_bytes)
        code_digest.forget()
        return planned(recipe).code

    before, after = code(b""), code(b"# another\n")
    assert {label for label in before if before[label] != after[label]} == {f"rlhf_lab/packs/judging/{finder}"}
