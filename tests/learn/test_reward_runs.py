"""Rewards inside real stages: failures are counted and the run continues, state is kept, responses are scored again."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, planned, plant, toy_rows, write_pairs

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.config import registry
from rlhf_lab.core.errors import ArtifactError, LabError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.evaluations.rescoring import read_responses
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.reports.report import write_report
from rlhf_lab.rewards.learned.settings import FollowUpLikelihood
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import ensure, execute
from rlhf_lab.training.run import Run

SIZE = (
    *("evaluation.prompts=4", "evaluation.samples_per_prompt=2", "evaluation.pairs=8", "rollout.max_new_tokens=8"),
    *("algorithm.prompts_per_iteration=4", "algorithm.group_size=2", "algorithm.batch_size=8"),
    *("algorithm.iterations=3", "algorithm.lr=1e-3", "checkpoint.every_steps=0"),
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> tuple[Path, Path]:
    """(a corpus of responses of eight words, a policy that imitates them a little)."""
    directory = tmp_path_factory.mktemp("toy")
    data = write_pairs(directory / "words.jsonl", toy_rows(64))
    fixed = ("algorithm.optimizer=adamw", "algorithm.batch_size=16", "algorithm.epochs=1", "checkpoint.every_steps=0")
    stage = planned("sft", "data=pairs", f"data.path={data}", *fixed, *ONE_LAYER, f"outputs={directory}")
    execute(stage)
    return data, Path(stage.model)


def grpo(toy, directory: Path, graph: RewardGraph | None = None, *overrides: str) -> artifacts.Stage:
    data, policy = toy
    named = ("data=pairs", f"data.path={data}", f"needs.policy={policy}", f"outputs={directory}")
    stage = planned("grpo", *named, "needs.reward=null", "reward=length", *SIZE, *overrides)
    return stage if graph is None else replace(stage, config=stage.config.replace(reward=graph))


class Flaky:
    """Planted: every third call fails with a different error, the others count words."""

    def __init__(self, fault):
        self.fault, self.calls = fault, 0

    def __call__(self, prompts, responses):
        self.calls += 1
        if self.calls % 3 == 1:
            return self.fault(responses)
        return RewardBatch(np.array([float(len(text.split())) for text in responses]))


def raises(responses):
    raise RuntimeError("no connection")


def hangs(responses):
    time.sleep(60)


FAULTS = {
    "raises": (raises, "no connection"),
    "hangs": (hangs, "took longer than timeout_s=0.5"),
    "infinite": (lambda responses: RewardBatch(np.full(len(responses), np.inf)), "is infinite"),
}


@pytest.mark.parametrize(("fault", "says"), FAULTS.values(), ids=FAULTS)
def test_a_run_goes_on_past_a_failing_reward_and_counts(fault, says, toy, monkeypatch, tmp_path):
    """5 calls: 3 iterations of 8 responses, then 2 evaluations of 8. The first and the fourth fail."""
    settings = plant(monkeypatch, lambda settings, run: Flaky(fault))
    term = replace(settings, on_error="abstain", timeout_s=0.5)
    start = time.monotonic()
    stage = grpo(toy, tmp_path, RewardGraph(terms={"planted": term}))
    result = execute(stage)
    assert time.monotonic() - start < 50
    notes = [note for note in result["notes"] if note.startswith("reward planted")]
    assert len(notes) == 1 and notes[0].startswith(
        "reward planted: 16 of 40 responses unscored, 2 calls failed, first: "
    )
    assert says in notes[0]
    assert [row["unscored"] for row in read_jsonl(stage.directory / "metrics.jsonl") if "unscored" in row] == [1, 0, 0]
    proxies = [policy["metrics"].get("proxy") for policy in result["policies"]]
    assert proxies[0] is None and proxies[1]["n"] == 8, "an unscored policy has no proxy, not a zero"


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_without_leave_to_abstain_the_run_ends_and_says_why(fault, toy, monkeypatch, tmp_path):
    settings = plant(monkeypatch, lambda settings, run: Flaky(FAULTS[fault][0]))
    stage = grpo(toy, tmp_path, RewardGraph(terms={"planted": replace(settings, timeout_s=0.5)}))
    with pytest.raises(LabError, match="reward planted"):
        execute(stage)
    result = read_json(stage.directory / "result.json")
    assert result["status"] == "failed" and "reward planted" in result["error"]


def test_ctrl_c_inside_a_reward_interrupts_the_run(toy, monkeypatch, tmp_path):
    def interrupted(responses):
        raise KeyboardInterrupt

    settings = plant(monkeypatch, lambda settings, run: Flaky(interrupted))
    stage = grpo(toy, tmp_path, RewardGraph(terms={"planted": replace(settings, on_error="abstain", timeout_s=0.5)}))
    with pytest.raises(KeyboardInterrupt):
        execute(stage)
    assert read_json(stage.directory / "result.json")["status"] == "interrupted"


def follow_up(toy, **settings):
    _, policy = toy
    config = planned("grpo", f"needs.policy={policy}", "needs.reward=null", "reward=length").config
    run = Run(Path("nowhere"), config, {"follow_up": str(policy)})
    return registry.build("reward", FollowUpLikelihood(**settings), run)


def test_follow_up_likelihood_is_the_mean_log_probability_of_its_tokens(toy):
    """Against a simple forward pass, one row at a time, no padding and no batching."""
    _, policy = toy
    reward = follow_up(toy, positive=("red green", "blue"), negative=("old",))
    model, encoder = load_policy(policy, planned("sft").config.model), load_encoder(policy, planned("sft").config.model)
    prompts, responses = ["\n\nHuman: what about 3 red\n\nAssistant:", "\n\nHuman: x\n\nAssistant:"], ["warm old", ""]

    def likelihood(prompt: str, response: str, text: str) -> float:
        head = encoder.prompt(f"{prompt} {response}".rstrip() + "\n\nHuman:")
        tail = encoder.response(text)[:-1]
        with torch.no_grad():
            logps = model(torch.tensor([head + tail])).logits[0].log_softmax(-1)
        return float(np.mean([logps[len(head) + i - 1, token] for i, token in enumerate(tail)]))

    batch = reward(prompts, responses)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        positive = np.mean([likelihood(prompt, response, text) for text in ("red green", "blue")])
        assert batch.parts["positive"][i] == pytest.approx(positive, abs=1e-5)
        assert batch.total_N[i] == pytest.approx(positive - likelihood(prompt, response, "old"), abs=1e-5)


def test_a_policy_trains_on_follow_up_likelihood(toy, tmp_path):
    data, policy = toy
    stage = planned(
        "grpo", "data=pairs", f"data.path={data}", f"needs.policy={policy}", "needs.reward=null", "reward=flr",
        f"+needs.follow_up={policy}", f"outputs={tmp_path}", *SIZE,
    )  # fmt: skip
    result = execute(stage)
    assert result["status"] == "completed" and result["policies"][1]["metrics"]["proxy"]["n"] == 8
    row = read_jsonl(stage.directory / "evaluation.jsonl")[0]
    assert row["proxy"] == pytest.approx(row["reward/flr/positive"] - row["reward/flr/negative"], abs=1e-5)


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory) -> artifacts.Stage:
    out = tmp_path_factory.mktemp("rescore")
    tiny = (*SMALL_WORLD, *ONE_LAYER, "checkpoint.every_steps=0", "algorithm.samples=6", f"outputs={out}")
    brief = [f"++stages.{name}.algorithm.epochs=0.5" for name in ("sft", "reward_model")]
    stage = planned("composite_rollouts", *tiny, *brief, "reward.terms.conciseness.standardise=fixed")
    ensure(stage, 0)
    return stage


def rescoring(rollouts: artifacts.Stage, *overrides: str) -> artifacts.Stage:
    """The study's stage over saved rollouts, without its sweep."""
    stage = planned("study/reward_weights", *SMALL_WORLD[:3], f"outputs={rollouts.config.outputs}", *overrides)
    return replace(stage, needs={"rollouts": rollouts})


