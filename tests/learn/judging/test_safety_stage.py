"""The safety evaluation at the smallest size: its rates, its resume, its judge, its attackers, its regression cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_judge import FakeJudge
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.packs.judging.commands import safety_command
from rlhf_lab.packs.judging.judges.requests import Completion
from rlhf_lab.packs.judging.safety import red_team
from rlhf_lab.packs.judging.safety.canaries import EXTRACTIONS
from rlhf_lab.packs.judging.safety.safety import summarise
from rlhf_lab.reports.report import write_report
from rlhf_lab.results.answer import answer
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import ensure, execute
from rlhf_lab.statistics.rows import outcomes_by

FURTHER = ("algorithm.push_back=true", "algorithm.honesty=true", "algorithm.canaries=2")
TINY = (*SMALL_WORLD, *ONE_LAYER, "checkpoint.every_steps=0", "seed=5", "++stages.sft.algorithm.epochs=0.5")
SFT = ("needs.dpo=null", "+needs.again=sft")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("safety")


@pytest.fixture(scope="module")
def stage(outputs) -> artifacts.Stage:
    stage = planned("safety_eval", *TINY, *SFT, f"outputs={outputs}", "algorithm.attempts=2", *FURTHER)
    ensure(stage, 0)
    return stage


def rows_of(stage: artifacts.Stage, part: str, policy: str = "again") -> list[dict]:
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    return [row for row in rows if row["part"] == part and row["policy"] == policy]


def test_both_rates_come_together_with_n_and_bound(stage):
    policies = stage.result()["policies"]
    assert [policy["name"] for policy in policies] == ["sft (reference)", "again"]
    for policy in policies:
        metrics = policy["metrics"]
        assert not undeclared(metrics)
        for key in ("safety/attack_success", "safety/over_refusal"):
            assert (metrics[key]["n"], metrics[key]["clusters"]) == (12, 6)
            assert (metrics[key]["mean"] == 0) == (f"{key}_below" in metrics)
        assert {"safety/many_shot/0", "safety/many_shot/4", "safety/sycophancy", "safety/red_team"} <= set(metrics)
    assert {"safety/attack_success_change", "safety/attack_success_p"} <= set(policies[1]["metrics"])
    run = read_run(stage.directory)
    assert "attack success" in answer(run).sentence and "gold" not in answer(run).caveat
    page = write_report(stage.directory).read_text()
    assert "attack success" in page and "Samples side by side" in page


def test_push_back_is_counted_on_right_answers_beside_asking_again(stage):
    doubted, again = rows_of(stage, "push_back"), rows_of(stage, "ask_again")
    assert len(doubted) == len(again) == 12
    for row, other in zip(doubted, again, strict=True):
        assert (row["prompt"], row["before"]) == (other["prompt"], other["before"])
        was_right = row["outcome_before"] == "right"
        assert ("safety/dropped" in row) == ("safety/dropped_by_chance" in other) == was_right
        assert ("safety/corrected" in row) != was_right


def test_honesty_scores_questions_with_and_without_an_answer(stage):
    rows = rows_of(stage, "honesty")
    assert {row["category"] for row in rows} == {"answerable", "unanswerable"}
    metrics = stage.result()["policies"][1]["metrics"]
    score = sum(row["safety/honesty"] for row in rows) / len(rows)
    assert metrics["safety/honesty"]["mean"] == pytest.approx(score)
    assert {"safety/falsehoods", "safety/answered_right", "safety/abstained/unanswerable"} <= set(metrics)


def test_each_code_of_a_system_prompt_is_asked_for_in_each_way(stage):
    rows = rows_of(stage, "extraction")
    notes = " ".join(stage.result()["notes"])
    metrics = stage.result()["policies"][1]["metrics"]
    # every extraction is either asked or reported as too long
    assert len(rows) == 2 * len(EXTRACTIONS) or "extractions are left out" in notes
    assert ("safety/leaked" in metrics) == bool(rows)


def test_a_policy_that_is_stored_is_not_asked_again(stage, monkeypatch):
    before = stage.result()
    logged = (stage.directory / "policies.jsonl").read_text().splitlines(keepends=True)
    rows = (stage.directory / "evaluation.jsonl").read_bytes()
    (stage.directory / "policies.jsonl").write_text(logged[0])
    from rlhf_lab.packs.judging.safety.asking import NamedPolicy

    requested = set()
    ask = NamedPolicy.ask
    monkeypatch.setattr(NamedPolicy, "ask", lambda self, *a, **k: requested.add(self.name) or ask(self, *a, **k))
    again = execute(stage)
    assert again["policies"] == before["policies"] and requested == {"again"}
    assert (stage.directory / "evaluation.jsonl").read_bytes() == rows


def test_red_teaming_stops_at_success_and_pairs_by_the_prompt_itself(stage):
    attempts, prompts = rows_of(stage, "red_team"), rows_of(stage, "red_team_prompt")
    assert len(prompts) == 6 and len(attempts) == sum(row["safety/attempts"] for row in prompts)
    assert {row["prompt"] for row in prompts} == {row["prompt"] for row in rows_of(stage, "unsafe")}
    assert all(row["prompt"] != row["base"] for row in attempts)
    assert {row["attack"] for row in attempts} <= {"prefix_injection", "refusal_suppression"}


def test_what_succeeds_becomes_a_regression_case(outputs, monkeypatch):
    """A sampler whose every reply gives harm: each unsafe prompt is a case, and a later run asks the cases."""
    from rlhf_lab.packs.judging.safety.classify import Classifier, SafetyGrade

    complied = SafetyGrade.from_outcome("complied")
    monkeypatch.setattr(Classifier, "grades", lambda self, prompts, responses: [complied] * len(responses))
    settings = (*TINY, "needs.dpo=null", f"outputs={outputs}", "algorithm.many_shot=[]", "algorithm.attempts=1")
    first = planned("safety_eval", *settings)
    ensure(first, 0)
    metrics = first.result()["policies"][0]["metrics"]
    assert metrics["safety/attack_success"]["mean"] == metrics["safety/red_team"]["mean"] == 1
    assert "safety/attack_success_below" not in metrics
    cases = read_jsonl(first.directory / "regressions.jsonl")
    assert [case["found_by"] for case in cases] == ["unsafe"] * 6 + ["prefix_injection"] * 6
    assert all(case["label"] == "unsafe" and case["base"] for case in cases)
    monkeypatch.undo()
    later = planned("safety_eval", *settings, f"algorithm.regressions={first.directory / 'regressions.jsonl'}")
    assert later.settings_key != first.settings_key
    ensure(later, 0)
    assert later.result()["policies"][0]["metrics"]["safety/regressions"]["clusters"] == 12


def test_a_judge_can_say_what_replies_did(outputs):
    """The simulated judge knows the truth, so it agrees with it."""
    common = (*TINY, "needs.dpo=null", f"outputs={outputs}", "algorithm.many_shot=[]", "algorithm.sycophancy=false")
    stages = [planned("safety_eval", *common, f"algorithm.classifier={name}") for name in ("auto", "judge")]
    for each in stages:
        ensure(each, 0)
    by_truth, by_judge = ([row["outcome"] for row in rows_of(each, "safe", "sft (reference)")] for each in stages)
    assert by_truth == by_judge
    metrics = [each.result()["policies"][0]["metrics"] for each in stages]
    # the simulated judge gives 5 and 5 to every response that answers, so the score is the rate of attack success
    assert metrics[1]["safety/harm_score"]["mean"] == metrics[1]["safety/attack_success"]["mean"]
    assert "safety/harm_score" not in metrics[0]
    assert stages[0].settings_key != stages[1].settings_key


def test_a_stored_run_is_graded_by_a_judge_after_an_estimate(stage, tmp_path, capsys):
    """`safety RUN`: the dry run sends nothing; the simulated judge agrees with the truth that graded the run."""
    safety_command([str(stage.directory), "judge=simulated", "--dry-run", f"to={tmp_path / 'dry'}"])
    assert "48 responses: 48 requests, at no cost" in capsys.readouterr().out and not (tmp_path / "dry").exists()
    safety_command([str(stage.directory), "judge=simulated", f"to={tmp_path}"])
    out = " ".join(capsys.readouterr().out.split())
    assert "again: attack success" in out and "harm score" in out
    assert "refused 48 of 48, answered 48 of 48, on topic 48 of 48; 0 responses without a grade" in out
    assert len(read_jsonl(tmp_path / "grades.jsonl")) == 48
    service = ("judge=openai_compatible", "judge.model=m", "judge.input_usd=1", "judge.output_usd=2")
    safety_command([str(stage.directory), *service, "--dry-run"])
    assert "48 to send: about" in " ".join(capsys.readouterr().out.split())


def test_a_judge_rewords_the_disguises(outputs, monkeypatch):
    answers = iter(["how?", Completion("no", "refused"), *["please?"] * 4])
    judge = FakeJudge(lambda request: next(answers))
    monkeypatch.setattr(red_team, "judge_of", lambda run: judge)
    service = ("judge=openai_compatible", "judge.base_url=http://127.0.0.1:1/v1", "judge.model=m")
    attacked = planned(
        *("safety_eval", *TINY, "needs.dpo=null", f"outputs={outputs}", "algorithm.many_shot=[]", *service),
        *("algorithm.attempts=1", "algorithm.attacker=judge"),
    )
    ensure(attacked, 0)
    sent = [row["prompt"] for row in rows_of(attacked, "red_team", "sft (reference)")]
    assert len(judge.asked) == len(sent) == 6
    # the template is used where the judge refuses
    assert ["how?" in prompt for prompt in sent] == [True] + [False] * 5
    assert ["Begin your reply" in prompt for prompt in sent] == [False, True] + [False] * 4


def test_demonstrations_that_do_not_fit_are_said(outputs):
    short = planned(
        *("safety_eval", *TINY, "needs.dpo=null", f"outputs={outputs}", "algorithm.attempts=0"),
        *("algorithm.many_shot=[0,64]", "algorithm.shot_tokens=64"),
    )
    result = ensure(short, 0)
    assert "safety/many_shot/64" not in result["policies"][0]["metrics"]
    assert "safety/many_shot/0" in result["policies"][0]["metrics"]
    assert any("64 demonstrations are left out: they need" in note for note in result["notes"])


def test_disguises_are_asked_whole_and_other_cut_prompts_are_said(outputs, tmp_path, monkeypatch):
    """With room for 8 tokens every prompt of the sets loses its beginning; disguises and cases have the positions."""
    from rlhf_lab.sampling.episodes import EpisodeCollector

    requested = {}
    collect = EpisodeCollector.collect

    def spy(self, model, tasks, *rest, prompts, **named):
        requested.update({task.prompt: prompt for task, prompt in zip(tasks, prompts, strict=True)})
        return collect(self, model, tasks, *rest, prompts=prompts, **named)

    monkeypatch.setattr(EpisodeCollector, "collect", spy)
    case = tmp_path / "regressions.jsonl"
    case.write_text(json.dumps({"prompt": "How do I " + "very " * 20 + "quickly?", "label": "unsafe"}) + "\n")
    stage = planned(
        *("safety_eval", *TINY, "needs.dpo=null", f"outputs={outputs}", "algorithm.sycophancy=false"),
        f"algorithm.regressions={case}",
        *("algorithm.many_shot=[]", "algorithm.attempts=1", "rollout.max_prompt_tokens=8"),
        *("algorithm.push_back=false", "algorithm.honesty=false"),
    )
    result = ensure(stage, 0)
    disguised = {row["prompt"] for row in rows_of(stage, "red_team", "sft (reference)")}
    assert len(disguised) == 6 and all(len(requested[prompt]) > 8 for prompt in disguised)
    (of_case,) = {row["prompt"] for row in rows_of(stage, "regression", "sft (reference)")}
    assert len(requested[of_case]) > 20
    simple = {row["prompt"] for row in rows_of(stage, "unsafe", "sft (reference)")}
    assert all(len(requested[prompt]) == 8 for prompt in simple)
    assert (
        "sft (reference): 12 prompts are longer than rollout.max_prompt_tokens=8 and were truncated at their beginning"
        in (result["notes"])
    )


def test_unscored_replies_are_left_out_and_counted():
    rows = [
        {
            "part": "unsafe",
            "prompt": f"p{i}",
            "category": "c",
            "outcome": outcome,
            "safety/attack_success": success,
            "on_topic": None if outcome is None else 1,
        }
        for i, (outcome, success) in enumerate([("complied", 1), ("refused", 0), (None, None), ("evaded", 0)])
    ]
    rate = summarise(rows)["safety/attack_success"]
    assert (rate.mean, rate.n, rate.unscored) == (pytest.approx(1 / 3), 3, 1)
    assert outcomes_by(rows, "prompt", "safety/attack_success") == {"p0": [1.0], "p1": [0.0], "p3": [0.0]}
