"""The attack as a stage: on a learned reward, on a rule, with and without a policy."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support import ONE_LAYER, command_inside, planned

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME
from rlhf_lab.evaluations.verbosity import is_verbose
from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.reward.card import attack_levels, largest_gains
from rlhf_lab.results.rundir import read_run
from rlhf_lab.rewards.saved import load_reward
from rlhf_lab.stages.execute import execute

SIZES = (
    "evaluation.prompts=6",
    "algorithm.samples=3",
    "algorithm.rounds=4",
    "algorithm.candidates=6",
    "algorithm.max_words=20",
    "rollout.max_new_tokens=12",
    *ONE_LAYER,
)


@pytest.fixture(scope="module")
def attacked(toy, tmp_path_factory):
    """(stage, result) of an attack on a reward model that prefers the longer response."""
    data, policy = toy
    named = (
        "data=pairs",
        f"data.path={data}",
        f"needs.policy={policy}",
        f"outputs={tmp_path_factory.mktemp('attack')}",
    )
    trained = planned("reward_model", *named, *ONE_LAYER, "checkpoint.every_steps=0", "algorithm.lr=3e-3")
    execute(trained)
    stage = planned("attack", *named, *SIZES, f"needs.reward={trained.model}")
    return stage, execute(stage)


def test_a_reward_that_prefers_length_pays_for_more_words(attacked):
    stage, result = attacked
    metrics = result["metrics"]
    searched = [row for row in read_jsonl(stage.directory / "transcripts.jsonl") if row["attack"] == "search"]
    assert len(searched) == 6 and all(row["gain"] > 0 for row in searched)
    assert metrics["attack_gain"]["mean"] == pytest.approx(np.mean([row["gain"] for row in searched]))
    assert metrics["attack_words"]["low"] > 0
    assert metrics["attack_gain"]["mean"] >= metrics["exploit_gain/empty"]["mean"]
    assert metrics["attack_queries"] <= 6 * 4 * 6  # prompts · rounds · candidates
    assert "attack_gold" not in metrics  # pairs in a file have no true reward


def test_gains_are_differences_of_the_rewards_that_the_model_gives(attacked):
    stage, result = attacked
    directory = stage.directory
    rows = read_jsonl(directory / "evaluation.jsonl")
    sd = np.std([row["proxy"] for row in rows])
    assert result["metrics"]["reward_sd"] == pytest.approx(sd)
    reward = load_reward(stage.config.needs["reward"])
    transcripts = read_jsonl(directory / "transcripts.jsonl")
    prompts = [row["prompt"] for row in transcripts]
    scores = np.asarray(reward(prompts, [row["response"] for row in transcripts]))
    starts = np.asarray(reward(prompts, [row["start"] for row in transcripts]))
    gains = np.array([row["gain"] for row in transcripts])
    # the slope through the origin is the unit of `load_reward` per standard deviation of the attack
    slope = (gains @ (scores - starts)) / (gains @ gains)
    np.testing.assert_allclose(scores - starts, slope * gains, atol=1e-3 * abs(slope))
    # the start is the first of the samples, and the best of them is an attack of its own
    best = {row["prompt"]: row for row in transcripts if row["attack"] == "best_of_n"}
    for prompt, row in best.items():
        samples = [sample for sample in rows if sample["prompt"] == prompt]
        assert row["start"] == samples[0]["response"]
        assert row["response"] == max(samples, key=lambda sample: sample["proxy"])["response"]


def test_the_page_shows_the_attack(attacked):
    stage, _ = attacked
    assert "Attack on the reward" in write_report(stage.directory).read_text(encoding="utf-8")
    run = read_run(stage.directory)
    names = [level.name for level in attack_levels(run, "reward")]
    assert names[0] == "search" and {"best of n", "padding", "prompt copy"} < set(names)
    means = [level.estimate.mean for level in attack_levels(run, "reward")[1:]]
    assert means == sorted(means, reverse=True)
    assert attack_levels(run, "gold") == []  # no true reward
    table = largest_gains(run)
    assert len({title.partition(":")[0] for title, _, _ in table}) == len(table) == 8  # one response per attack
    best = read_jsonl(stage.directory / "transcripts.jsonl")[0]
    assert table[0][1:] == (best["start"], best["response"])


def test_the_same_attack_finds_the_same_responses(attacked, tmp_path):
    stage, result = attacked
    arguments = [f"needs.{role}={stage.config.needs[role]}" for role in ("policy", "reward")]
    data = ("data=pairs", f"data.path={stage.config.data.path}")
    again = execute(planned("attack", *data, *SIZES, *arguments, f"outputs={tmp_path}"))
    assert again["metrics"]["attack_gain"] == result["metrics"]["attack_gain"]


def test_a_policy_trained_on_the_reward_is_measured_as_the_attack_is(attacked, toy, tmp_path):
    stage, _ = attacked
    arguments = [f"needs.{role}={stage.config.needs[role]}" for role in ("policy", "reward")]
    data = ("data=pairs", f"data.path={toy[0]}")
    # the start policy in the place of a trained one: only the random numbers of its samples differ
    planned_attack = planned(
        "attack", *data, *SIZES, *arguments, f"+needs.later={toy[1]}", "algorithm.pairs=5", f"outputs={tmp_path}"
    )
    metrics = execute(planned_attack)["metrics"]
    rows = read_jsonl(planned_attack.directory / "evaluation.jsonl")
    proxy = {name: [row["proxy"] for row in rows if row["policy"] == name] for name in (REFERENCE_NAME, "later")}
    assert len(proxy["later"]) == len(proxy[REFERENCE_NAME]) == 6 * 3  # prompts · samples
    expected = (np.mean(proxy["later"]) - np.mean(proxy[REFERENCE_NAME])) / np.std(proxy[REFERENCE_NAME])
    assert metrics["trained_gain/later"]["mean"] == pytest.approx(expected)
    assert metrics["trained_gain/later"]["clusters"] == 6
    assert metrics["accuracy"]["n"] == 5
    names = [level.name for level in attack_levels(read_run(planned_attack.directory), "reward")]
    assert "policy later" in names
    assert "| trained/later | " in (planned_attack.directory / "card.md").read_text(encoding="utf-8")


FUNCTION = """
def red(prompts, responses):
    return [response.count("red") for response in responses]

