"""The policy that a run is judged by: one order, `core/policies.py`, for every command."""

from __future__ import annotations

import json

import pytest
from synthetic_runs import POLICIES, edited, write_run

from rlhf_lab.core.metrics import metric, scale_of
from rlhf_lab.core.policies import in_training_order, own_policy
from rlhf_lab.evaluations.best_of_n import choices, estimates, expected_values
from rlhf_lab.evaluations.suite.suite_file import RunMetric
from rlhf_lab.gates.scores import RunReader, SuiteCheck
from rlhf_lab.reports.comparison.compare import find_sides
from rlhf_lab.results.gains import compare_policies, policy_of
from rlhf_lab.results.rundir import read_run


def test_the_stored_order_decides_and_what_it_lacks_follows():
    evaluated = ["SFT", "iteration 1", "iteration 2", "one-pass DPO"]
    stored = ["SFT", "one-pass DPO", "iteration 1", "iteration 2"]
    assert in_training_order(stored, evaluated) == stored
    assert in_training_order([], ["SFT", "step 10", "SFT"]) == ["SFT", "step 10"]
    assert own_policy(stored) == "iteration 2" and own_policy([]) is None


def test_every_command_takes_the_own_policy_of_an_iterative_run(make_run):
    """Its baseline, one-pass DPO, stands last in evaluation.jsonl."""
    directory = make_run()
    rows = [json.loads(line) for line in (directory / "evaluation.jsonl").read_text().splitlines()]
    assert rows[-1]["policy"] == "one-pass DPO"
    run = read_run(directory)
    own = POLICIES[-1]
    one_pass = write_run(directory.parent, "one_pass", policies=POLICIES[:2])
    assert policy_of(run) == own
    assert [side.policy for side in find_sides(one_pass, directory)] == ["one-pass DPO", own]
    gold = RunReader(directory).scores(SuiteCheck("gold", "gold", RunMetric())).estimate
    assert gold.mean == pytest.approx(run.policies[-1].metrics["gold"].mean)
    assert run.metric("gold") == run.policies[-1].metrics["gold"] and run.policies[-1].name == own


def test_a_metric_of_an_input_is_read_from_its_run(tmp_path):
    written = write_run(tmp_path, "dpo")
    reward = write_run(tmp_path, "reward", lift=1.0)
    with edited(written / "manifest.json") as manifest:
        # The store was moved since: the input is found next to the run.
        manifest["needs"] |= {
            "reward": {"recipe": "reward_model", "key": "0", "dir": "/moved/reward"},
            "gold": {"recipe": None, "key": "0", "dir": str(reward)},
        }
    run = read_run(written)
    assert run.metric("reward:gold") == read_run(reward).metric("gold") != run.metric("gold")
    assert run.metric("reward:gold/best").mean == 0.75
    # a model from elsewhere has no run, `sft` is missing, and `judge` is no input
    assert run.metric("gold:gold") is run.metric("policy:gold") is run.metric("judge:gold") is None


def test_a_metric_of_an_input_has_the_title_and_the_scale_of_the_metric():
    assert metric("reward:accuracy").title == "accuracy of the reward" and metric("reward:accuracy").better == "higher"
    assert scale_of("reward:accuracy") == scale_of("accuracy") == "logit"
    assert scale_of("policy:kl") == "log"


def test_prompts_with_too_few_scored_responses_have_no_best_of_n(tmp_path):
    """The stage leaves them out of its means, and so do the report and the gate."""
    prompts = []
    for prompt in range(6):
        scores = [0.0, 1.0, 2.0, 3.0] if prompt < 3 else [None, 1.0, 2.0, 3.0]
        row = {"policy": "SFT", "prompt_id": prompt, "prompt": f"Q{prompt}", "response": "yes", "kl": 0.0}
        prompts.append([{**row, "sample_id": i, "proxy": score, "gold": i} for i, score in enumerate(scores)])
    expected = expected_values(prompts, prompts, [1, 4])
    values = {metric: values_PS[:, 1] for metric, values_PS in expected.items()}
    stored = {name: estimate.to_dict() for name, estimate in estimates(4, values, expected["proxy"][:, 0]).items()}
    rows = [row for responses in prompts for row in responses] + choices(prompts, 4, values)
    (tmp_path / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    policies = [{"name": "SFT", "metrics": {}}, {"name": "best of 4", "metrics": stored}]
    (tmp_path / "result.json").write_text(json.dumps({"status": "completed", "policies": policies, "metrics": {}}))
    (tmp_path / "manifest.json").write_text(json.dumps({"recipe": "best_of_n", "needs": {}}))
    run = read_run(tmp_path)
    found = compare_policies(run, "best of 4", "SFT", "gold")
    assert run.policies[1].metrics["gold"].n == 3 and found.difference.n == 3
    assert found.difference.mean == pytest.approx(3 - 1.5)
    gated = RunReader(tmp_path).scores(SuiteCheck("gold", "gold", RunMetric()))
    assert len(gated.outcomes) == 3
