"""MBPP's two forms as prompts with hidden tests: what is shown, what runs before the tests, and a grade."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import checked

from rlhf_lab.config.registry import build
from rlhf_lab.core.errors import DataError
from rlhf_lab.data.transcript import to_conversation
from rlhf_lab.packs.code.mbpp.settings import MBPP
from rlhf_lab.packs.code.rewards.code_tests import hidden_tests, make
from rlhf_lab.packs.code.rewards.settings import CodeTests
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

TESTS = ["assert area(2) == 4", "assert area(3) == 9", "assert area(0) == 0", "assert isclose(area(1.5), 2.25)"]
FULL = {
    "task_id": 11,
    "text": "Write a function to find the area of a square.",
    "code": "def area(a):\r\n  return a * a",
    "test_list": TESTS,
    "test_setup_code": "from math import isclose",
    "challenge_test_list": [],
}
SANITIZED = {
    "source_file": "x.ipynb",
    "task_id": 12,
    "prompt": "Write a function to find the area of a rectangle.",
    "code": "def area(a, b=1):\n    return a * b",
    "test_imports": ["import math", "from math import isclose"],
    "test_list": ["assert isclose(area(2, 3), 6)", "assert area(math.e) == math.e"],
}


def corpus_of(tmp_path: Path, train: list[dict], test: list[dict], *overrides: str):
    paths = []
    for name, rows in (("train", train), ("test", test)):
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = (f"data.path={paths[0]}", f"data.test_path={paths[1]}")
    return build("data", checked("sft", "data=mbpp", *files, *overrides).data)


def test_both_forms_become_prompts_with_their_first_tests(tmp_path):
    corpus = corpus_of(tmp_path, [FULL], [SANITIZED])
    (pair,) = corpus.train
    question = to_conversation(pair.prompt).messages[0]["content"]
    shown = "\n".join(TESTS[:3])
    assert question == f"{FULL['text']}\n\nYour code should pass these tests:\n\n{shown}"
    assert pair.chosen == "def area(a):\n  return a * a"
    assert set(corpus.metadata[pair.prompt]) == {"task_id", "test_list", "test_setup_code", "challenge_test_list"}
    (other,) = corpus.test
    assert SANITIZED["prompt"] in other.prompt and SANITIZED["test_list"][1] in other.prompt
    (bare,) = corpus_of(tmp_path, [FULL], [SANITIZED], "data.shown_tests=0").train
    assert to_conversation(bare.prompt).messages[0]["content"] == FULL["text"]


def test_setup_code_runs_before_the_tests():
    assert hidden_tests(FULL, "").setup == "from math import isclose"
    assert hidden_tests(SANITIZED, "").setup == "import math\nfrom math import isclose"
    assert hidden_tests({"test_list": ["assert f(1)"]}, "x = 1").setup == "x = 1"
    with pytest.raises(DataError, match="column test_imports is 7"):
        hidden_tests({**SANITIZED, "test_imports": 7}, "")


def test_solutions_pass_and_wrong_ones_fail(tmp_path, best):
    corpus = corpus_of(tmp_path, [FULL], [SANITIZED])
    verifier = make(CodeTests(), Sandboxing(level=best.level, timeout_s=10.0))
    responses = []
    for pair in (*corpus.train, *corpus.test):
        metadata = corpus.metadata[pair.prompt]
        wrong = pair.chosen.replace("*", "+")
        responses += [(metadata, pair.prompt, text) for text in (pair.chosen, f"```python\n{pair.chosen}\n```", wrong)]
    assert [verdict.score for verdict in verifier.verdicts(responses)] == [1, 1, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_list": "assert area(2) == 4"}, "column 'test_list' is .*expected a list of assertions"),
        ({"test_list": [1]}, "column 'test_list' is"),
        ({"code": None}, "column 'code' is null"),
    ],
)
def test_rows_of_another_form_are_refused(tmp_path, changed, message):
    with pytest.raises(DataError, match=message):
        corpus_of(tmp_path, [{**FULL, **changed}], [SANITIZED])


def test_rows_without_a_task_or_tests_are_dropped(tmp_path):
    corpus = corpus_of(tmp_path, [FULL, {**FULL, "text": " "}, {**FULL, "test_list": []}], [SANITIZED])
    assert len(corpus.train) == 1
    assert {"empty task", "no tests"} <= set(corpus.report["train"].dropped)


def test_the_reward_reads_it():
    words = ("data=mbpp", "reward=code_tests", "needs.reward=null", "needs.policy=owner/model")
    config = checked("grpo", *words)
    assert config.reward.terms["code_tests"] and isinstance(config.data, MBPP)