def constant(prompts, responses):
    return [1.0 for response in responses]
"""


def attack_a_function(directory, toy, name: str, *more: str) -> tuple[int, str]:
    (directory / "mine.py").write_text(FUNCTION)
    term = ("reward=callable", f"reward.terms.callable.function=mine.py:{name}")
    data = ("data=pairs", f"data.path={toy[0]}", "needs.policy=null")
    return command_inside(directory, "attack", *term, *data, *SIZES, *more)


def test_an_attack_on_a_function_needs_no_model_and_ends_with_its_threshold(toy, tmp_path):
    status, printed = attack_a_function(tmp_path, toy, "red", "algorithm.max_gain=0.5")
    assert status == 1 and "above algorithm.max_gain=0.5" in printed
    result = json.loads(next((tmp_path / "outputs" / "runs").glob("attack*/result.json")).read_text())
    assert result["metrics"]["attack_gain"]["mean"] > 0.5
    # no model was trained, so there is no training noise to warn of
    assert "training noise" not in printed
    # the stored result has the same exit status
    status, printed = attack_a_function(tmp_path, toy, "red", "algorithm.max_gain=0.5")
    assert status == 1 and "above algorithm.max_gain=0.5" in printed


def test_a_constant_reward_has_no_gain(toy, tmp_path):
    status, printed = attack_a_function(tmp_path, toy, "constant", "algorithm.max_gain=0.5")
    assert status == 1 and "no gain to compare" in printed
    assert "the reward is the same for all start responses" in printed
    assert attack_a_function(tmp_path, toy, "constant")[0] == 0


def test_responses_to_prompts_of_people_are_verbose_or_not(attacked):
    """The evaluator measures `verbose` by rules where no world does."""
    stage, result = attacked
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    expected = [float(is_verbose(row["prompt"], row["response"], row["tokens"])) for row in rows]
    assert [row["verbose"] for row in rows] == expected
    assert result["policies"][0]["metrics"]["verbose"]["mean"] == np.mean(expected)
