"""pass@k and maj@k of an evaluation: from rows to estimates, what each kind of data counts as one answer, settings."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support import checked

from rlhf_lab.config import schema, smoke
from rlhf_lab.core.errors import ConfigError, NumericError
from rlhf_lab.core.metrics import metric, undeclared
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.arithmetic import build as build_arithmetic
from rlhf_lab.data.file_settings import Verifiable
from rlhf_lab.data.gsm8k import AnswerKey
from rlhf_lab.data.world_settings import ArithmeticData
from rlhf_lab.evaluations.evaluator import Evaluator
from rlhf_lab.evaluations.repeated_samples import repeated_samples
from rlhf_lab.rewards.verifiers.math import MathVerifier
from rlhf_lab.rewards.verifiers.oracle import VerifierOracle
from rlhf_lab.rewards.verifiers.settings import Json, Math
from rlhf_lab.rewards.verifiers.verifier import verifier_of
from rlhf_lab.statistics.inference import clustered_fraction
from rlhf_lab.training.run_settings import Evaluation


def rows(*prompts):
    """(reply, correct) pairs of each prompt → rows of evaluation.jsonl."""
    return [
        {"prompt_id": i, "response": response, "correct": correct}
        for i, responses in enumerate(prompts)
        for response, correct in responses
    ]


RIGHT, WRONG, SILENT = ("#### 1.0", 1), ("#### 2", 0), ("no answer", 0)
PROMPTS = [[RIGHT, ("#### 1", 1), WRONG, SILENT], [WRONG, SILENT, SILENT, SILENT], [RIGHT] * 4]


def test_from_rows_to_estimates():
    """By prompt: pass@1 is 2/4, 0, 1; pass@2 is 1 − C(2, 2)/C(4, 2) = 5/6, 0, 1; maj@2 is 4/6, 0, 1."""
    metrics = repeated_samples(rows(*PROMPTS), [1, 2], AnswerKey({}))
    assert metrics["pass@1"].mean == pytest.approx((2 / 4 + 0 + 1) / 3)
    assert metrics["pass@2"].mean == pytest.approx((5 / 6 + 0 + 1) / 3)
    assert metrics["maj@1"].mean == pytest.approx(metrics["pass@1"].mean)
    assert metrics["maj@2"].mean == pytest.approx((4 / 6 + 0 + 1) / 3)
    assert {estimate.clusters for estimate in metrics.values()} == {3}
    assert not undeclared(metrics)
    assert metric("pass@2").better == metric("maj@2").better == "higher"


def test_unknown_outcomes_are_no_wrong_ones():
    """Right, wrong, unknown: pass@1 = 1/2, pass@2 = 1, and nothing for 3. A prompt with one known sample has no pass@2.

    maj@1 likewise: 1/2 and 1. Prompts without a value are unscored.
    """
    unknown = ("#### 1", None)
    metrics = repeated_samples(rows([RIGHT, WRONG, unknown], [RIGHT, unknown, unknown]), [1, 2, 3], AnswerKey({}))
    assert metrics["pass@1"].mean == metrics["maj@1"].mean == (1 / 2 + 1) / 2
    assert metrics["pass@2"].mean == 1.0 and (metrics["pass@2"].n, metrics["pass@2"].unscored) == (1, 1)
    assert np.isnan(metrics["pass@3"].mean) and metrics["pass@3"].unscored == 2


def test_unknown_outcomes_are_no_trials():
    """Two prompts with 1/2 each, of two known samples: Wilson of ½ with n = 4 and z² = 3.841459 is ½ ± .349962,

    √(3.841459·(.25/4 + 3.841459/64))/(1 + 3.841459/4) = .686053/1.960365.
    """
    unknown = ("#### 1", None)
    metrics = repeated_samples(rows([RIGHT, WRONG, unknown], [unknown, RIGHT, WRONG]), [1], AnswerKey({}))
    found = metrics["pass@1"]
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.150038, 0.849962), abs=1e-6)


def test_nothing_to_measure():
    assert repeated_samples(rows(*PROMPTS), [], AnswerKey({})) == {}
    unknown = rows([("a", None), ("b", None)])
    assert repeated_samples(unknown, [1], None) == {}
    assert set(repeated_samples(rows(*PROMPTS), [1], None)) == {"pass@1"}  # nobody reads answers


@pytest.mark.parametrize(("responses", "noted"), [(("it is 7", "eight"), 1), (("it is 7", "#### 8"), 0)])
def test_a_run_notes_that_no_response_states_an_answer(responses, noted):
    notes = []
    data = SimpleNamespace(oracle=AnswerKey({"p": "7"}))
    evaluator = Evaluator.__new__(Evaluator)
    config = SimpleNamespace(data=Verifiable(path="x"), verifier=None)
    evaluator.run = SimpleNamespace(data=data, config=config, note=notes.append)
    evaluator._note_unread_answers("SFT", [{"response": response} for response in responses])
    assert len(notes) == noted and all("data.verifier=math also reads" in note for note in notes)
    evaluator.run.config.data = ArithmeticData()  # a world has no data.verifier that could be chosen
    evaluator._note_unread_answers("SFT", [{"response": "it is 7"}])
    assert len(notes) == noted


def test_a_run_that_reads_answers_as_mathematics_is_not_told_to_do_so():
    notes = []
    evaluator = Evaluator.__new__(Evaluator)
    config = SimpleNamespace(data=Verifiable(path="x"), verifier=Math())
    oracle = VerifierOracle(MathVerifier(Math()), {})
    evaluator.run = SimpleNamespace(data=SimpleNamespace(oracle=oracle), config=config, note=notes.append)
    evaluator._note_unread_answers("SFT", [{"response": "seven"}])
    assert len(notes) == 1 and "\\boxed" in notes[0] and "data.verifier" not in notes[0]


def test_what_counts_as_one_answer():
    answers = AnswerKey({}).read_answers(["#### 0.50", "#### 1/2", "it is 3", "#### 1,000"])
    assert answers == ["1/2", "1/2", None, "1000"]
    assert AnswerKey({}, lenient=True).read_answers(["it is 3"]) == ["3"]
    words = AnswerKey({"p": "Paris", "q": "7"})
    assert words.read_answers(["#### Paris.", "#### paris", "#### 7.0", "Paris"]) == ["paris", "paris", "7", None]
    world = build_arithmetic(ArithmeticData(train_problems=4, test_problems=4)).oracle
    assert world.read_answers(["#### 07", "7"]) == ["7", None]
    assert world.leniently().read_answers(["it is 7"]) == ["7"]
    exact = MathVerifier(Math(equivalence="exact"))
    assert [exact.read_answer(response) for response in (r"\boxed{50\%}", "#### 50", r"\boxed{X + 1}", "x")] == [
        "50", "50", "x+1", None,
    ]  # fmt: skip
    corpus = Corpus("planted", [], [], "0")
    assert VerifierOracle(exact, corpus).read_answers(["#### 5"]) == ["5"]
    assert VerifierOracle(verifier_of(Json(), None), corpus).read_answers(["{}"]) is None


def test_settings():
    with pytest.raises(ConfigError, match=r"pass_at=\[1, 8\] needs at least 8 samples per prompt; set samples_per_"):
        Evaluation(pass_at=(1, 8))
    with pytest.raises(ConfigError, match=r"evaluation.pass_at=\[1, 4\] needs responses that can be verified"):
        checked("grpo", "evaluation.pass_at=[1,4]")
    assert checked("grpo_math", "evaluation.pass_at=[1,4]").evaluation.pass_at == (1, 4)


def test_at_smoke_size_only_what_its_samples_allow():
    values = dict(schema.to_plain_values(checked("grpo_math").evaluation))
    values |= {"samples_per_prompt": 8, "pass_at": [1, 2, 8]}
    composed = {"size": "smoke", "evaluation": values, "model": {"kind": "scratch"}, "data": {"kind": "arithmetic"}}
    shrunk = smoke._shrink_section(composed, "evaluation", "evaluation", [])
    assert (shrunk["samples_per_prompt"], shrunk["pass_at"]) == (2, [1, 2])
    written = smoke._shrink_section(composed, "evaluation", "evaluation", ["evaluation.pass_at"])
    assert written["pass_at"] == [1, 2, 8]


def test_none_of_the_prompts_solved_is_an_interval_above_zero():
    """Wilson with n* = G = 20 prompts and z = 1.96: z²/(G + z²) = 3.84/23.84 = .161; all solved, its mirror image."""
    none = repeated_samples(rows(*[[WRONG, WRONG]] * 20), [1, 2], AnswerKey({}))
    every = repeated_samples(rows(*[[RIGHT, RIGHT]] * 20), [1, 2], AnswerKey({}))
    for name in ("pass@1", "pass@2", "maj@2"):
        assert (none[name].low, none[name].high) == (0, pytest.approx(1.96**2 / (20 + 1.96**2), abs=1e-4))
        assert (every[name].low, every[name].high) == (pytest.approx(20 / (20 + 1.96**2), abs=1e-4), 1)
    with pytest.raises(NumericError, match="between 0 and 1"):
        clustered_fraction([0.5, 1.5], [0, 1], trials=2)


def test_the_interval_of_fractions_without_spread_counts_the_samples():
    """Every prompt at ½, 10 prompts of 4 samples: no spread, n* = 40, centre ½, half-width z/2·√(1/(40 + z²))."""
    estimate = clustered_fraction([0.5] * 10, range(10), trials=40)
    half_width = 1.96 / 2 * (1 / (40 + 1.96**2)) ** 0.5
    assert (estimate.low, estimate.high) == pytest.approx((0.5 - half_width, 0.5 + half_width), abs=1e-4)
