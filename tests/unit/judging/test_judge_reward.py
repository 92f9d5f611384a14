"""A judge as a reward: the world's, and one that is asked. What is no verdict is unscored."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_judge import FakeJudge, text_of
from judge_server import JudgeServer, Said, connect, status
from support import checked, planned, said

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError, JudgeUnavailable
from rlhf_lab.data.world_settings import GraderSettings, MiniHH
from rlhf_lab.environments.dialogue.criteria import CRITERIA
from rlhf_lab.packs.judging.judges.backends.settings import Simulated, is_requested
from rlhf_lab.packs.judging.judges.requests import Completion
from rlhf_lab.packs.judging.judges.rubric import load_rubric
from rlhf_lab.packs.judging.rewards.judge import ComparisonReward, GradeReward, scored
from rlhf_lab.packs.judging.rewards.settings import Judge
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.stages import preflight

GRADES = dict(zip(CRITERIA, (5, 4, 5, 2, 3), strict=True))
SCORE = (4 + 3 + 4 + 1 + 2) / 20
FLAGS = ("refused", "truncated", "unparsable")


def graded(answer, note=lambda text: None, **settings):
    judge = FakeJudge(answer)
    return judge, GradeReward(judge, Judge(**settings), load_rubric(), note)


def test_the_score_by_hand():
    """(5 + 4 + 5 + 2 + 3 − 5)/20 = .7; all 1 is 0 and all 5 is 1: not the sum over 25, which would start at .2."""
    batch = scored(np.array([[*GRADES.values()], [1] * 5, [5] * 5, [np.nan] * 5], dtype=float), load_rubric())
    assert batch.total_N[:3] == pytest.approx([SCORE, 0, 1])
    assert np.isnan(batch.total_N[3])
    assert batch.parts["conciseness"][:3].tolist() == [2, 1, 5]


def test_a_judge_is_asked_for_each_reply():
    judge, reward = graded(lambda request: json.dumps(GRADES), max_tokens=99)
    batch = reward.score_episodes(said(["\n\nHuman: hi\n\nAssistant:"] * 3, ["one", "two", "three"]))
    assert batch.total_N == pytest.approx([SCORE] * 3)
    assert {name: batch.parts[name].tolist() for name in CRITERIA} == {name: [g] * 3 for name, g in GRADES.items()}
    assert len(judge.asked) == 3
    requested = judge.asked[0]
    assert requested.max_tokens == 99 and all(name in requested.system for name in CRITERIA)
    assert "hi" in text_of(requested) and "one" in text_of(requested)
    assert sum(reward.unscored.values()) == 0


def test_what_is_no_grade_is_unscored_and_counted():
    answers = {
        "good": f"```json\n{json.dumps(GRADES)}\n```",
        "refused": Completion("I can not grade this.", "refused"),
        "filtered": Completion("", "refused"),
        "cut": Completion(json.dumps(GRADES), "truncated"),
        "prose": "All fives!",
        "six": json.dumps({**GRADES, "honesty": 6}),
        "four": json.dumps({k: v for k, v in GRADES.items() if k != "honesty"}),
        "text": json.dumps({**GRADES, "honesty": "4"}),
        "truth": json.dumps({**GRADES, "honesty": True}),
    }
    notes: list[str] = []
    _, reward = graded(lambda request: answers[request.about.response], notes.append)
    checked_reward = CheckedReward("judge", reward)
    batch = checked_reward(said(["p"] * len(answers), list(answers)))
    assert batch.total_N[0] == pytest.approx(SCORE)
    assert np.isnan(batch.total_N[1:]).all()
    assert reward.unscored == {"refused": 2, "truncated": 1, "invalid": 5, "unanswered": 0}
    assert batch.parts["refused"].tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert batch.parts["unparsable"].sum() == 5
    assert (checked_reward.scored, checked_reward.abstained) == (1, 8)
    assert len(notes) == 3 and any("All fives!" in note for note in notes)


def test_a_reference_of_the_data_is_shown():
    judge, reward = graded(lambda request: json.dumps(GRADES), reference="answer")
    # an empty cell is no answer that the judge should take as right
    missing = [None, "", " \n", math.nan]
    reward.score_episodes(said(["p", *"qrst"], ["one", *"abcd"], answer=["right", *missing]))
    assert "right" in text_of(judge.asked[0]) and "reference answer" in judge.asked[0].system
    assert all("reference" not in text_of(asked) + asked.system for asked in judge.asked[1:])


def test_a_reply_is_compared_with_a_reference():
    """Whatever is shown, "good" wins; a judge who cannot tell "same" from the reference prefers what it reads first."""

    def answer(request):
        responses = (request.about.first, request.about.second)
        if "refuse" in responses:
            return Completion("no", "refused")
        order = {"good": 2, "ref": 1, "same": 1, "bad": 0}
        return json.dumps({"reason": "", "winner": "A" if order[responses[0]] >= order[responses[1]] else "B"})

    reward = ComparisonReward(FakeJudge(answer), Judge(mode="compare"), {"p": "ref"})
    responses = ["good", "bad", "same", "refuse", "ref", "good"]
    batch = reward.score_episodes(said(["p"] * 5 + ["unknown"], responses))
    assert batch.total_N[[0, 1, 2, 4]].tolist() == [1, 0, 0.5, 0.5]
    assert np.isnan(batch.total_N[[3, 5]]).all()
    assert batch.parts["refused"].tolist() == [0, 0, 0, 1, 0, 0]
    assert tuple(batch.parts) == FLAGS
    # the reference itself is a tie, and nobody knows what to compare with "unknown"
    assert len(reward.judge.asked) == 8


def test_a_judge_that_is_down_stops_the_run_or_abstains():
    judge = FakeJudge(lambda request: "", fails_after=0)
    with pytest.raises(JudgeUnavailable):
        CheckedReward("judge", GradeReward(judge, Judge(), load_rubric()))(said(["p"], ["r"]))
    # a judge that does not say what it answered leaves the whole call unscored
    batch = GradeReward(judge, Judge(on_error="abstain"), load_rubric()).score_episodes(said(["p"] * 2, ["a", "b"]))
    assert np.isnan(batch.total_N).all()


@pytest.mark.parametrize("kind", ["anthropic", "openai_compatible"])
def test_only_the_responses_without_an_answer_are_unscored(kind, tmp_path):
    """The service answers five of eight requests, one at a time, and is then down."""
    notes: list[str] = []
    with JudgeServer() as server:
        server.answer = lambda asked: Said(json.dumps(GRADES))
        client = connect(server.url, kind, tmp_path, parallel=1, retries=0)
        reward = GradeReward(client, Judge(on_error="abstain"), load_rubric(), notes.append)
        checked_reward = CheckedReward("judge", reward, on_error="abstain", note=notes.append)
        reward.score_episodes(said(["p"] * 2, ["0", "1"]))
        server.faults += [None, None, None, status(500)]
        batch = checked_reward(said(["p"] * 8, [str(i) for i in range(8)]))
        assert batch.total_N[:5] == pytest.approx([SCORE] * 5) and np.isnan(batch.total_N[5:]).all()
        assert batch.parts["honesty"][:5].tolist() == [4.0] * 5
        assert sum(part.sum() for name, part in batch.parts.items() if name in FLAGS) == 0
        assert reward.unscored["unanswered"] == 3 and checked_reward.abstained == 3
        text = next(note for note in notes if "did not answer" in note)
        assert "on_error=stop ends the run" in text and "judge.base_url" in text and "500" in text
        # the service is up again: only the missing answers are paid for
        before = server.billed_requests
        assert checked_reward(said(["p"] * 8, [str(i) for i in range(8)])).total_N == pytest.approx([SCORE] * 8)
        assert server.billed_requests == before + 3


def test_a_comparison_needs_the_answers_in_both_orders():
    def answer(request):
        return json.dumps({"reason": "", "winner": "A" if request.about.first == "good" else "B"})

    judge = FakeJudge(answer)
    down = judge.complete_many

    def half_way(requests, *, title=""):
        error = JudgeUnavailable("down")
        error.answers = [*down(requests[:3]), *[None] * (len(requests) - 3)]
        raise error

    judge.complete_many = half_way
    reward = ComparisonReward(judge, Judge(mode="compare", on_error="abstain"), {"p": "ref"})
    batch = reward.score_episodes(said(["p"] * 3, ["good", "good", "ref"]))
    # both orders of the first pair, one of the second; identical texts are a tie without a request
    assert batch.total_N[[0, 2]].tolist() == [1.0, 0.5] and np.isnan(batch.total_N[1])
    assert reward.unscored["unanswered"] == 1


@pytest.fixture(scope="module")
def corpus():
    return registry.build("data", MiniHH(train_pairs=30, test_pairs=3, grader=GraderSettings(noise=0.5)))


def built(corpus, tmp_path, judge=None, **settings):
    config = SimpleNamespace(judge=judge or Simulated(), outputs=str(tmp_path))
    run = SimpleNamespace(corpus=corpus, note=print, config=config, directory=tmp_path, device="cpu")
    return registry.build("reward", Judge(**settings), run)


def test_the_simulated_judge_is_the_world_s(corpus, tmp_path):
    """Bit for bit: a grade survives being written and read as JSON."""
    prompts, responses = [p.prompt for p in corpus.train], [p.chosen for p in corpus.train]
    batch = built(corpus, tmp_path).score_episodes(said(prompts, responses))
    grades = corpus.oracle.grade(prompts, responses, seed=0)
    assert batch.total_N.tolist() == ((grades - 1) / 4).mean(axis=1).tolist()
    assert batch.parts["specificity"].tolist() == grades[:, 4].tolist()


def test_comparing_with_the_corpus_s_first_chosen_reply(corpus, tmp_path):
    reward = built(corpus, tmp_path, mode="compare")
    pair = corpus.train[0]
    first_chosen = next(p.chosen for p in corpus.train if p.prompt == pair.prompt)
    batch = reward.score_episodes(said([pair.prompt, pair.prompt], [first_chosen, ""]))
    assert batch.total_N.tolist() == [0.5, 0.0]


def test_a_missing_column_or_rubric_is_refused(corpus, tmp_path):
    message = r"judge\.reference=key: no row of data=mini_hh has text in this column \(the columns are: none\)"
    with pytest.raises(ConfigError, match=message):
        built(corpus, tmp_path, reference="key")
    # compared with an empty cell, every response would win: such prompts have no reference
    prompts = corpus.prompts("train")[:3]
    cells = dict(zip(prompts, ("4", "", math.nan), strict=True))
    keyed = replace(corpus, metadata={prompt: {"key": cell} for prompt, cell in cells.items()})
    assert built(keyed, tmp_path, reference="key", mode="compare").references == {prompts[0]: "4"}
    with pytest.raises(ConfigError, match="has no rubric to grade on"):
        built(replace(corpus, rubric=None), tmp_path)


SERVED = ("judge=openai_compatible", "judge.base_url=http://127.0.0.1:9/v1", "judge.model=m")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward=[bt,rubric]"], "needs.rubric is not set"),
        (["reward=[bt,judge]", "data=pairs", "data.path=x.jsonl"], "judge=simulated needs a true reward"),
    ],
)
def test_what_cannot_be_graded_is_refused_before_anything_runs(overrides, message):
    with pytest.raises(ConfigError, match=message):
        checked("ppo", *overrides)


def test_a_judge_that_nobody_asks_may_read_a_truth_that_is_not_there():
    assert checked("ppo", "reward=length", "data=pairs", "data.path=x.jsonl").judge.reads_truth
    assert is_requested(checked("ppo", "reward=judge", "data=pairs", "data.path=x.jsonl", *SERVED))


def test_the_judge_and_the_rubric_s_content_are_part_of_the_stage(tmp_path):
    """The file's name and what decides no answer are not."""
    text = "name: mine\nscale: {low: 1, high: 5}\ncriteria: {honesty: is right}\n"
    files = [tmp_path / name for name in ("a.yaml", "b.yaml", "c.yaml")]
    for file, content in zip(files, (text, text, text.replace("right", "true")), strict=True):
        file.write_text(content)

    def key(*overrides):
        return planned("ppo", "reward=judge", *overrides).settings_key

    def of(file):
        return f"reward.terms.judge.rubric={file}"

    assert key(of(files[0])) == key(of(files[1])) != key(of(files[2]))
    assert key() != key("judge.noise=1")
    assert key(*SERVED) != key()
    assert key(*SERVED) == key(*SERVED, "judge.parallel=2", "judge.budget_usd=1")
    assert key("reward=length") == planned("ppo", "reward=length", "judge.noise=1").settings_key
    # comparing without a rubric is without criteria, not on the shipped ones
    compare = "reward.terms.judge.mode=compare"
    assert key(compare) != key(compare, "reward.terms.judge.rubric=assistant") != key()


