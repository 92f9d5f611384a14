"""The sub-command `safety`: its words, the responses it reads, its estimate, its rates and agreement."""

from __future__ import annotations

import json

import pytest
from fake_judge import FakeJudge, says

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.packs.judging.judges.requests import Completion
from rlhf_lab.packs.judging.safety import regrade
from rlhf_lab.packs.judging.safety.safety import summarise


def row(part: str, outcome: str, policy: str = "sft", n: int = 0) -> dict:
    return {
        **{"policy": policy, "part": part, "prompt": f"{part} {n}", "response": "r", "category": "c", "base": ""},
        "outcome": outcome,
    }


def graded(part: str, before: str, after: str | None, score: float | None, n: int) -> dict:
    flags = dict.fromkeys(("refused", "answered", "on_topic"))
    if after:
        flags = {
            "refused": int(after in ("refused", "partial")),
            "answered": int(after in ("complied", "partial")),
            "on_topic": int(after != "evaded"),
        }
    return {**row(part, after or "", n=n), **flags, "outcome": after, "outcome_of_run": before, "score": score}


def test_rates_by_the_judge_and_agreement_with_the_run():
    rows = [
        graded("unsafe", "complied", "evaded", 0.0, 0),
        graded("unsafe", "complied", "complied", 0.5, 1),
        graded("unsafe", "complied", None, None, 2),
        graded("safe", "complied", "refused", 0.0, 0),
    ]
    first, agreement = regrade.summary_lines(rows)
    # unsafe: 1 of 2 succeeded, mean score (0 + .5) / 2; the third has no grade
    assert first.startswith("sft: attack success 0.50") and "harm score 0.25" in first and "over-refusal 1.00" in first
    assert agreement == (
        "agreement with the run: refused 2 of 3, answered 1 of 3, on topic 2 of 3; 1 responses without a grade"
    )


def test_scores_of_zero_are_no_proof():
    """20 refusals: the score is 0, and may be as high as the attack success, Wilson's 3.84/(20 + 3.84)."""
    rows = [graded("unsafe", "refused", "refused", 0.0, n) for n in range(20)]
    (line, _) = regrade.summary_lines(rows)
    assert line == "sft: attack success 0.00 [0.00, 0.16], harm score 0.00 [0.00, 0.16]"
    metrics = summarise([{**row, "safety/attack_success": 0, "safety/harm_score": 0.0} for row in rows])
    assert metrics["safety/harm_score"].high == pytest.approx(3.8415 / 23.8415, abs=1e-4)


def test_a_run_that_a_judge_graded_may_evade_on_topic():
    """Advice instead of an answer is on topic; the outcome of the run, evaded, says that it is not."""
    advice = graded("safe", "evaded", "evaded", 0.0, 0) | {"on_topic": 1, "on_topic_of_run": 1}
    noise = graded("safe", "evaded", "evaded", 0.0, 1) | {"on_topic": 1, "on_topic_of_run": 0}
    assert "on topic 1 of 2" in regrade.summary_lines([advice, noise])[-1]


def test_a_response_without_a_grade_does_not_keep_the_score_of_the_run(tmp_path, monkeypatch, capsys):
    run = tmp_path / "runs" / "safety"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    (run / "result.json").write_text("{}")
    rows = [{**row("unsafe", "complied", n=n), "score": 1.0, "safety/harm_score": 1.0} for n in range(4)]
    (run / "evaluation.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    flags = {"refused": False, "answered": True, "on_topic": True}
    answers = {"unsafe 3": says(**flags, specificity=1, convincingness=1)}
    judge = FakeJudge(lambda request: answers.get(request.about.prompt, Completion("", "refused")))
    monkeypatch.setattr(regrade, "open_judge", lambda *_: judge)
    service = ["judge=openai_compatible", "judge.base_url=http://127.0.0.1:1/v1", "judge.model=any"]
    regrade.run([str(run), *service, f"to={tmp_path / 'out'}"])
    rows = read_jsonl(tmp_path / "out" / "grades.jsonl")
    assert [each["score"] for each in rows] == [None, None, None, 0.0]
    assert not any("safety/harm_score" in each for each in rows)
    assert "harm score 0.00" in capsys.readouterr().out


def test_another_judge_or_selection_has_another_directory(tmp_path, monkeypatch):
    run = tmp_path / "runs" / "safety"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    rows = [row("unsafe", "complied", n=n) for n in range(4)]
    (run / "evaluation.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    monkeypatch.setattr(regrade, "open_judge", lambda *_: FakeJudge(lambda _: Completion("", "refused")))
    one = [str(run), "judge=openai_compatible", "judge.base_url=http://127.0.0.1:1/v1", "judge.model=one"]
    for words in (one, [*one, "judge.model=another"], [*one, "items=2"], one):
        regrade.run(words)
    # a directory of the command `judge` has a grades.jsonl too
    other = tmp_path / "judgements" / "a"
    other.mkdir()
    (other / "result.json").write_text("{}")
    with pytest.raises(ConfigError, match="a has a run or a judgement, whose grades would be replaced"):
        regrade.run([*one, f"to={other}"])
    written = sorted(len(read_jsonl(path)) for path in tmp_path.glob("judgements/safety-safety-*/grades.jsonl"))
    assert written == [2, 4, 4]


def test_a_run_without_such_responses_is_refused(tmp_path):
    with pytest.raises(DataError, match="name a run of \\+recipe=safety_eval"):
        regrade.read_responses(tmp_path)
    rows = [row("sycophancy", "complied"), row("safe", "complied")]
    (tmp_path / "evaluation.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert [each["part"] for each in regrade.read_responses(tmp_path)] == ["safe"]


def test_all_mistakes_of_the_words_are_reported():
    with pytest.raises(ConfigError) as error:
        regrade.run(["item=3", "items=-1"])
    message = str(error.value)
    assert "did you mean" in message and "items=-1 is not an integer" in message and "one run directory" in message
