"""Process and outcome reward models: labels against known truth, planted truth, resuming, and use as rewards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import ONE_LAYER, assert_equal_models, checked, execute_with_stops, planned

from rlhf_lab.algorithms.reward_models.step_reward import StepRewardModelling, label_source
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.evaluations.step_report import GradedSolutions, truth_metrics
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.sampling.local import Samples
from rlhf_lab.sampling.solutions import Solutions, Trajectory, annotated, in_agreement, perturbed_solutions
from rlhf_lab.sampling.turns import RowTokens
from rlhf_lab.stages.execute import ensure, execute
from rlhf_lab.training.run import Run

SMALL = (
    *("data=arithmetic_small", "data.max_steps=3", "data.train_problems=64", "data.test_problems=24"),
    *("rollout.max_new_tokens=16", "evaluation.prompts=8", "checkpoint.every_steps=0"),
    *ONE_LAYER,
)
REPORT = ("algorithm.samples=4", "algorithm.choose_from=2")
STEPS = ("algorithm.problems=24", "algorithm.trajectories=1", "algorithm.batch_size=8", "algorithm.epochs=2")
PROMPT = "\n\nHuman: Kim has 5 toys. Kim finds 3 more. Kim doubles that. How many toys does Kim have now?\n\nAssistant:"


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("policy")
    stage = planned("sft", *SMALL, "algorithm.epochs=1", f"outputs={out}")
    execute(stage)
    return Path(stage.model)


@pytest.fixture(scope="module")
def judges(tmp_path_factory, policy) -> dict[str, Path]:
    out, found = tmp_path_factory.mktemp("judges"), {}
    for recipe in ("prm", "orm"):
        stage = planned(recipe, *SMALL, *STEPS, f"needs.policy={policy}", f"outputs={out}")
        execute(stage)
        found[recipe] = Path(stage.model)
    return found


class Scripted:
    """A policy with scripted continuations: prefix → completions."""

    def __init__(self, encoder: Encoder, script: dict[str, list[str]]):
        self.encoder, self.script, self.asked = encoder, script, []

    def sample(self, model, prompts, group, seed, *, temperature, next_turn, max_turns, opened=None):
        assert temperature == 1.0 and next_turn is None and max_turns == 1
        prompt = len(self.encoder.prompt(PROMPT))
        heads = [self.encoder.tokenizer.decode(ids[prompt:]).strip() for ids in prompts]
        self.asked += heads
        responses = [[self.encoder.response(text) for text in self.script[head]] for head in heads]
        assert all(len(each) == group for each in responses)
        rows = [[RowTokens(ids, [True] * len(ids), [0.0] * len(ids), True) for ids in each] for each in responses]
        return Samples(list(prompts), rows)


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        ("soft", [(0.75, 0.5, 1.0), (0.25, 0.0, 0.0), (0.75, 0.5, 0.0), ()]),
        ("hard", [(1.0, 1.0, 1.0), (1.0, 0.0, 0.0), (1.0, 1.0, 0.0), ()]),
    ],
)
def test_monte_carlo_labels_by_hand(tmp_path, estimate, expected):
    """5 + 3 = 8, 8·2 = 16. From the right first step three of four completions reach 16, from the wrong one one does;
    the last step's label is its own answer. The third solution has the same prefixes as the first. The empty solution
    has no step, and so no label."""
    right, wrong = "5 + 3 = 8\n8 * 2 = 16\n#### 16", "5 + 3 = 9\n9 * 2 = 18\n#### 18"
    misread = "5 + 3 = 8\n8 * 2 = 16\n#### 61"
    encoder = Encoder(train_tokenizer([PROMPT, *(f" {t}" for t in (right, wrong, misread))], 400))
    script = {
        "5 + 3 = 8": ["\n8 * 2 = 16\n#### 16"] * 3 + ["\n8 * 2 = 18\n#### 18"],
        "5 + 3 = 8\n8 * 2 = 16": ["\n#### 16", "\n#### 16", "\n#### 61", "\n16"],
        "5 + 3 = 9": ["\n8 * 2 = 16\n#### 16"] + ["\n9 * 2 = 18\n#### 18"] * 3,
        "5 + 3 = 9\n9 * 2 = 18": ["\n#### 18"] * 4,
    }
    run = Run(tmp_path, checked("prm_mc", *SMALL), {})
    run.corpus = replace(run.corpus, answers={PROMPT: "16"})
    source = Solutions(run, torch.nn.Linear(1, 1), encoder)
    source.collector.sampler = Scripted(encoder, script)
    solutions = [source.graded(PROMPT, text) for text in (right, wrong, misread, "")]
    assert [each.correct for each in solutions] == [1, 0, 0, 0]
    labelled = source.complete(solutions, 4, estimate)
    assert [each.labels for each in labelled] == expected
    assert sorted(source.collector.sampler.asked) == sorted(script)


def test_annotated_labels_are_the_worlds_and_an_answer_key_has_none(tmp_path):
    run = Run(tmp_path, checked("prm", *SMALL), {})
    pair = run.corpus.train[0]
    (labelled,) = annotated(run, [Trajectory(pair.prompt, pair.rejected, 0.0)])
    assert labelled.labels[:-1] == tuple(map(float, pair.meta["steps_rejected"])) and labelled.labels[-1] == 0
    run.corpus = replace(run.corpus, oracle=None)
    with pytest.raises(ConfigError, match="needs data that can judge steps, and"):
        annotated(run, [labelled])


def test_annotated_labels_are_refused_before_anything_runs():
    assert checked("prm", "data=gsm8k", "data.path=owner/name", "algorithm.labels=monte_carlo")
    with pytest.raises(ConfigError, match="algorithm=orm needs answers that can be checked"):
        checked("orm", "data=mini_hh")


def test_a_wrong_demonstration_is_no_start_of_a_perturbation(tmp_path):
    run = Run(tmp_path, checked("prm", *SMALL), {})
    pairs = run.corpus.train
    right = [pair for pair in pairs if pair.meta["correct_chosen"]]
    found = perturbed_solutions(run, pairs, 2, seed=0)
    assert len(right) < len(pairs)
    assert {each.prompt for each in found} <= {pair.prompt for pair in right}
    assert [all(each.labels) for each in found[:3]] == [True, False, False]
    assert all(each.correct == all(each.labels) for each in found)
    assert all(each.correct for each in perturbed_solutions(run, pairs, 1, seed=0, cancels=True))


def test_consensus_keeps_solutions_with_the_same_first_mistake():
    """The judge's probabilities above ½ are right steps. 1: no mistake; 2: same step; 3: another; 4: one finds none;
    5: the judge's maximum length cut the last step; 6: the solution has no step."""
    labels = [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (1.0, 1.0), ()]
    judged = [[0.9, 0.6], [0.7, 0.5], [0.8, 0.1], [0.9, 0.2], [0.9], []]
    solutions = [Trajectory("p", f"s{i}", 1.0, label) for i, label in enumerate(labels, start=1)]
    kept = in_agreement(solutions, [np.array(each) for each in judged])
    assert [solution.response for solution in kept] == ["s1", "s2"]


