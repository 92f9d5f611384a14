"""Gold on data without a known truth: a reward model as the gold of entire stages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import ONE_LAYER, command_inside, planned, save_tiny

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.models.build import load_encoder
from rlhf_lab.monitoring.replay import read_trace
from rlhf_lab.reports.report import write_report
from rlhf_lab.results.answer import answer
from rlhf_lab.results.rundir import read_run
from rlhf_lab.rewards.saved import load_reward
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute

pytestmark = pytest.mark.slow

SMALL = (
    "evaluation.prompts=6",
    "evaluation.samples_per_prompt=2",
    "evaluation.pairs=8",
    "rollout.max_new_tokens=8",
    "checkpoint.every_steps=0",
    *ONE_LAYER,
)
GRPO = (
    "algorithm.prompts_per_iteration=4",
    "algorithm.group_size=2",
    "algorithm.batch_size=8",
    "algorithm.iterations=10",
    "algorithm.lr=1e-3",
)


@pytest.fixture(scope="module")
def models(toy, tmp_path_factory) -> dict[str, str]:
    """The model folders of two reward models that differ in their seed."""
    data, policy = toy
    directory = tmp_path_factory.mktemp("rewards")
    named = ("data=pairs", f"data.path={data}", f"needs.policy={policy}", f"outputs={directory}")
    stages = {
        name: planned("reward_model", *named, *SMALL, f"seed={seed}") for seed, name in enumerate(("proxy", "gold"))
    }
    for stage in stages.values():
        execute(stage)
    return {name: stage.model for name, stage in stages.items()}


def stage_of(toy, models, recipe: str, out: Path, *more: str) -> Stage:
    data, policy = toy
    named = ("data=pairs", f"data.path={data}", f"needs.policy={policy}", f"needs.reward={models['proxy']}")
    return planned(recipe, *named, *SMALL, f"outputs={out}", *more)


def test_the_gold_of_policy_optimisation_is_the_models_score(toy, models, tmp_path):
    stage = stage_of(toy, models, "grpo", tmp_path, *GRPO, f"needs.gold={models['gold']}")
    result = execute(stage)
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    prompts, responses = [row["prompt"] for row in rows], [row["response"] for row in rows]
    expected = load_reward(models["gold"])(prompts, responses)
    assert np.allclose([row["gold"] for row in rows], expected, atol=1e-5)
    assert not np.allclose([row["gold"] for row in rows], [row["proxy"] for row in rows], atol=0.01)
    reference, policy = result["policies"]
    assert {"gold", "proxy"} <= reference["metrics"].keys() and "win_rate" in policy["metrics"]
    # who wins is judged by gold, which training does not see
    score = {name: np.array([row["gold"] for row in rows if row["policy"] == name]) for name in ("SFT", "GRPO")}
    wins = np.sign(score["GRPO"] - score["SFT"]) / 2 + 0.5
    assert policy["metrics"]["win_rate"]["mean"] == pytest.approx(wins.mean())
    logged = read_jsonl(stage.directory / "metrics.jsonl")
    assert all(np.isfinite(row["gold"]) for row in logged if "reward" in row)
    # the hacking monitor knows where gold fell, live and from the saved trace
    assert result["metrics"]["gold_fell"] in (0, 1, None) and np.isfinite(result["metrics"]["gold_change"])
    batches = read_trace(stage.directory)
    assert len(batches) == 10 and all(np.isfinite(batch.gold_N).all() for batch in batches)
    run = read_run(stage.directory)
    assert run.gold_source == f"the score of the reward model {models['gold']}"
    assert f"gold is {run.gold_source}" in answer(run).caveat
    page = write_report(stage.directory).read_text()
    assert "simulated world" not in page.split("<script")[0] and "the score of the reward model" in page


def test_rounds_of_dpo_say_how_far_gold_agrees_with_their_pairs(toy, models, tmp_path):
    sizes = ("algorithm.rounds=1", "algorithm.prompts_per_round=8", "algorithm.samples_per_prompt=2")
    named = ("needs.baseline=null", f"needs.gold={models['gold']}")
    result = execute(stage_of(toy, models, "dpo_iterative", tmp_path, *sizes, *named))
    (agreement,) = (value for name, value in result["metrics"].items() if name.startswith("pair_gold_agreement"))
    assert 0 <= agreement <= 1


def test_a_report_card_knows_gold(toy, models, tmp_path):
    result = execute(stage_of(toy, models, "rm_report", tmp_path, f"needs.gold={models['gold']}"))
    assert {"gold_agreement", "gold_correlation", "spearman/corpus", "gold_correlation/within"} <= result[
        "metrics"
    ].keys()
    assert result["metrics"]["gold_agreement"]["mean"] > 0.5  # both prefer the longer response


def test_gold_labels_the_replies_that_a_proxy_learns_from(toy, models, tmp_path):
    """The setting of arXiv:2210.10760, as far as pairs of the policy's own responses go."""
    data, policy = toy
    named = ("data=pairs", f"data.path={data}", f"needs.policy={policy}", f"outputs={tmp_path}")
    more = ("algorithm.on_policy_fraction=0.5", f"needs.gold={models['gold']}", "seed=2")
    result = execute(planned("reward_model", *named, *SMALL, *more))
    assert result["metrics"]["pairs/on_policy"] > 0.8 * result["metrics"]["pairs/corpus"]
    assert {"accuracy/on_policy", "gold_agreement"} <= result["metrics"].keys()


def test_a_classifier_that_the_lab_did_not_train_is_gold_in_its_own_unit(toy, models, tmp_path):
    import torch
    from transformers import AutoModelForSequenceClassification

    _, policy = toy
    tokenizer = load_encoder(policy, planned("sft", "model=micro").config.model).tokenizer
    base = save_tiny("gpt2", tokenizer, tmp_path / "base")
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_pretrained(base, num_labels=1).save_pretrained(tmp_path / "rm")
    tokenizer.save_pretrained(tmp_path / "rm")
    stage = stage_of(toy, models, "dpo", tmp_path, "algorithm.epochs=0.1", f"needs.gold={tmp_path / 'rm'}")
    result = execute(stage)
    assert any("its scores are used as they are" in note for note in result["notes"])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm").eval()
    encoder = load_encoder(tmp_path / "rm", stage.config.model)
    row = read_jsonl(stage.directory / "evaluation.jsonl")[0]
    prompt, response = encoder.row(row["prompt"], row["response"], 512)
    with torch.no_grad():
        hidden = model.transformer(torch.tensor([[*prompt, *response]])).last_hidden_state[0, -1]
        expected = float(model.score(hidden))
    assert row["gold"] == pytest.approx(expected, abs=1e-5)


# A study


def test_over_optimisation_is_fitted_without_a_simulated_world(toy, models, tmp_path):
    data, policy = toy
    status, out = command_inside(
        tmp_path,
        "+recipe=study/overoptimization",
        "data=pairs",
        f"data.path={data}",
        *SMALL,
        f"needs.policy={policy}",
        f"needs.reward={models['proxy']}",
        f"needs.gold={models['gold']}",
        "study.sweep.algorithm=[best_of_n]",
        "study.sweep.seed=[0,1]",
        "algorithm.samples=16",
        "study.predicts=[]",
        "study.processes=1",
    )
    assert status == 0, out
    assert "gold is the score of the reward model" in out.replace("\n", " ").replace("Gold", "gold")
    (directory,) = (tmp_path / "outputs" / "studies").iterdir()
    table = (directory / "table.md").read_text()
    assert "KL at peak" in table and "simulated world" not in table