@pytest.mark.slow
def test_the_weights_that_were_live_give_the_live_reward(rollouts):
    responses = read_responses(rollouts.directory)
    again = responses.score(rollouts.config.reward)
    assert np.abs(again - responses.columns["proxy"]).max() < 5e-6, "saved values are rounded to six decimals"


def test_the_stage_rescores_what_another_saved(rollouts, monkeypatch):
    monkeypatch.setattr("rlhf_lab.models.build._load", lambda *a: pytest.fail("a model was loaded"))
    weightings = "algorithm.weightings=[{bt:1},{programmatic:1},{bt:.6,programmatic:.2,conciseness:.2}]"
    stage = rescoring(rollouts, weightings, "algorithm.choose_from=3", "reward.weights=null")
    result = execute(stage)
    names = ["SFT", "1 bt", "1 programmatic", "0.6 bt + 0.2 programmatic + 0.2 conciseness"]
    assert [policy["name"] for policy in result["policies"]] == names
    _, bt, rule, _ = (policy["metrics"] for policy in result["policies"])
    assert bt["reward/bt"]["mean"] >= rule["reward/bt"]["mean"]
    assert rule["reward/programmatic"]["mean"] >= bt["reward/programmatic"]["mean"]
    assert bt["rank_first"]["mean"] == pytest.approx(1)
    assert {"gold", "verbose", "tokens", "win_rate", "same_choice"} <= set(rule)
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    assert len([row for row in rows if row["policy"] == "1 bt"]) == 6
    assert "1 programmatic" in write_report(stage.directory).read_text()


def test_the_stage_says_which_column_is_missing(rollouts):
    stage = rescoring(rollouts, "reward=[bt,length]", "reward.weights=null", "algorithm.choose_from=2")
    with pytest.raises(ArtifactError, match="no column reward/length"):
        execute(stage)


def test_the_state_of_the_reward_goes_through_training(toy, monkeypatch, tmp_path):
    """PPO-C's running mean moves in training alone, and a checkpoint has it."""

    def build(settings, run):
        return lambda prompts, responses: RewardBatch(np.array([float(len(t.split())) for t in responses]))

    settings = plant(monkeypatch, build)
    stage = grpo(toy, tmp_path, RewardGraph(terms={"planted": settings}, confidence_weight=0.5))
    run = Run(tmp_path, stage.config, stage.sources())
    algorithm: OnPolicy = registry.build("algorithm", stage.config.algorithm, run)
    algorithm.collect(0)
    baseline = algorithm.evaluator.reward.baseline  # type: ignore[union-attr]
    assert baseline > 0
    algorithm.evaluate(0)
    assert algorithm.evaluator.reward.baseline == baseline  # type: ignore[union-attr]
    again: OnPolicy = registry.build("algorithm", stage.config.algorithm, run)
    again.load_state_dict(algorithm.state_dict())
    assert again.evaluator.reward.baseline == baseline  # type: ignore[union-attr]