def test_consensus_in_a_stage(tmp_path, policy, judges, monkeypatch):
    needs = (f"needs.policy={policy}", f"needs.judge={judges['prm']}", f"outputs={tmp_path}")
    stage = planned("prm_consensus", *SMALL, *STEPS, "algorithm.rollouts=2", *needs)
    metrics = execute(stage)["metrics"]
    assert 0 < metrics["consensus/kept"] <= 1 and not undeclared(metrics)
    assert metrics["trajectories"] == pytest.approx(48 * metrics["consensus/kept"])
    assert 0 <= metrics["consensus/right_before"] <= 1 and 0 <= metrics["consensus/right"] <= 1
    stage = planned("prm_consensus", *SMALL, *STEPS, *needs, f"needs.judge={judges['orm']}")
    with pytest.raises(ArtifactError, match="was trained as orm, which judges no steps"):
        execute(stage)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=gsm8k", "data.path=owner/name", "algorithm.labels=annotated"], "needs a world that judges steps"),
        (["algorithm.labels=consensus"], "needs a second source of labels; set needs.judge"),
        (["+needs.judge=orm"], r"needs\.judge is used only by algorithm\.labels=consensus"),
        (["data=gsm8k", "data.path=owner/name", "algorithm.demonstrations=false"], "do not judge steps, so"),
    ],
)
def test_labels_without_a_source_are_refused_before_anything_runs(overrides, message):
    with pytest.raises(ConfigError, match=message):
        checked("prm", *overrides)


def test_the_label_source_follows_the_data(tmp_path):
    world = Run(tmp_path, checked("prm", *SMALL), {})
    assert label_source(world.config.algorithm, world) == "annotated"
    world.corpus = replace(world.corpus, oracle=None)
    assert label_source(world.config.algorithm, world) == "perturbed"
    assert label_source(replace(world.config.algorithm, labels="monte_carlo"), world) == "monte_carlo"
    assert label_source(checked("orm", *SMALL).algorithm, world) == "outcome"


GSM8K = [
    {
        "question": f"Ann has {a} pens and buys {b} more. She gives {c} away. How many are left?",
        "answer": f"She has {a} + {b} = <<{a}+{b}={a + b}>>{a + b} pens.\n"
        f"Then {a + b} - {c} = <<{a + b}-{c}={a + b - c}>>{a + b - c} are left.\n#### {a + b - c}",
    }
    for a in range(5, 15)
    for b in range(2, 8)
    for c in (1, 3)
]


