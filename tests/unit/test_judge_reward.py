"""A judge as a reward: the world's, and a served one behind a real HTTP server. What is not a grade is unscored."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked, said

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.data.settings import GraderSettings, MiniHH
from rlhf_lab.environments.dialogue.criteria import CRITERIA
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.external.judge import ServedJudge, parse_grades, scored
from rlhf_lab.rewards.external.settings import Judge

GRADES = dict(zip(CRITERIA, (5, 4, 5, 2, 3), strict=True))
SCORE = (4 + 3 + 4 + 1 + 2) / 20


def completion(content, finish="stop", refusal=None):
    message = {"role": "assistant", "content": content, "refusal": refusal}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((dict(self.headers), asked))
            status, content = self.server.answer(asked)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.lock, server.asked = threading.Lock(), []
    server.url = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def judge(service, key="", note=lambda text: None, **settings):
    return ServedJudge(Judge(backend="openai", url=service.url, model="m", **settings), key, note, pause_s=0.0)


def by_reply(answers):
    """Answer by the reply that the question holds."""

    def answer(asked):
        text = asked["messages"][1]["content"]
        return next(found for reply, found in answers.items() if f"<reply>\n{reply}\n</reply>" in text)

    return answer


def test_the_score_by_hand():
    """(5 + 4 + 5 + 2 + 3 − 5)/20 = .7; all 1 is 0 and all 5 is 1: not the sum over 25, which would start at .2."""
    batch = scored(np.array([list(GRADES.values()), [1] * 5, [5] * 5, [np.nan] * 5], dtype=float))
    assert batch.total_N[:3] == pytest.approx([SCORE, 0, 1])
    assert np.isnan(batch.total_N[3])
    assert batch.parts["conciseness"][:3].tolist() == [2, 1, 5]


def test_a_served_judge_is_asked_for_each_reply(service):
    service.answer = lambda asked: (200, completion(json.dumps(GRADES)))
    reward = judge(service, key="secret", parallel=2)
    batch = reward(["\n\nHuman: hi\n\nAssistant:"] * 3, ["one", "two", "three"])
    assert batch.total_N == pytest.approx([SCORE] * 3)
    assert {name: batch.parts[name].tolist() for name in CRITERIA} == {name: [g] * 3 for name, g in GRADES.items()}
    assert len(service.asked) == 3
    headers, asked = service.asked[0]
    assert headers["Authorization"] == "Bearer secret"
    assert (asked["model"], asked["temperature"], asked["response_format"]) == ("m", 0, {"type": "json_object"})
    assert all(name in asked["messages"][0]["content"] for name in CRITERIA)
    assert "Human: hi" in asked["messages"][1]["content"]
    assert sum(reward.unscored.values()) == 0


def test_what_is_no_grade_is_unscored_and_counted(service):
    service.answer = by_reply(
        {
            "good": (200, completion(f"```json\n{json.dumps(GRADES)}\n```")),
            "refused": (200, completion(None, refusal="I can not grade this.")),
            "filtered": (200, completion("", "content_filter")),
            "cut": (200, completion(json.dumps(GRADES), "length")),
            "prose": (200, completion("All fives!")),
            "six": (200, completion(json.dumps({**GRADES, "honesty": 6}))),
            "four": (200, completion(json.dumps({k: v for k, v in GRADES.items() if k != "honesty"}))),
            "text": (200, completion(json.dumps({**GRADES, "honesty": "4"}))),
            "truth": (200, completion(json.dumps({**GRADES, "honesty": True}))),
        }
    )
    notes: list[str] = []
    replies = ["good", "refused", "filtered", "cut", "prose", "six", "four", "text", "truth"]
    reward = judge(service, note=notes.append)
    checked_reward = CheckedReward("judge", reward)
    batch = checked_reward(said(["p"] * len(replies), replies))
    assert batch.total_N[0] == pytest.approx(SCORE)
    assert np.isnan(batch.total_N[1:]).all()
    assert reward.unscored == {"refused": 2, "truncated": 1, "unparsable": 5}
    assert batch.parts["refused"].tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert batch.parts["unparsable"].sum() == 5
    assert (checked_reward.scored, checked_reward.abstained) == (1, 8)
    assert len(notes) == 3 and any("All fives!" in note for note in notes)


def test_a_failing_service_is_asked_again_and_then_given_up(service):
    answers = [(500, {}), (429, {}), (200, completion(json.dumps(GRADES)))]
    service.answer = lambda asked: answers.pop(0)
    assert judge(service)(["p"], ["r"]).total_N == pytest.approx([SCORE])
    service.asked.clear()
    service.answer = lambda asked: (503, {})
    with pytest.raises(LabError, match=r"judge http.*does not answer"):
        judge(service, retries=1)(["p"], ["r"])
    assert len(service.asked) == 2
    service.asked.clear()
    service.answer = lambda asked: (401, {})
    with pytest.raises(LabError, match="401"):
        judge(service)(["p"], ["r"])
    assert len(service.asked) == 1


@pytest.mark.parametrize("body", [b"<html>", {"error": "no"}, {"choices": []}, {"choices": [{"message": "x"}]}])
def test_another_kind_of_answer_is_an_error(service, body):
    service.answer = lambda asked: (200, body)
    with pytest.raises(LabError, match="expected a chat completion"):
        judge(service)(["p"], ["r"])


def test_grades_are_read_by_name_in_any_order():
    text = json.dumps({name.upper(): grade for name, grade in reversed(GRADES.items())} | {"why": "because"})
    assert parse_grades(text) == (5, 4, 5, 2, 3)
    assert parse_grades("[5, 4, 5, 2, 3]") is None
    assert parse_grades("") is None


def test_the_simulated_judge_is_the_world_s(monkeypatch):
    corpus = registry.build("data", MiniHH(train_pairs=30, test_pairs=1, grader=GraderSettings(noise=0.5)))
    run = SimpleNamespace(corpus=corpus, note=print)
    prompts, replies = [p.prompt for p in corpus.train], [p.chosen for p in corpus.train]
    batch = registry.build("reward", Judge(), run)(prompts, replies)
    grades = corpus.oracle.grade(prompts, replies, seed=0)
    assert batch.total_N == pytest.approx((grades.sum(axis=1) - 5) / 20)
    assert batch.parts["specificity"].tolist() == grades[:, 4].tolist()


def test_the_key_comes_from_the_environment(monkeypatch):
    settings = Judge(backend="openai", url="http://127.0.0.1:9/v1/chat/completions", model="m", api_key_env="LAB_KEY")
    monkeypatch.delenv("LAB_KEY", raising=False)
    with pytest.raises(ConfigError, match="LAB_KEY: the environment has no such variable"):
        registry.build("reward", settings, SimpleNamespace(note=print))
    monkeypatch.setenv("LAB_KEY", "secret")
    assert "secret" not in repr(registry.build("reward", settings, SimpleNamespace(note=print)).settings)


def test_judge_and_rubric_are_chosen_on_the_command_line():
    terms = checked("ppo", "reward=[bt,rubric,judge]", "+needs.rubric=rubric_rm", "reward.terms.judge.weight=.5").reward
    assert terms.roles == {"reward", "rubric"}
    assert terms.terms["judge"].weight == 0.5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward=[bt,rubric]"], "needs.rubric is not set"),
        (["reward=[bt,judge]", "data=pairs", "data.path=x.jsonl"], "data=pairs has no simulated judge"),
        (["reward=judge", "reward.terms.judge.backend=openai"], "url= is not an http address"),
    ],
)
def test_what_cannot_be_graded_is_refused_before_anything_runs(overrides, message):
    with pytest.raises(ConfigError, match=message):
        checked("ppo", *overrides)


def test_a_rubric_model_needs_grades():
    with pytest.raises(ConfigError, match="algorithm=rubric_rm needs graded replies"):
        checked("rubric_rm", "data=pairs", "data.path=x.jsonl")
    with pytest.raises(ConfigError, match="are all 0"):
        checked("rubric_rm", "algorithm.weights={helpfulness:0}")
    assert checked("rubric_rm", "data=helpsteer2", "model=gpt2").data.rank_by == "helpfulness"
