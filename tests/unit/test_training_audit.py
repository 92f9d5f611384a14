"""The audit of a run: what it samples, when it acts, what it stores, and which configs are refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import checked, planned, said, toy_rows, write_pairs
from torch import nn

from rlhf_lab.algorithms.policy_gradient import on_policy
from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.monitoring import alerts, audit
from rlhf_lab.monitoring.settings import Alerts, Audit
from rlhf_lab.reports.monitor.panels import audited
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.training.run import seed_for

PROMPTS = ("a", "b", "c")
M = 8


class Collector:
    """Sampler that gives every response of the run a number, and records who was sampled with which seed."""

    def __init__(self):
        self.calls: list[tuple[object, list[str], int]] = []
        self.sampled = 0

    def collect(self, model, tasks, group, seed):
        assert group == 1
        self.calls.append((model, [task.prompt for task in tasks], seed))
        first = self.sampled
        self.sampled += len(tasks)
        texts = [f"response {first + i}" for i in range(len(tasks))]
        return [[episode] for episode in said([task.prompt for task in tasks], texts)]


class Comparer:
    """Answers every comparison with the next of the given scores, the last one forever."""

    def __init__(self, *scores: float):
        self.scores = list(scores)
        self.texts: list[tuple[str, str]] = []

    def __call__(self, first, second):
        self.texts += [(a.response, b.response) for a, b in zip(first, second, strict=True)]
        score = self.scores.pop(0) if len(self.scores) > 1 else self.scores[0]
        return np.full(len(first), score)


@pytest.fixture
def auditor(tmp_path, monkeypatch):
    """A function that makes an auditor of 20 iterations whose comparisons have given scores."""

    def make(*scores: float, continue_paused: bool = False, **settings):
        comparer = Comparer(*scores)
        monkeypatch.setattr(audit, "load", lambda reference: lambda run: comparer)
        graph = RewardGraph(terms={"a": object()}, audit=Audit(labels_per_iteration=M, **settings))
        run = SimpleNamespace(
            config=SimpleNamespace(reward=graph, alerts=Alerts(continue_paused=continue_paused)),
            corpus=SimpleNamespace(tasks=lambda split: [Task(prompt) for prompt in PROMPTS]),
            directory=tmp_path,
            seed=lambda purpose, index=0: seed_for(0, purpose, index),
            notes=[],
        )
        run.note = run.notes.append
        model = nn.Linear(2, 1)
        start = nn.Linear(2, 1)
        start.load_state_dict(model.state_dict())
        made = audit.Auditor(run, model, start, Collector(), 20)
        made.comparer = comparer
        return made

    return make


def test_no_response_is_compared_twice(auditor):
    """Eight comparisons of three prompts repeat prompts in every iteration, never a response of either side."""
    made = auditor(0.5)
    for iteration in range(1, 6):
        made.check(iteration)
    calls = made.collector.calls
    assert [model is made.start for model, _, _ in calls] == [False, True] * 5
    assert len({seed for _, _, seed in calls}) == 10
    assert len({tuple(prompts) for _, prompts, _ in calls}) == 5, "every iteration selects its own prompts"
    for (_, ours, _), (_, theirs, _) in zip(calls[::2], calls[1::2], strict=True):
        assert ours == theirs and len(ours) == M
    responses = [text for pair in made.comparer.texts for text in pair]
    assert len(set(responses)) == len(responses) == 2 * M * 5


def test_the_same_iteration_has_the_same_prompts_and_seeds(auditor):
    one, other = auditor(0.5), auditor(0.5)
    one.check(3)
    other.check(3)
    assert [call[1:] for call in one.collector.calls] == [call[1:] for call in other.collector.calls]


def test_a_row_has_the_comparisons_and_the_state(auditor, tmp_path):
    made = auditor(1.0, 0.0)
    metrics = [made.check(iteration) for iteration in (1, 2)]
    rows = read_jsonl(tmp_path / "audit.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2]
    first = rows[0]["comparisons"][0]
    assert first == {"prompt": first["prompt"], "response": "response 0", "start": "response 8", "score": 1.0}
    for row, values in zip(rows, metrics, strict=True):
        assert {f"audit/{name}" for name in row} >= values.keys()
        assert all(row[name.removeprefix("audit/")] == value for name, value in values.items())
    assert metrics[0]["audit/win_rate"] == 1 and metrics[1]["audit/win_rate"] == 0.5
    assert metrics[1]["audit/labels"] == 2 * M and metrics[1]["audit/unanswered"] == 0


def losses_until_alarm(made) -> int:
    for iteration in range(1, 21):
        made.check(iteration)
        if made.alarm_at is not None:
            return iteration
    raise AssertionError("no alarm")


def test_an_alarm_is_reported_once(auditor, monkeypatch):
    sent = []
    monkeypatch.setattr(alerts, "announce", lambda run, alarm: sent.append(alarm))
    made = auditor(0.0)
    at = losses_until_alarm(made)
    made.check(at + 1)
    assert 1 < at <= 4 and made.alarm_at == at and len(sent) == 1
    assert sent[0].level == "hard_stop" and sent[0].signals == ["audit"] and not sent[0].paused
    assert made.run.notes[0].startswith(f"audit: the policy after {at} of 20 iterations is worse than the start policy")
    assert made.stopped is None and not made.pause
    totals = made.totals()
    assert totals["audit/alarm"] == 1 and totals["audit/alarm_at"] == at and totals["audit/certified_at"] == 0


def test_stop_restores_the_policy_that_was_certified_last(auditor):
    """Three iterations are won, later ones lost. A window of 24 wins and 8 losses still certifies:
    0.75 − √(log(400)/64) = 0.444; with 16 losses 0.6 − √(log(400)/80) = 0.326 does not, as the limit is 0.4.
    """
    made = auditor(1.0, 1.0, 1.0, 0.0, action="stop")
    for iteration in range(1, 21):
        with torch.no_grad():
            made.model.weight.fill_(iteration)
        made.check(iteration)
        if made.stopped:
            break
    assert made.certified_at == 4 < made.stopped <= 12
    assert made.model.weight.tolist() == [[made.stopped, made.stopped]]  # still to be evaluated by the algorithm
    made.restore_certified()
    assert made.model.weight.tolist() == [[4.0, 4.0]]
    assert "training ends with the policy after 4 iterations, which was certified last" in made.run.notes[0]


def test_a_stopped_run_delivers_the_certified_policy(monkeypatch):
    """The alarm after 4 iterations of 2 steps is judged by the policy of step 7; the result is the certified one."""
    monkeypatch.setattr(on_policy, "corpus_report", lambda corpus, encoder: {})
    steps: list[object] = []
    empty = SimpleNamespace(on=True, totals=lambda *truth: {})
    algorithm = SimpleNamespace(
        audit=SimpleNamespace(on=True, stopped=4, restore_certified=lambda: steps.append("restored"), totals=dict),
        evaluator=SimpleNamespace(
            policies=[],
            evaluate=lambda title, model: steps.append((title, model)),
            evaluate_reference=lambda: None,
            gold_truth=lambda iterations: None,
        ),
        finished=True,
        monitor=empty,
        rollouts=empty,
        evaluate=steps.append,
        settings=SimpleNamespace(steps_per_iteration=2),
        run=SimpleNamespace(corpus=None),
        encoder=None,
        title="PPO",
        model="model",
        generated=0,
        beta=0.1,
        _evaluated_iterations=dict,
    )
    on_policy.OnPolicy.finish(algorithm)
    assert steps == [7, "restored", ("PPO", "model")]


def test_stop_without_a_certified_policy_ends_with_the_start(auditor):
    made = auditor(0.0, action="stop")
    with torch.no_grad():
        made.model.weight.fill_(7)
    at = losses_until_alarm(made)
    made.restore_certified()
    assert made.stopped == at and torch.equal(made.model.weight, made.start.weight)
    assert "training ends with the start policy" in made.run.notes[0]


def test_nothing_is_certified_after_an_alarm(auditor):
    """The e-process has found an earlier policy worse, although the last 128 comparisons are all won."""
    made = auditor(*[0.0] * 4, 1.0)
    for iteration in range(1, 21):
        made.check(iteration)
    assert made.alarm_at is not None and made.alarm_at <= 4
    assert made.lower_bound() > 0.5 and made.certified_at == 0


def test_pause_asks_before_training_goes_on_if_it_can(auditor):
    paused = auditor(0.0, action="pause")
    losses_until_alarm(paused)
    assert "alerts.continue_paused=true" in paused.pause
    going_on = auditor(0.0, action="pause", continue_paused=True)
    going_on.load_state_dict(paused.state_dict())
    assert not going_on.pause and going_on.alarm_at == paused.alarm_at
    again = auditor(0.0, action="pause")
    again.load_state_dict(paused.state_dict())
    assert again.pause == paused.pause
    made = auditor(0.0, action="pause", labels_from="gold")
    while made.alarm_at is None:  # `token_budget` may end training before the last planned iteration
        made.check(7, final=True)
    assert made.alarm_at == 7 and not made.pause and "training had ended" in made.run.notes[0]


def test_unanswered_comparisons(auditor):
    """`skip` leaves the e-value; `win` counts them for the policy there, and against it in the lower bound."""
    skipped = auditor(float("nan"))
    metrics = skipped.check(1)
    assert metrics["audit/e_value"] == 1 and np.isnan(metrics["audit/win_rate"]) and metrics["audit/unanswered"] == M
    assert skipped.totals()["audit/win_rate"] is None
    assert skipped.run.notes == ["audit: no comparison was answered, so nothing was tested"]
    answered = [0.0] * 3
    for missing, lower in (("skip", True), ("win", False)):
        made = auditor(*answered, float("nan"), missing=missing)
        values = [made.check(iteration)["audit/e_value"] for iteration in range(1, 5)]
        assert (values[3] == values[2]) is lower and (values[3] < values[2]) is not lower
    bounds = {}
    for missing in ("skip", "win"):
        made = auditor(*[1.0] * 8, float("nan"), missing=missing)
        bounds[missing] = [made.check(iteration)["audit/lower_bound"] for iteration in range(1, 12)][-1]
    assert bounds["win"] < bounds["skip"]


def test_resumed_equals_uninterrupted(auditor, tmp_path):
    scores = np.random.default_rng(0).choice([0.0, 0.5, 1.0], 12).tolist()
    whole = auditor(*scores, action="stop")
    expected = [whole.check(iteration) for iteration in range(1, 13)]
    trace = read_jsonl(tmp_path / "audit.jsonl")
    (tmp_path / "audit.jsonl").unlink()
    first = auditor(*scores, action="stop")
    before = [first.check(iteration) for iteration in range(1, 6)]
    state = json.loads(json.dumps({name: value for name, value in first.state_dict().items() if name != "certified"}))
    first.check(6)  # lost in the interruption
    second = auditor(*scores[5:], action="stop")
    second.load_state_dict({**state, "certified": first.state_dict()["certified"]})
    after = [second.check(iteration) for iteration in range(6, 13)]
    assert before + after == expected
    resumed = read_jsonl(tmp_path / "audit.jsonl")
    assert [row | {"comparisons": []} for row in resumed] == [row | {"comparisons": []} for row in trace]


def test_an_audit_that_is_off_does_nothing(tmp_path):
    graph = RewardGraph(terms={"a": object()})
    run = SimpleNamespace(config=SimpleNamespace(reward=graph), directory=tmp_path)
    made = audit.Auditor(run, None, None, None, 20)
    assert not made.on and made.check(1) == {} == made.totals() == made.state_dict()
    made.load_state_dict({})
    assert not list(tmp_path.iterdir())


def test_gold_compares_by_order_only():
    """The null check of a detector: unit and zero of gold do not matter. An unscored side gives no answer."""
    gold = np.array([3.0, 1.0, 2.0, np.nan, 2.0, 1.0, 5.0, 0.0])

    def comparer(values):
        run = SimpleNamespace(corpus=SimpleNamespace(measure=lambda episodes: {"gold": values}))
        return audit.by_gold(run)

    first = second = said(["p"] * 4, ["r"] * 4)
    expected = [1.0, 0.5, 0.0, np.nan]
    for values in (gold, 100 * gold - 7, np.exp(gold)):
        np.testing.assert_array_equal(comparer(values)(first, second), expected)


# --- settings ----------------------------------------------------------------------------------------------------

ON = "reward.audit.labels_per_iteration=8"


def test_an_audit_that_is_off_leaves_the_key(tmp_path):
    plain = planned("ppo", f"outputs={tmp_path}")
    off = planned("ppo", f"outputs={tmp_path}", "reward.audit.labels_per_iteration=0")
    assert plain.settings_key == off.settings_key
    on = planned("ppo", f"outputs={tmp_path}", ON)
    assert on.settings_key != plain.settings_key
    assert "rlhf_lab/monitoring/audit.py:by_gold" in on.code


def test_what_cannot_be_audited_is_refused(tmp_path):
    pairs = ("data=pairs", f"data.path={write_pairs(tmp_path / 'pairs.jsonl', toy_rows(20))}")
    with pytest.raises(ConfigError, match=r"reward\.audit\.labels_from=gold: data=pairs has no true reward"):
        checked("ppo", *pairs, ON)
    assert checked("ppo", *pairs, ON, "needs.gold=reward_model").reward.audit.on
    for message, recipe, *more in (
        (r"algorithm=best_of_n trains no policy on its own samples", "best_of_n"),
        (r"labels_from: dice is not one of gold", "ppo", "reward.audit.labels_from=dice"),
        (r"sharding=fsdp divides", "ppo", "reward.audit.action=stop", "sharding=fsdp_full"),
        (r"labels_per_iteration=8: .* controls when samples are drawn", "grpo", "engine=trl"),
        (r"with its start, but needs\.soup makes the reference another model", "ppo_salsa"),
        (r"delta=0\.5 must be at least 0 and below 0\.5", "ppo", "reward.audit.delta=0.5"),
        (r"reward\.audit\.from .*labels_from", "ppo", "reward.audit.from=gold"),
    ):
        with pytest.raises(ConfigError, match=message):
            checked(recipe, ON, *more)


# --- report ------------------------------------------------------------------------------------------------------


def test_the_section_of_a_report(auditor, tmp_path):
    made = auditor(1.0, 0.0)
    for iteration in range(1, 8):
        made.check(iteration)
    settings = {"reward": {"audit": {"alpha": 0.05, "delta": 0.1, "labels_from": "gold"}}}
    section = audited(SimpleNamespace(path=tmp_path, settings=settings))
    assert section.note.startswith(f"Alarm after {made.alarm_at} iterations: the e-value reached 20 (56 comparisons")
    assert "at most 5% of runs" in section.note and "at least 0.4" in section.note
    assert len(section.figures) == 2 and len(section.table.rows) == 8 and section.table.rows[0][0] == "7"
    (tmp_path / "audit.jsonl").unlink()
    assert audited(SimpleNamespace(path=tmp_path, settings=settings)) is None