def test_prm_and_step_report_on_gsm8k_s_format(tmp_path):
    """The same two commands as on the world: planted mistakes train the model and are detected in the report."""
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    data = ("data=gsm8k", f"data.path={path}", "rollout.max_new_tokens=24", "checkpoint.every_steps=0", *ONE_LAYER)
    few = ("++stages.sft.algorithm.epochs=1", f"outputs={tmp_path / 'outputs'}")
    stage = planned("prm", *data, *STEPS, *few)
    ensure(stage, 0)
    result = stage.result()
    assert any("step labels: perturbed" in note for note in result["notes"])
    assert result["metrics"]["positions"] > result["metrics"]["trajectories"] >= 24
    report = planned("step_report", *data, *few, f"needs.judge={stage.model}", "evaluation.prompts=8", *REPORT)
    ensure(report, 0)
    metrics = report.result()["metrics"]
    assert {"planted_caught_10", "planted_process_f1", "best_of_n", "majority"} <= metrics.keys()
    assert "caught_10" not in metrics  # nobody knows which steps of the policy's own solutions are wrong


@pytest.mark.parametrize("recipe", ["prm", "prm_perturbed", "prm_mc"])
def test_resumed_equals_uninterrupted(recipe, tmp_path, policy, monkeypatch):
    rollouts = ("algorithm.rollouts=2",) if recipe == "prm_mc" else ()

    def plan(directory: str, every: int):
        needs = (f"needs.policy={policy}", f"outputs={tmp_path / directory}", f"checkpoint.every_steps={every}")
        return planned(recipe, *SMALL, *STEPS, *rollouts, *needs)

    full, parts = plan("whole", 0), plan("parts", 1)
    first, second = execute(full), execute_with_stops(monkeypatch, StepRewardModelling, parts, 2, 7)
    assert_equal_models(full, parts)
    assert first["metrics"] == second["metrics"] and any("resumed" in note for note in second["notes"])
    assert (Path(full.model) / "step_judge.json").exists()


def test_both_are_terms_of_the_reward_graph(tmp_path, policy, judges):
    needs = {"policy": str(policy), **{name: str(path) for name, path in judges.items()}}
    named = (f"+needs.prm={judges['prm']}", f"+needs.orm={judges['orm']}")
    config = checked("grpo_math", *SMALL, "reward=[verifier,prm,orm]", "reward.terms.prm.aggregate=mean", *named)
    run = Run(tmp_path, config, needs)
    reward, pairs = build_reward(run), run.corpus.train[:3]
    found = reward(run.corpus.episodes([pair.prompt for pair in pairs], [pair.chosen for pair in pairs]))
    assert {"verifier", "prm", "orm", "prm/min", "prm/mean", "prm/prod", "prm/last", "prm/steps"} <= set(found.parts)
    np.testing.assert_allclose(found.parts["prm"], found.parts["prm/mean"])
    expected = found.parts["verifier"] + found.parts["prm"] + found.parts["orm"]
    np.testing.assert_allclose(found.total_N, expected)
    swapped = Run(tmp_path, config, {**needs, "prm": needs["orm"]})
    with pytest.raises(ArtifactError, match=r"was trained as orm; use reward=orm"):
        build_reward(swapped)
    with pytest.raises(ArtifactError, match="not a process or outcome reward model"):
        build_reward(Run(tmp_path, config, {**needs, "prm": str(policy)}))


def test_a_policy_trains_on_the_reward_of_its_steps(tmp_path, policy, judges):
    small = ("algorithm.iterations=2", "algorithm.prompts_per_iteration=4", "algorithm.group_size=2")
    named = (f"needs.policy={policy}", f"+needs.prm={judges['prm']}", "reward=[verifier,prm]")
    stage = planned("grpo_math", *SMALL, *small, "algorithm.batch_size=8", *named, f"outputs={tmp_path}")
    assert execute(stage)["status"] == "completed"


