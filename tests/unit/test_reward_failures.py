"""Rewards that misbehave: a clear error, or a counted abstention; never a silent zero, and never a swallowed stop."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support import said

from rlhf_lab.core.errors import BudgetExceeded, LabError, NumericError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.calling import nan_count, scores
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.external import remote
from rlhf_lab.rewards.external.callable import CallableReward
from rlhf_lab.rewards.external.settings import Remote
from rlhf_lab.rewards.graph import GraphReward, OneNote
from rlhf_lab.rewards.rules.settings import Gold
from rlhf_lab.rewards.settings import RewardGraph

FINE = np.array([1.0, 2.0])
WRONG = {
    "shape": (np.zeros(7), "returned 7 values for 2 responses"),
    "table": (np.zeros((2, 1)), "values of shape \\(2, 1\\) for 2 responses"),
    "nothing": (None, "returned None for 2 responses"),
    "short list": ([1.0], "returned 1 value for 2 responses"),
    "infinite": (np.array([0.0, np.inf]), "infinite for response 1: 'b'"),
    "text in a list": ([1.0, "2.0"], "returned str '1.0'; expected one number per response, or None"),
    "dictionary": ({"a": 1.0}, "returned dict"),
}


def planted(total, parts=None) -> CheckedReward:
    return CheckedReward("mine", lambda prompts, responses: RewardBatch(total, parts or {}))


@pytest.mark.parametrize(("value", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_total_and_a_wrong_part_are_refused(value, message):
    with pytest.raises(NumericError, match=rf"reward mine .*{message}"):
        planted(value)(said(["p"] * 2, ["a", "b"]))
    with pytest.raises(NumericError, match=rf"part odd of reward mine .*{message}"):
        planted(FINE, {"odd": value})(said(["p"] * 2, ["a", "b"]))


@pytest.mark.parametrize("value", [None, [1.0, 2.0], np.zeros(2), RewardBatch(FINE, [1.0])])  # type: ignore[arg-type]
def test_something_else_than_a_batch_is_refused(value):
    with pytest.raises(NumericError, match=r"reward mine returned .*expected a RewardBatch"):
        CheckedReward("mine", lambda prompts, responses: value)(said(["p"] * 2, ["a", "b"]))


@pytest.mark.parametrize(
    "value",
    [np.ma.array([1.0, 5.0], mask=[False, True]), [1.0, None], [1, float("nan")], np.array([1.0, None], dtype=object)],
    ids=["masked", "none", "nan", "objects"],
)
def test_what_is_missing_abstains(value):
    reward = planted(value, {"same": value})
    batch = reward(said(["p"] * 2, ["a", "b"]))
    for found in (batch.total_N, batch.parts["same"]):
        assert found.dtype == np.float64 and type(found) is np.ndarray
        assert found[0] == 1 and np.isnan(found[1])
    assert (reward.scored, reward.abstained) == (1, 1)


def test_nan_is_counted_apart_from_what_is_missing():
    values = np.ma.array([np.nan, 5.0, 1.0], mask=[False, True, False])
    assert nan_count(values) == nan_count([float("nan"), None, 1]) == 1
    assert np.isnan(scores(values, ["a", "b", "c"], "reward mine")).tolist() == [True, True, False]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("timeout_s", [0.0, 5.0])
def test_a_stop_is_never_swallowed(stop, timeout_s):
    def stopping(prompts, responses):
        raise stop

    reward = CheckedReward("mine", stopping, on_error="abstain", timeout_s=timeout_s)
    with pytest.raises(stop):
        GraphReward({"mine": reward}, RewardGraph(terms={"mine": Gold()}))(said(["p"], ["a"]))


def test_one_note_keeps_count():
    def every_other(prompts, responses):
        calls.append(1)
        if len(calls) % 2:
            raise RuntimeError(f"no connection {len(calls)}")
        return RewardBatch(np.array([np.nan, 1.0]))

    run, calls = SimpleNamespace(notes=["before"]), []
    reward = CheckedReward("mine", every_other, on_error="abstain", note=OneNote(run.notes))
    for _ in range(4):
        reward(said(["p"] * 2, ["a", "b"]))
    assert run.notes == ["before", "reward mine: 6 of 8 responses unscored, 2 calls failed, first: no connection 1"]


@pytest.mark.parametrize("value", [-np.inf, "good", [1.0]], ids=str)
def test_one_value_that_is_none_costs_the_others_nothing(value):
    """`abstain` once left all responses of the call unscored."""
    notes = []
    reward = CheckedReward(
        "mine", lambda prompts, responses: RewardBatch([2.0, value, None, 3.0]), on_error="abstain", note=notes.append
    )
    if value == [1.0]:  # nested lists are another shape, which gives no score of single responses
        assert np.isnan(reward(said(["p"] * 4, list("abcd"))).total_N).all()
        return
    batch = reward(said(["p"] * 4, list("abcd")))
    np.testing.assert_array_equal(batch.total_N, [2.0, np.nan, np.nan, 3.0])
    assert (reward.scored, reward.abstained, reward.failed) == (2, 2, 1)
    assert "2 of 4 responses unscored, 1 calls failed, first: reward mine" in notes[-1]


def test_abstaining_is_advised_once_and_only_where_it_is_not_set():
    def broken(prompts, responses):
        raise RuntimeError("down")

    notes = []
    own = CallableReward(broken)
    abstaining = CheckedReward("mine", own, on_error="abstain", note=notes.append)
    abstaining(said(["p"], ["a"]))
    assert "RuntimeError: down" in notes[0] and "abstain" not in notes[0]
    graph = GraphReward({"mine": CheckedReward("mine", own)}, RewardGraph(terms={"mine": Gold()}))
    with pytest.raises(LabError) as caught:
        graph(said(["p"], ["a"]))
    assert str(caught.value).count("let it abstain with reward.terms.mine.on_error=abstain") == 1


class Answers:
    """A service of rewards: the length of each response; requests that hold `bad` fail, or have one odd value."""

    def __init__(self, bad="", odd=""):
        self.bad, self.odd, self.asked = bad, odd, 0

    def __call__(self, url, question, **options):
        self.asked += 1
        if self.bad and self.bad in question["responses"]:
            raise LabError("reward service does not answer")
        rewards = ["?" if text == self.odd else len(text) for text in question["responses"]]
        return json.dumps({"rewards": rewards}).encode()


@pytest.mark.parametrize(
    "answers, expected, asked",
    [
        (Answers(bad="cc"), [1, 1, np.nan, np.nan, 1, 1], 3),
        (Answers(odd="cc"), [1, 1, np.nan, 1, 1, 1], 3),
        (Answers(bad="a"), [np.nan] * 2 + [2, 1, 1, 1], 3),
    ],
)
def test_a_service_that_fails_for_one_request_scores_the_others(answers, expected, asked, monkeypatch):
    monkeypatch.setattr(remote, "post_json", answers)
    responses = ["a", "b", "cc", "d", "e", "f"]
    settings = Remote(url="http://127.0.0.1:9/x", batch_size=2, on_error="abstain")
    reward = CheckedReward("remote", remote.RemoteReward(settings), on_error="abstain")
    np.testing.assert_array_equal(reward(said(["p"] * 6, responses)).total_N, expected)
    assert answers.asked == asked
    stopping = CheckedReward("remote", remote.RemoteReward(replace(settings, on_error="stop")))
    with pytest.raises(LabError):
        stopping(said(["p"] * 6, responses))


def test_a_service_that_is_down_is_not_asked_about_the_rest(monkeypatch):
    answers = Answers(bad="a")
    monkeypatch.setattr(remote, "post_json", answers)
    settings = Remote(url="http://127.0.0.1:9/x", batch_size=1, on_error="abstain")
    reward = CheckedReward("remote", remote.RemoteReward(settings), on_error="abstain")
    assert np.isnan(reward(said(["p"] * 9, ["a"] * 9)).total_N).all()
    assert answers.asked == remote.GIVE_UP_AFTER


def test_a_term_that_fails_leaves_the_others_values():
    def broken(prompts, responses):
        raise RuntimeError("down")

    terms = {"a": CheckedReward("a", broken, on_error="abstain"), "b": planted(FINE)}
    batch = GraphReward(terms, RewardGraph(terms={"a": Gold(), "b": Gold()}))(said(["p"] * 2, ["x", "y"]))
    assert np.isnan(batch.total_N).all() and np.isnan(batch.parts["a"]).all()
    assert batch.parts["b"].tolist() == FINE.tolist()


def test_a_hanging_reward_does_not_keep_the_process():
    code = (
        "import time, numpy as np\n"
        "from rlhf_lab.core.episodes import Episode, Task\n"
        "from rlhf_lab.rewards.checked import CheckedReward\n"
        "hang = lambda prompts, responses: time.sleep(600)\n"
        "reward = CheckedReward('mine', hang, on_error='abstain', timeout_s=0.1)\n"
        "assert np.isnan(reward([Episode(Task('p'), 'p', 'a')]).total_N).all()\n"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert time.monotonic() - start < 55


def test_a_spent_budget_ends_the_run():
    """Every later response would be unscored as well, and the stage would pass for complete."""

    def spent(prompts, responses):
        raise BudgetExceeded("judge.budget_usd=1 does not cover the next request")

    with pytest.raises(BudgetExceeded):
        CheckedReward("mine", spent, on_error="abstain")(said(["p"], ["reply"]))
