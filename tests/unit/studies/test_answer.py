"""A run's first sentence answers its recipe's question from its own numbers; its second says what limits it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from support import planned
from synthetic_runs import edit, edit_rows

from rlhf_lab.config import inventory, registry
from rlhf_lab.core.packs import named
from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.reward.card import attack_levels
from rlhf_lab.reports.run.header import header_metadata
from rlhf_lab.reports.run.policies import run_markdown
from rlhf_lab.results.answer import OTHER_RUN, Conclusion, answer
from rlhf_lab.results.answer_corpora import synthetic_corpus
from rlhf_lab.results.answer_policies import against_one_pass, against_reference
from rlhf_lab.results.rundir import read_run
from rlhf_lab.results.wording import SMOKE_CAVEAT
from rlhf_lab.statistics.inference import paired_difference
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.table import build_sections


def change(directory: Path, kind: str, recipe: str = "", **result: object) -> Path:
    """The same run as if another algorithm had made it."""
    config = (directory / "config.yaml").read_text().replace("kind: dpo_iterative", f"kind: {kind}")
    (directory / "config.yaml").write_text(config)
    edit(directory / "manifest.json", recipe=recipe or kind)
    edit(directory / "result.json", **result)
    return directory


def said(directory: Path) -> Conclusion:
    return answer(read_run(directory))


def rate(mean: float, half: float = 0.02, n: int = 400) -> dict:
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": n, "clusters": n}


def test_every_algorithm_answers_the_question_of_its_recipes():
    answers = {registry.settings_class("algorithm", kind).evidence.answer for kind in registry.kinds("algorithm")}
    assert answers == set(named("answers"))
    assert set(OTHER_RUN) | set(OTHER_RUN.values()) <= set(inventory.recipes())


def test_iterating_is_compared_with_one_pass_by_prompt(make_run):
    directory = make_run(prompts=64)
    run = read_run(directory)
    means = run.evaluation.groupby(["policy", "prompt_id"])["gold"].mean()
    last, first = means["iteration 3"], means["one-pass DPO"]
    expected = paired_difference(last.to_numpy(), first[last.index].to_numpy(), np.arange(64))
    sentence = said(directory).sentence
    assert sentence.startswith("No: iterating scores ") and "lower in gold reward than one pass" in sentence
    assert f"{-expected.difference.mean:.2f}"[:4] in sentence and "iteration 3 against one-pass DPO" in sentence
    assert expected.p_value < 0.001 and "p\u00a0<\u00a00.001" in sentence


def test_what_cannot_be_told_apart_is_said_with_what_could_have_been_found(make_run):
    directory = make_run(prompts=30)
    rows = [json.loads(line) for line in (directory / "evaluation.jsonl").read_text().splitlines()]
    one_pass = {(r["prompt_id"], r["sample_id"]): r for r in rows if r["policy"] == "one-pass DPO"}
    rng = np.random.default_rng(0)

    def near_one_pass(row: dict) -> dict:
        gold = one_pass[row["prompt_id"], row["sample_id"]]["gold"] + float(rng.normal(0, 0.3))
        return {"gold": gold} if row["policy"] == "iteration 3" else {}

    edit_rows(directory, near_one_pass)
    sentence = said(directory).sentence
    assert sentence.startswith("Not distinguishable: iterating and one pass of DPO")
    assert "would have been found with 80 % power" in sentence


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_policy_optimisation_says_whether_the_truth_follows(make_run, kind):
    sentence = said(change(make_run(policies=("SFT", "PPO")), kind)).sentence
    assert sentence.startswith("PPO raises the proxy reward by 0.73")
    assert "the gold reward follows: it rises by" in sentence and "at a KL of 2.17 nats" in sentence
    fallen = make_run("fallen", lift=0.0, prompts=60, policies=("SFT", "a", "b", "c", "d", "PPO"))
    assert "does not follow: it falls by" in said(change(fallen, kind)).sentence


def test_without_gold_the_judge_is_named(make_run):
    found = said(change(make_run(gold=False, policies=("SFT", "DPO")), "dpo"))
    assert found.sentence.startswith("DPO raises the proxy reward by") and "at a KL of" in found.sentence
    assert "no gold reward here: the scores are those of the reward that training maximises" in found.caveat
    assert "one seed" in found.caveat.lower() and "simulated world" not in found.caveat


@pytest.mark.parametrize(
    ("config", "source"),
    [
        ({"needs": {"gold": "models/RM-Large"}}, "the score of the reward model models/RM-Large"),
        (
            {"needs": {"judge": "assistant"}, "judge": {"kind": "anthropic", "model": "claude"}},
            "the grade of the judge anthropic claude on the rubric assistant",
        ),
        ({"needs": {"reward": "reward_model"}}, "the true reward of a simulated world"),
    ],
)
def test_what_gold_is_is_said(make_run, config, source):
    directory = make_run(policies=("SFT", "PPO"))
    (directory / "config.yaml").write_text(yaml.safe_dump({"algorithm": {"kind": "ppo"}, **config}))
    run = read_run(directory)
    assert run.gold_source == source
    assert answer(run).caveat.endswith(f"gold is {source}.")
    world = header_metadata(run)["world"]
    is_world = source == "the true reward of a simulated world"
    assert world == ("simulated world, true reward known" if is_world else f"gold is {source}")
    assert f"{world[1:]}.\n" in run_markdown(run)
    assert read_run(make_run("without", gold=False)).gold_source == ""


def test_verified_answers_are_judged_by_accuracy(make_run):
    directory = make_run(gold=False, policies=("SFT", "GRPO"))
    edit_rows(directory, lambda row: {"correct": int(row["policy"] == "GRPO" and row["prompt_id"] % 2)})
    stored = json.loads((directory / "result.json").read_text())["policies"]
    for policy, sampled, greedy in zip(stored, (0.0, 0.5), (0.1, 0.6), strict=True):
        policy["metrics"] |= {"correct": rate(sampled), "correct_greedy": rate(greedy)}
    sentence = said(change(directory, "grpo", "grpo_math", policies=stored)).sentence
    assert sentence.startswith("GRPO raises the accuracy of samples by 0.50")
    assert "greedy accuracy goes from 0.100 ±0.020 to 0.600 ±0.020" in sentence


def test_the_best_policy_is_told_apart_from_the_next_or_not(make_run):
    sentence = said(change(make_run(prompts=64), "compare", "compare_policies")).sentence
    assert sentence.startswith(("iteration 1 has the highest gold reward", "one-pass DPO has the highest gold reward"))
    assert "at a KL of" in sentence and ("above" in sentence or "not distinguishable from" in sentence)


METRICS = [
    ("sft", {"heldout_nll": rate(0.693147)}, "0.693 ±0.020 nats per token, a perplexity of 2.00"),
    (
        "reward_model",
        {"accuracy": rate(0.76), "longer_wins": rate(0.64), "filler_shift": rate(0.01)},
        "0.760 ±0.020 of held-out pairs as labelled, 0.120 more than “the longer response wins”",
    ),
    (
        "rubric_rm",
        {"accuracy": rate(0.65), "longer_wins": rate(0.64), "filler_shift": rate(-0.5)},
        "which is not distinguishable from “the longer response wins” (0.640 ±0.020); filler lowers its score",
    ),
    (
        "rm_report",
        {"accuracy": rate(0.7), "ece": rate(0.2), "ece_perfect": rate(0.05)},
        "its confidence is miscalibrated (calibration error 0.200",
    ),
    (
        "attack",
        {"attack_gain": rate(2.3), "attack_gold": rate(-3.9), "exploit_gain/padding": rate(0.7)},
        "raises the reward by 2.300 ±0.020 standard deviations of ordinary responses, while gold falls by 3.90; of the "
        "fixed exploits, padding gains most (0.700 ±0.020).",
    ),
    ("rm_bench", {"score": rate(0.8), "items": 90}, "0.800 ±0.020 by the benchmark's own rule over 90 items"),
    (
        "crossfit",
        {"accuracy": rate(0.7), "accuracy/in_sample": rate(0.9)},
        "0.700 ±0.020 of the pairs as labelled, models that were trained on it 0.900",
    ),
    ("prm", {"accuracy/planted": rate(0.9), "auroc/planted": rate(0.95)}, "right on 0.900 ±0.020"),
    ("orm", {"accuracy": rate(0.8)}, "right on 0.800 ±0.020"),
    (
        "step_report",
        {"caught_5": rate(0.4), "best_of_n": rate(0.8), "majority": rate(0.7)},
        "catches 0.400 ±0.020 of wrong steps behind right answers at 5 % false alarms",
    ),
    ("reward_model", {"accuracy": rate(0.4), "longer_wins": rate(0.6), "filler_shift": rate(0.5)}, "0.200 fewer than"),
    (
        "reward_model",
        {"accuracy": rate(0.8), "filler_shift": rate(0.5), "disagreement": 0.25},
        "filler raises its score",
    ),
    ("reward_model", {"accuracy": rate(0.8), "disagreement": 0.25}, "its members disagree by 0.250 sd per response"),
    (
        "attack",
        {"attack_gain": rate(-0.01)},
        "The search does not clearly raise the reward: −0.010 ±0.020 standard deviations",
    ),
    # A constant reward has no scale: its gains are null, while gold is measured.
    ("attack", {"attack_gain": None, "attack_gold": rate(0.0)}, "No gain of the search is known; `card.md` says why."),
    (
        "test_time",
        {"accuracy@1": rate(0.5), "accuracy@4": rate(0.7), "accuracy@16": rate(0.8), "tokens@16": 384.0},
        "of the prompts are answered correctly for 384 tokens a prompt; with one sample 0.500",
    ),
    ("test_time", {"accuracy@4": rate(0.7)}, "With 4 samples 0.700 ±0.020 of the prompts are answered correctly."),
]


@pytest.mark.parametrize(("kind", "metrics", "words"), METRICS)
def test_stages_without_policies_answer_from_their_numbers(make_run, kind, metrics, words):
    assert words in said(change(make_run(policies=()), kind, metrics=metrics)).sentence


def test_an_exploit_without_a_score_is_not_the_one_that_gains_most(make_run):
    """The mean of a gain that is unscored on every prompt is null, which is read as NaN."""
    unscored = {"mean": None, "low": None, "high": None, "n": 0, "clusters": 0}
    metrics = {"attack_gain": rate(0.1), "exploit_gain/empty": unscored, "exploit_gain/padding": rate(0.7)}
    directory = change(make_run(policies=()), "attack", metrics=metrics)
    assert "of the fixed exploits, padding gains most (0.700 ±0.020)." in said(directory).sentence
    levels = attack_levels(read_run(directory), "reward")
    assert [level.name for level in levels] == ["search", "padding", "empty"]
    metrics.pop("exploit_gain/padding")
    assert "exploits" not in said(change(directory, "attack", metrics=metrics)).sentence


def test_a_made_corpus_is_answered_by_its_rows_and_the_most_frequent_reason_against_one(make_run):
    counts = {"made/rows": 120, "made/items": 150, "made/rejected/tie": 20, "made/rejected/too long": 10}
    metrics = {name: {"mean": n, "low": n, "high": n, "n": 1, "clusters": 1} for name, n in counts.items()}
    run = read_run(change(make_run(policies=()), "sft", metrics=metrics))
    assert (
        synthetic_corpus(run)
        == "120 of 150 items became rows; the most frequent reason for rejecting the others was “tie” (20)."
    )


def test_a_policy_is_measured_against_one_pass_or_else_against_its_start(make_run):
    without = read_run(make_run("without", prompts=64, policies=("SFT", "iteration 1")))
    assert against_one_pass(without) == against_reference(without)
    assert str(against_reference(without)).startswith("iteration 1 raises the gold reward")
    policies = ("SFT", "one-pass DPO", "iteration 1", "certified policy")
    restored = read_run(make_run("restored", prompts=64, policies=policies))
    assert "certified policy against one-pass DPO" in str(against_one_pass(restored))
    assert against_reference(read_run(make_run("alone", policies=("SFT",)))) is None


@pytest.mark.slow
def test_smoke_size_is_said_by_run_and_study(make_run, make_study):
    directory = make_run()
    with (directory / "config.yaml").open("a") as file:
        file.write("size: smoke\n")
    assert said(directory).caveat == SMOKE_CAVEAT
    page = write_report(directory).read_text()
    assert page.index("smoke size</span>") < page.index("</h1>") < page.index(SMOKE_CAVEAT)
    study = read_study(make_study())
    assert SMOKE_CAVEAT not in write_conclusion(study, build_sections(study)).caveat
    study = replace(study, size="smoke")
    assert write_conclusion(study, build_sections(study)).caveat.startswith(SMOKE_CAVEAT)


def test_policies_that_score_the_same_on_every_prompt_are_not_called_indistinguishable(make_run):
    directory = change(make_run(prompts=8), "dpo")
    edit_rows(directory, lambda row: {"gold": -0.9})
    sentence = said(directory).sentence
    assert sentence.startswith("No difference: ") and "the same gold reward on every prompt" in sentence
    (directory / "config.yaml").write_text("algorithm:\n  kind: ppo\n")
    assert "the gold reward is the same on every prompt" in said(directory).sentence


@pytest.mark.parametrize(("recipe", "other"), OTHER_RUN.items())
def test_a_recipe_that_is_compared_with_another_run_is_a_run_of_its_own(recipe, other):
    """Else the store would have the other's result stand for it, and nothing would run."""
    assert planned(recipe).settings_key != planned(other).settings_key