def test_the_report_has_every_number_with_its_n(tmp_path, policy, judges):
    found = {}
    for name, path in judges.items():
        needs = (f"needs.policy={policy}", f"needs.judge={path}", f"outputs={tmp_path}")
        stage = planned("step_report", *SMALL, "algorithm.samples=4", "algorithm.choose_from=2", *needs)
        found[name] = execute(stage)["metrics"]
        rows = read_jsonl(stage.directory / "steps.jsonl")
        assert sum(row["set"] == "own" for row in rows) == 8 * 4
        assert all(len(row["labels"]) == len(row["steps"]) for row in rows)
        assert any(row["set"] == "planted" and row["correct"] and 0 in row["labels"] for row in rows)
    shared = {"planted_caught_5", "planted_process_f1", "process_error", "best_of_n", "majority", "oracle", "correct"}
    for metrics in found.values():
        assert shared <= set(metrics)
        assert metrics["best_of_n"]["clusters"] == 8 and metrics["correct"]["n"] == 32
        assert metrics["best_of_n"]["mean"] <= metrics["oracle"]["mean"] + 1e-9
    assert "best_of_n/prod" in found["prm"] and "best_of_n/prod" not in found["orm"]
    same = ("oracle", "majority", "correct")
    assert all(found["prm"][name] == found["orm"][name] for name in same)  # the same samples


def test_a_judge_that_knows_the_truth_finds_everything():
    """Perfect step probabilities: all critical solutions caught, F1 1; probabilities of the answer alone: none."""
    steps = [(1.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)] * 20
    solutions = [Trajectory("", "", float(labels[-1]), labels) for labels in steps]
    prompts = np.arange(80) // 4
    knows = GradedSolutions(solutions, prompts, np.array([min(s) for s in steps]), [np.array(s) for s in steps])
    found = truth_metrics(knows)
    assert found["caught_5"].mean == 1 and found["caught_5"].n == 20 and found["false_alarm_5"].mean == 0
    assert found["process_f1"].mean == 1
    outcome = [np.array([s[-1]] * 2) for s in steps]
    blind = truth_metrics(GradedSolutions(solutions, prompts, np.array([s[-1] for s in steps]), outcome))
    assert blind["caught_10"].mean == 0
    assert blind["process_f1"].mean < 0.8
    assert SimpleNamespace(**found).process_error.n == 40


PLANTED = (
    *("data=arithmetic", "data.largest=10", "data.min_steps=2", "data.max_steps=2", "data.train_problems=600"),
    *("data.test_problems=100", "model.hidden=32", "model.heads=2", "rollout.max_new_tokens=20"),
    *("evaluation.prompts=100", "checkpoint.every_steps=0", "algorithm.samples=2", "algorithm.choose_from=2"),
    "stages.sft.algorithm.epochs=3",
)


@pytest.mark.slow
@pytest.mark.long
def test_steps_locate_the_mistake_that_the_outcome_does_not(tmp_path):
    """Problems of two steps up to 10: trained on the same solutions, the judge of steps names the first wrong one."""
    found = {}
    for kind in ("prm", "orm"):
        sizes = ("problems=600", "trajectories=4", "epochs=6")
        own = [f"stages.{kind}.algorithm.{size}" for size in sizes]
        stage = planned("step_report", *PLANTED, *own, f"needs.judge={kind}", f"outputs={tmp_path}")
        ensure(stage, 0)
        found[kind] = stage.result()["metrics"]
    for name in ("planted_process_f1", "planted_caught_10"):
        assert found["prm"][name]["low"] > found["orm"][name]["high"], name
    assert found["prm"]["planted_process_f1"]["mean"] > 0.6
    for metrics in found.values():
        alarms = metrics["planted_false_alarm_10"]
        # Twice the 95 % interval: two judges are looked at, and floating-point sums differ between CPUs.
        assert abs(alarms["mean"] - 0.1) < alarms["high"] - alarms["low"]


def test_solutions_without_a_step_within_the_length_are_refused(tmp_path, policy):
    config = planned("prm", *SMALL, *STEPS, f"needs.policy={policy}", "algorithm.max_length=8").config
    with pytest.raises(DataError, match=r"none of 48 solutions has a step within algorithm\.max_length=8 tokens"):
        StepRewardModelling(config.algorithm, Run(tmp_path, config, {"policy": str(policy)}))


def test_labels_stop_at_the_first_error_unless_completions_gave_them(tmp_path, policy):
    def trained(recipe: str, *more: str) -> StepRewardModelling:
        config = planned(recipe, *SMALL, *STEPS, f"needs.policy={policy}", *more).config
        return StepRewardModelling(config.algorithm, Run(tmp_path, config, {"policy": str(policy)}))

    cut, full = (trained("prm", f"algorithm.up_to_first_error={value}") for value in ("true", "false"))
    assert [a.row for a in cut.rows] == [b.row for b in full.rows]
    for few, many in zip(cut.labels, full.labels, strict=True):
        assert few == many[: len(few)] and 0.0 not in few[:-1]
        assert few == many or few[-1] == 0.0
    assert any(len(a) < len(b) for a, b in zip(cut.labels, full.labels, strict=True))
    completions = trained("prm_mc", "algorithm.rollouts=1")
    assert all(len(each) == len(row.ends) for each, row in zip(completions.labels, completions.rows, strict=True))
