"""The rubric target, its loss and its weights, by hand; and the scores of a trained model's directory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, checked, planned

from rlhf_lab import load_reward
from rlhf_lab.algorithms.policy_gradient.ppo import build_critic
from rlhf_lab.algorithms.reward_models.rubric_rm import score_weights
from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Rubric
from rlhf_lab.losses.reward_model import squared_error
from rlhf_lab.models.build import load_encoder, load_reward_model
from rlhf_lab.rewards.learned.bt import SCALE_FILE
from rlhf_lab.rewards.learned.settings import BradleyTerry, RubricModel
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.run import Run

FIVE = Rubric(("helpfulness", "honesty", "harmlessness", "conciseness", "specificity"), 1.0, 5.0)


def test_the_scalar_target_is_sum_less_5_over_20():
    """Grades 5, 4, 3, 2, 1 sum to 15: (15 − 5)/20 = .5. All 1 is 0, where sum/25 would be .2."""
    grades = np.array([[5, 4, 3, 2, 1], [1, 1, 1, 1, 1], [5, 5, 5, 5, 5], [5, 5, 5, 1, 5]], dtype=float)
    target = FIVE.shares(grades) @ score_weights(None, FIVE)
    assert target == pytest.approx([0.5, 0, 1, 0.8])
    assert target == pytest.approx((grades.sum(axis=1) - 5) / 20)


def test_weights_by_hand():
    """2 helpfulness − 1 conciseness: weights 2/3 and −1/3; grades 5 and 4 are fractions 1 and .75."""
    weights = score_weights({"helpfulness": 2.0, "conciseness": -1.0}, FIVE)
    assert weights == pytest.approx([2 / 3, 0, 0, -1 / 3, 0])
    assert FIVE.shares(np.array([5, 1, 1, 4, 1.0])) @ weights == pytest.approx(2 / 3 - 0.75 / 3)
    with pytest.raises(ConfigError, match="names unknown attributes verbosity; the data grades helpfulness"):
        score_weights({"verbosity": 1.0}, FIVE)


def test_squared_error_per_reply_and_attribute():
    """(.5 − .25)² = .0625 and (0 − 1)² = 1: mean .53125. A full point of 1…5 is .25, and costs 1/16."""
    outputs = torch.tensor([[0.5, 0.0], [0.75, 0.75]], requires_grad=True)
    loss = squared_error(outputs, torch.tensor([[0.25, 1.0], [0.75, 0.75]]))
    assert loss.tolist() == [0.53125, 0]
    loss.sum().backward()
    assert outputs.grad.tolist() == [[0.25, -1.0], [0, 0]]  # 2·error/A
    assert squared_error(torch.tensor([[0.5]]), torch.tensor([[0.25]])).tolist() == [1 / 16]


@pytest.fixture(scope="module")
def attributes(policy: Path, tmp_path_factory) -> Path:
    """A model with five outputs, weighed 2 : −1, hardly trained."""
    out = tmp_path_factory.mktemp("attributes")
    more = ("algorithm.weights={helpfulness:2,conciseness:-1}", "algorithm.lr=1e-2", "algorithm.optimizer=adamw")
    stage = planned("attribute_rm", *SMALL_WORLD, *ONE_LAYER, *more, f"needs.policy={policy}", f"outputs={out}")
    execute(stage)
    return Path(stage.model)


def ask(run: Run) -> tuple[list[str], list[str]]:
    return [pair.prompt for pair in run.corpus.test], [pair.chosen for pair in run.corpus.test]


def run_with(needs: dict[str, str], directory: Path) -> Run:
    config = checked("ppo", *SMALL_WORLD, *ONE_LAYER, "reward=[bt,rubric]", "+needs.rubric=rubric_rm")
    return Run(directory, config, needs)


def test_bt_and_rubric_read_the_same_folder_alike(attributes, tmp_path):
    run = run_with({"reward": str(attributes), "rubric": str(attributes)}, tmp_path)
    as_bt = registry.build("reward", BradleyTerry(), run)(*ask(run))
    as_rubric = registry.build("reward", RubricModel(), run)(*ask(run))
    assert as_rubric.total_N == pytest.approx(as_bt.total_N)
    assert set(as_rubric.parts) == set(FIVE.attributes)
    scale = json.loads((attributes / SCALE_FILE).read_text())
    raw = (2 * as_rubric.parts["helpfulness"] - as_rubric.parts["conciseness"]) / 3
    assert as_rubric.total_N == pytest.approx((raw - scale["mean"]) / scale["sd"])
    assert raw.std() > 0 and as_rubric.parts["honesty"].std() > 0
    assert not run.notes


def test_attributes_select_the_outputs_that_count(attributes, tmp_path):
    """One criterion alone, and all but one of five: the plain mean of their fractions of the scale."""
    run = run_with({"rubric": str(attributes)}, tmp_path)
    all_parts = registry.build("reward", RubricModel(), run)(*ask(run)).parts
    concise = registry.build("reward", RubricModel(attributes=("conciseness",)), run)(*ask(run))
    assert concise.total_N == pytest.approx(all_parts["conciseness"])
    rest = tuple(name for name in FIVE.attributes if name != "conciseness")
    without = registry.build("reward", RubricModel(attributes=rest), run)(*ask(run))
    assert without.total_N == pytest.approx(sum(all_parts[name] for name in rest) / 4)
    assert set(without.parts) == set(FIVE.attributes)  # the breakdown stays complete
    with pytest.raises(ConfigError, match=r"the model in needs\.rubric has no brevity; it has helpfulness, honesty"):
        registry.build("reward", RubricModel(attributes=("brevity",)), run)


def test_load_reward_opens_a_rubric_model_with_its_attributes(attributes, tmp_path):
    run = run_with({"rubric": str(attributes)}, tmp_path)
    expected = registry.build("reward", RubricModel(), run)(*ask(run))
    reward = load_reward(attributes.parent, device="cpu")
    assert reward(*ask(run)) == pytest.approx(expected.total_N, abs=1e-5)
    assert reward.parts(*ask(run))["honesty"] == pytest.approx(expected.parts["honesty"], abs=1e-5)
    with pytest.raises(ConfigError, match="ensemble is not a setting of this reward; it has none"):
        load_reward(attributes.parent, ensemble="worst")


def test_a_critic_starts_as_the_weighted_sum_of_the_outputs(attributes, policy, tmp_path):
    run = run_with({"policy": str(policy), "reward": str(attributes)}, tmp_path)
    vocabulary = load_encoder(policy, run.config.model).tokenizer.get_vocab()
    starts_from = SimpleNamespace(get_output_embeddings=lambda: torch.nn.Linear(16, 2))
    critic = build_critic("reward_model", run, starts_from, vocabulary, (0.5, 2.0))
    head = load_reward_model(attributes, run.config.model, outputs=5).score.weight
    assert critic.head.weight[0].tolist() == pytest.approx(((2 * head[0] - head[3]) / 3 / 2).tolist())
    assert critic.head.bias.item() == pytest.approx(-0.25)
