"""GAIA-Mini can be solved with its tools, and by nothing less."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.packs.agents.gaia import mini
from rlhf_lab.packs.agents.gaia.lenient import lenient_score
from rlhf_lab.packs.agents.gaia.official import official_score
from rlhf_lab.packs.agents.gaia.questions import GaiaQuestion

QUESTIONS = mini.mini_questions()
CALLS_OF_LEVEL = {1: range(1, 3), 2: range(3, 6), 3: range(6, 12)}
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def run_code(code: str) -> str:
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout


def test_ten_questions_of_each_level() -> None:
    assert Counter(question.level for question in QUESTIONS) == {1: 10, 2: 10, 3: 10}
    assert len({question.id for question in QUESTIONS}) == len({question.question for question in QUESTIONS}) == 30
    for question in QUESTIONS:
        assert len(question.steps) in CALLS_OF_LEVEL[question.level], question.id


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_the_annotated_steps_lead_to_the_gold_answer(question: GaiaQuestion) -> None:
    """A scripted agent that makes the calls through the tools gets gold out of their results.

    Addresses come from earlier results, and so do the numbers of sums, but for a few that the question implies.
    """
    calls, answer = mini.solve(question, run_code)
    assert official_score(answer, question.answer) and lenient_score(answer, question.answer)
    generated = [{"tool": call.name, "arguments": dict(call.arguments)} for call in calls]
    assert generated == list(question.steps), "the steps that a harness sees are those that lead to gold"
    seen = f"{question.question} twelve: 12; third: 3"
    for call in calls:
        if call.name == "open_page":
            assert call.arguments["url"] in seen, f"{question.id}: nothing leads to {call.arguments['url']}"
        if call.name == "calculator":
            for number in NUMBER.findall(call.arguments["expression"]):
                is_constant = number in ("1", "2", "7", "100")
                assert is_constant or number in seen, f"{question.id}: where is {number} from?"
        if call.name == "read_file":
            assert call.arguments["name"] in question.files
        seen += call.result


def test_no_question_is_answered_without_its_last_page() -> None:
    """The gold answer of a longer question stands in no result of its searches alone."""
    longer = [question for question in QUESTIONS if question.level == 3]
    assert len(longer) >= 5
    for question in longer:
        searches = [call for call in mini.solve(question, run_code)[0] if call.name == "search"]
        found = " ".join(call.result for call in searches)
        assert question.answer not in NUMBER.findall(found), question.id


def test_every_attachment_is_used_and_its_question_says_so() -> None:
    used = [name for question in QUESTIONS for name in question.files]
    assert sorted(used) == sorted(mini._read("files.yml")) and len(set(used)) == len(used)
    for question in QUESTIONS:
        assert ("attached" in question.question) == bool(question.files), question.id


def test_guesses_score_nothing_and_each_gold_answer_is_right_for_its_own_question_only() -> None:
    golds = [str(question.answer) for question in QUESTIONS]
    for guess in (
        None,
        "",
        "I cannot answer this.",
        "None",
        "0",
        "1",
        "42",
        "100",
        "yes",
        "A",
        "London",
        "2024",
        *golds,
    ):
        for score in (official_score, lenient_score):
            assert sum(score(guess, gold) for gold in golds) == (guess in golds), guess


def test_a_pattern_that_finds_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {name: dict(entry) for name, entry in mini._entries().items()}
    step = {"tool": "open_page", "arguments": {"url": "https://gazetteer.example/eil"}, "take": {"x": "no such text"}}
    entries["mini-1-01"]["steps"] = [step]
    monkeypatch.setattr(mini, "_entries", lambda: entries)
    with pytest.raises(ArtifactError, match=r"the result of open_page .*eil.* does not match 'no such text'"):
        mini.solve(QUESTIONS[0], None)
    step["arguments"] = {"url": "https://gazetteer.example/atlantis"}
    with pytest.raises(ArtifactError, match=r"mini-1-01: open_page .* failed: error: no page"):
        mini.solve(QUESTIONS[0], None)


def test_loading_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    mini.mini_questions.cache_clear()
    assert mini.mini_questions() == QUESTIONS


def test_the_facts_are_invented(package: Path) -> None:
    """Every page lies below a top-level domain that is reserved for examples (RFC 2606)."""
    text = (package / "packs/agents/gaia/fixtures/pages.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"https://[\w-]+\.(\w+)/", text)) == {"example"}
