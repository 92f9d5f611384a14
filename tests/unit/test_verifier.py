"""The verifiable reward: what an answer is worth, when it abstains, and which data it needs."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked, planned, prompt_text, said

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.arithmetic import build as build_corpus
from rlhf_lab.data.world_settings import ArithmeticData
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.rules.settings import VerifierTerm
from rlhf_lab.training.run import Run

ANSWERS = {"p": "7", "q": "1000"}
REPLIES = ("#### 7", "3 + 4 = 8\n#### 8", "it is 7", "")


def reward(answers=ANSWERS, **settings):
    run = SimpleNamespace(corpus=Corpus("planted", [], [], "0", answers=answers))
    return registry.build("reward", VerifierTerm(**settings), run)


def test_the_right_answer_has_its_value_and_everything_else_another():
    batch = reward()(["p"] * 4, REPLIES)
    assert batch.total_N.tolist() == [1, 0, 0, 0]
    assert batch.total_N.dtype == np.float64
    assert {name: values.tolist() for name, values in batch.parts.items()} == {
        "correct": [1, 0, 0, 0],
        "format": [0, 0, 0, 0],
    }
    batch = reward(right=2.0, wrong=-1.0, format_bonus=0.25)(["p"] * 4, REPLIES)
    assert batch.parts["correct"].tolist() == [2, -1, -1, -1]
    assert batch.parts["format"].tolist() == [0.25, 0.25, 0, 0]
    assert batch.total_N.tolist() == [2.25, -0.75, -1, -1]
    responses = ["it is 7", r"\boxed{7} or 8", "#### 8, not 7", "none"]
    assert reward()(["p"] * 4, responses).total_N.tolist() == [0, 0, 0, 0]
    assert reward(lenient=True)(["p"] * 4, responses).total_N.tolist() == [1, 1, 0, 0]


def test_an_unknown_prompt_is_unscored_and_counted():
    wrapped = CheckedReward("verifier", reward())
    total = wrapped(said(["p", "unknown"], ["#### 7", "#### 7"])).total_N
    assert total[0] == 1 and math.isnan(total[1])
    assert (wrapped.scored, wrapped.abstained) == (1, 1)


def test_it_agrees_with_the_oracle_of_the_arithmetic_world():
    corpus = build_corpus(ArithmeticData(train_problems=200, test_problems=20))
    prompts = [pair.prompt for pair in corpus.train] * 2
    responses = [pair.chosen for pair in corpus.train] + [pair.rejected for pair in corpus.train]
    scores = reward(corpus.answers)(prompts, responses).total_N
    assert (scores == corpus.oracle.measure(prompts, responses)["correct"]).all()
    assert 0.3 < scores.mean() < 0.5


def test_data_without_answers_are_refused_before_anything_loads():
    with pytest.raises(ConfigError, match=r"reward=verifier needs answers that can be checked.*data=arithmetic"):
        checked("dpo_iterative", "reward=verifier")
    assert checked("sft", "reward=verifier", "data=gsm8k", "data.path=owner/name").reward.terms == {
        "verifier": VerifierTerm()
    }


def test_a_verifier_needs_no_reward_model():
    stage = planned("dpo_iterative", "reward=verifier", "data=arithmetic_small", "needs.baseline=null")
    assert list(stage.needs) == ["policy"]
    assert stage.key != planned("dpo_iterative", "reward=bt", "data=arithmetic_small", "needs.baseline=null").key


def test_the_version_of_the_world_is_part_of_a_stage(monkeypatch):
    before = planned("sft", "data=arithmetic_small").key
    monkeypatch.setattr("rlhf_lab.environments.arithmetic.world.VERSION", 99)
    assert planned("sft", "data=arithmetic_small").key != before


FORMS = [
    ("#### 42", "42", True, True),
    (r"\boxed{42}", "42", False, True),
    (r"so \boxed{43}, no: $\boxed{42}$.", "42", False, True),
    (r"\boxed{\frac{2}{3}}", "2/3", False, True),
    (r"\boxed{\frac{3}{2}}", "2/3", False, False),
    ("42, or rather 41", "42", False, False),
    (r"#### 42 but \boxed{7}", "42", True, True),
    (r"#### 7 but \boxed{42}", "42", False, False),
    ("#### 0.5", "1/2", True, True),
    ("no number", "42", False, False),
    ("", "42", False, False),
]
"""Response, answer key, and correctness of the response, read strictly and leniently."""


@pytest.mark.parametrize("lenient", [False, True])
def test_the_metric_judges_answers_as_the_verifier_does(tmp_path, lenient):
    rows = [json.dumps({"question": f"Question {i}?", "answer": f"#### {form[1]}"}) for i, form in enumerate(FORMS * 2)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    data = ("data=gsm8k", f"data.path={tmp_path / 'rows.jsonl'}", "data.test_fraction=0.2", "model=micro")
    config = checked("grpo_math", *data, f"reward.terms.verifier.lenient={lenient}")
    run = Run(directory=tmp_path, config=config, needs={})
    prompts = [prompt_text(f"Question {i}?") for i in range(len(FORMS))]
    responses = [response for response, *_ in FORMS]
    expected = [float(forms[3 if lenient else 2]) for forms in FORMS]
    rewarded = registry.build("reward", config.reward.terms["verifier"], run)(prompts, responses).total_N
    counted = run.corpus.oracle.measure(prompts, responses)["correct"]
    assert rewarded.tolist() == expected
    assert counted.tolist() == expected


@pytest.mark.parametrize("lenient", [False, True])
def test_so_does_the_metric_of_the_arithmetic_world(tmp_path, lenient):
    config = checked("grpo_math", "data=arithmetic_small", "model=micro", f"reward.terms.verifier.lenient={lenient}")
    run = Run(directory=tmp_path, config=config, needs={})
    verifier = registry.build("reward", config.reward.terms["verifier"], run)
    prompt, answer = next(iter(run.corpus.answers.items()))
    responses = [f"#### {answer}", rf"\boxed{{{answer}}}", f"It is {answer}.", f"{answer} or 99999", ""]
    expected = [1, lenient, lenient, 0, 0]
    assert verifier([prompt] * 5, responses).total_N.tolist() == expected
    assert run.corpus.oracle.measure([prompt] * 5, responses)["correct"].tolist() == expected
    assert run.corpus.oracle.measure([prompt], [responses[1]])["sound"].tolist() == [0]


def test_a_reward_that_nothing_reads_does_not_change_the_metric(tmp_path):
    """Supervised training has no reward: the section is not part of its identity, so not of its results."""
    reward = ("reward=verifier", "reward.terms.verifier.lenient=true")
    config = checked("sft", "data=arithmetic_small", "model=micro", *reward)
    run = Run(directory=tmp_path, config=config, needs={})
    prompt, answer = next(iter(run.corpus.answers.items()))
    assert run.corpus.oracle.measure([prompt], [f"It is {answer}."])["correct"].tolist() == [0]
