"""The reward graph: terms, weights, transforms, calibration and failures, by hand."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked, planned, said

from rlhf_lab.config import registry
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.types import Corpus, RewardBatch
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.combine import combine, unverified
from rlhf_lab.rewards.external import remote
from rlhf_lab.rewards.external.remote import RemoteReward
from rlhf_lab.rewards.external.settings import Remote
from rlhf_lab.rewards.graph import GraphReward
from rlhf_lab.rewards.learned.ensemble import combine_members
from rlhf_lab.rewards.rules.settings import EnvironmentTurns, Gold, Length, Programmatic, VerifierTerm
from rlhf_lab.rewards.settings import RewardGraph

CORPUS = Corpus("toy", [], [], "")
RUN = SimpleNamespace(config=SimpleNamespace(rollout=SimpleNamespace(max_new_tokens=256)), corpus=CORPUS)
SERVICE = "http://127.0.0.1:9/score"
PARTS = {"a": np.array([1.0, -2.0, np.nan]), "b": np.array([0.5, 4.0, 1.0])}


def graph(**settings) -> RewardGraph:
    return RewardGraph(terms={"a": Gold(weight=2.0), "b": Gold(weight=-1.0)}, **settings)


def test_a_weighted_sum_by_hand():
    """2·1 − .5 = 1.5; 2·(−2) − 4 = −8; an unscored term leaves the response unscored."""
    assert combine(PARTS, graph())[:2].tolist() == [1.5, -8]
    assert np.isnan(combine(PARTS, graph())[2])


def outcome_and_length(**settings) -> RewardGraph:
    return RewardGraph(terms={"a": VerifierTerm(weight=2.0), "b": Length(weight=-1.0)}, **settings)


def test_what_of_a_reward_is_not_the_outcome():
    """−1 · b added to 2 · a; nothing if both are outcomes; unknown without one, or if nothing is added."""

    def rest(settings):
        return unverified(combine(PARTS, settings), PARTS, settings)

    assert rest(outcome_and_length()).tolist()[:2] == [-0.5, -4] and np.isnan(rest(outcome_and_length())[2])
    assert rest(outcome_and_length(weights={"a": 3.0, "b": 1.0}))[:2].tolist() == [0.5, 4]
    assert rest(outcome_and_length(weights={"a": 1.0, "b": 0.0}))[:2].tolist() == [0, 0]
    assert rest(graph())[:2].tolist() == rest(graph(temperature=2.0))[:2].tolist() == [0, 0]  # two outcomes
    assert rest(RewardGraph(terms={"a": Length(), "b": Programmatic()})) is None
    for not_a_sum in ({"temperature": 2.0}, {"max_confidence": 0.9}):
        assert rest(outcome_and_length(**not_a_sum)) is None
    assert EnvironmentTurns().outcome and not VerifierTerm(format_bonus=0.1).outcome


def test_a_checked_graph_says_what_is_not_the_outcome():
    words = CheckedReward("length", Words())
    settings = RewardGraph(terms={"right": VerifierTerm(), "length": Length(weight=-0.5)})
    batch = GraphReward({"right": words, "length": words}, settings)(said(["p", "p"], ["one", "one two"]))
    assert batch.unverified_N.tolist() == [-0.5, -1.0]


@dataclass(frozen=True)
class Turns:
    """Scores every episode by these turns."""

    turns: tuple[float, ...]

    def score_episodes(self, episodes):
        totals_N = np.full(len(episodes), sum(self.turns))
        return RewardBatch(totals_N, turns=[list(self.turns) for _ in episodes])


def test_rewards_of_turns_are_weighed_like_the_total():
    """Weights 3 and 1: 3·1 + 1, 3·(−2) + 2, 3·6 − 3 and their sum."""
    of_turns = [4.0, -4.0, 15.0]
    terms = {"a": CheckedReward("a", Turns((1.0, -2.0, 6.0))), "b": CheckedReward("b", Turns((1.0, 2.0, -3.0)))}
    settings = RewardGraph(terms={"a": Gold(weight=3.0), "b": Gold(weight=1.0)})
    episode = Episode(Task("p"), "p", "r", [1], tuple(Segment([2], sampled=True) for _ in of_turns))
    batch = GraphReward(terms, settings)([episode])
    assert batch.turns == [of_turns]
    assert batch.total_N.tolist() == [15.0] == [sum(of_turns)]


def test_transform_and_temperature():
    settings = RewardGraph(terms={"a": Gold(transform="sigmoid")})
    assert combine(PARTS, settings)[0] == pytest.approx(1 / (1 + np.exp(-1)))
    assert combine(PARTS, graph(temperature=2.0))[:2].tolist() == [0.75, -4]


def test_every_node_is_kept():
    def ensemble(prompts, responses):
        return RewardBatch(np.array([1.0, 2.0]), {"member_0": np.array([0.0, 1.0])})

    terms = {"bt": CheckedReward("bt", ensemble), "length": CheckedReward("length", Words())}
    reward = GraphReward(terms, RewardGraph(terms={"bt": Gold(), "length": Length(weight=-0.5)}))
    batch = reward(said(["p", "p"], ["one", "one two"]))
    assert batch.total_N.tolist() == [0.5, 1.0]
    assert {name: values.tolist() for name, values in batch.parts.items()} == {
        "bt": [1, 2],
        "bt/member_0": [0, 1],
        "length": [1, 2],
    }


class Words:
    def __call__(self, prompts, responses):
        return RewardBatch(np.array([float(len(text.split())) for text in responses]))


@pytest.mark.parametrize(
    ("how", "options", "expected"),
    [
        ("mean", {}, [2, 2]),
        ("worst", {}, [1, 2]),
        ("uwo", {"penalty_weight": 0.5}, [2 - 0.5 * 2 / 3, 2]),
        ("uwo", {"penalty_weight": 0.5, "penalty": "sd", "ddof": 1}, [1.5, 2]),
        ("entropic", {"penalty_weight": 0.0}, [2, 2]),
        # −log((e⁻¹ + e⁻² + e⁻³)/3) = 1 − log((1 + e⁻¹ + e⁻²)/3)
        ("entropic", {"penalty_weight": 1.0}, [1.691, 2]),
        ("entropic", {"penalty_weight": 0.01}, [2 - 0.005 * 2 / 3, 2]),
        ("entropic", {"penalty_weight": 1000.0}, [1 + np.log(3) / 1000, 2]),
    ],
)
def test_ensembles_by_hand(how, options, expected):
    """Members 1 2 3: mean 2, variance 2/3 (ddof 0) or 1 (ddof 1); members that agree are not punished."""
    scores = np.array([[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]])
    found = combine_members(scores, how, **{"penalty_weight": 0.5, "penalty": "var", "ddof": 0, **options})
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_programmatic_rule():
    texts = ["short and good", "Certainly! short", "word " * 151, "word " * 225, "word " * 300]
    binary = registry.build("reward", Programmatic(), RUN)(["p"] * 5, texts)
    assert binary.total_N.tolist() == [1, 0, 0, 0, 0]
    assert binary.parts["affirms"].tolist() == [0, 1, 0, 0, 0]
    fading = registry.build("reward", Programmatic(mode="continuous"), RUN)(["p"] * 5, texts).total_N
    assert fading == pytest.approx([1, 0.5, 1 - 1 / 150, 0.5, 0])


def test_thresholds_scale_with_the_reply_limit():
    small = SimpleNamespace(config=SimpleNamespace(rollout=SimpleNamespace(max_new_tokens=64)))
    reward = registry.build("reward", Programmatic(), small)
    assert (reward.short_words, reward.long_words) == (37.5, 75)


def test_a_remote_reward_is_asked_in_batches_and_may_be_told_the_references(monkeypatch):
    requested: list[dict] = []

    def post_json(url, question, **options):
        requested.append(question)
        return json.dumps({"rewards": [None if text == "?" else len(text) for text in question["responses"]]}).encode()

    monkeypatch.setattr(remote, "post_json", post_json)
    scores = RemoteReward(Remote(url=SERVICE, batch_size=2))(["p"] * 3, ["one", "?", "three"]).total_N
    assert scores[[0, 2]].tolist() == [3, 5] and np.isnan(scores[1]) and len(requested) == 2
    reward = RemoteReward(Remote(url=SERVICE, send_references=True), {"p": "the answer"})
    reward(["p", "q"], ["a", "b"])
    assert requested[2] == {"prompts": ["p", "q"], "responses": ["a", "b"], "references": ["the answer", None]}


class Service(BaseHTTPRequestHandler):
    """Fails at the first request, and then answers with the lengths of the responses."""

    failures = 1

    def do_POST(self):
        requested = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = 500 if Service.failures else 200
        Service.failures = 0
        body = json.dumps({"rewards": [len(text) for text in requested["responses"]]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def test_a_remote_reward_over_http():
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        reward = RemoteReward(Remote(url=f"http://127.0.0.1:{server.server_port}/"), pause_s=0.0)
        assert reward(["p"] * 2, ["one", "three"]).total_N.tolist() == [3, 5]
        server.shutdown()
    assert Service.failures == 0


@pytest.mark.parametrize("answer", [{"rewards": [1.0]}, [1, 2], {"rewards": ["1", "2"]}, "rewards"])
def test_a_remote_reward_that_answers_wrongly_says_so(monkeypatch, answer):
    monkeypatch.setattr(remote, "post_json", lambda *arguments, **options: json.dumps(answer).encode())
    with pytest.raises(LabError, match="reward service http"):
        RemoteReward(Remote(url=SERVICE))(["p"] * 2, ["a", "b"])


def test_terms_are_chosen_and_weighed_on_the_command_line():
    more = ("reward=[bt,programmatic,length]", "reward.terms.length.weight=-0.2", "reward.temperature=2")
    found = checked("ppo", *more).reward
    assert list(found.terms) == ["bt", "programmatic", "length"]
    assert found.terms["length"].weight == -0.2 and found.temperature == 2
    assert checked("ppo", "reward=length", "needs.reward=null", "algorithm.critic=zero").reward.roles == set()


@pytest.mark.parametrize(
    ("overrides", "critic", "upstream"),
    [
        ([], "reward_model", ["sft", "reward_model"]),
        (["reward=gold"], "zero", ["sft"]),
        (["reward=length", "needs.reward=null"], "zero", ["sft"]),
        (["algorithm.critic=zero"], "zero", ["sft", "reward_model"]),
    ],
)
def test_the_critic_that_nobody_wrote_fits_the_reward(overrides, critic, upstream):
    stage = planned("ppo", *overrides)
    assert stage.config.algorithm.critic == critic
    assert [part.recipe for part in stage.upstream()] == [*upstream, "ppo"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward=[bt,programatic]"], "did you mean programmatic"),
        (["reward.terms.bt.penalty_weight=-1"], "reward.terms.bt.penalty_weight=-1"),
        (["reward=[]"], "choose at least one"),
        (["reward.temperature=0"], "above 0"),
        (["rollout.temperature=0"], "always samples the same response"),
        (["needs.reward=null"], "needs.reward is not set"),
        (["reward=gold", "algorithm.critic=reward_model"], "critic=reward_model has none to start from: reward=gold"),
        (["reward=remote", "reward.terms.remote.url=http://"], "is not an http address"),
        (["algorithm.iterations=2"], "set algorithm.critic_warmup=1 or lower, or algorithm.iterations=4 or higher"),
        (["algorithm.iterations=5", "reward.monitor.action=stop"], "set algorithm.iterations=8 or higher"),
    ],
)
def test_wrong_graphs_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        checked("ppo", *overrides)