def test_a_local_judge_is_what_its_folder_holds(tmp_path):
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text("{}")

    def key() -> str:
        return planned("ppo", "reward=judge", "judge=local", f"judge.path={model}").settings_key

    before = key()
    (model / "config.json").write_text('{"another": 1}')
    assert key() != before


def test_a_rubric_that_cannot_be_read_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "bad.yaml").write_text("name: x\n")
    for setting in (f"reward.terms.judge.rubric={tmp_path}/bad.yaml", "reward.terms.judge.rubric=none.yaml"):
        problems = preflight.problems(planned("ppo", "reward=judge", setting, f"outputs={tmp_path}"))
        assert any("reward.terms.judge.rubric: " in problem for problem in problems), problems


def test_a_rubric_model_needs_grades():
    with pytest.raises(ConfigError, match="algorithm=rubric_rm needs graded responses"):
        checked("rubric_rm", "data=pairs", "data.path=x.jsonl")
    with pytest.raises(ConfigError, match="are all 0"):
        checked("rubric_rm", "algorithm.weights={helpfulness:0}")
    assert checked("rubric_rm", "data=helpsteer2", "model=gpt2").data.rank_by == "helpfulness"
    by_judge = ("+needs.grades=grade_pairs", *SERVED)
    assert checked("rubric_rm", "data=pairs", "data.path=x.jsonl", *by_judge).needs["grades"] == "grade_pairs"


def test_a_judge_who_reads_the_truth_grades_no_other_pairs():
    with pytest.raises(ConfigError, match=r"judge=simulated needs a true reward .* data=pairs .*mini_hh"):
        checked("grade_pairs", "data=pairs", "data.path=x.jsonl")
    with pytest.raises(ConfigError, match=r"stage grade_pairs \(needs\.grades\): judge=simulated needs a true reward"):
        planned("rubric_rm", "data=pairs", "data.path=x.jsonl", "+needs.grades=grade_pairs")
