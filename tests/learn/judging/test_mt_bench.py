"""MT-Bench: both turns, grades from 1 to 10, reference answers for three categories; on its own file and on a world."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_judge import FakeJudge, says
from support import ONE_LAYER, SMALL_WORLD, checked, planned
from synthetic_judgements import write_rows

from rlhf_lab.config import registry
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.data.transcript import quote
from rlhf_lab.packs.judging.judges.requests import Completion
from rlhf_lab.packs.judging.mt_bench import mt_bench
from rlhf_lab.packs.judging.mt_bench.mt_bench import TwoTurnQuestion, balanced, questions_of
from rlhf_lab.packs.judging.mt_bench.settings import MTBench
from rlhf_lab.reports.report import write_report
from rlhf_lab.results.answer import answer
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages.execute import ensure, execute
from rlhf_lab.training.run_settings import Evaluation

DATA = Path(os.environ.get("RLHF_LAB_DATA", Path(__file__).parents[4] / "shared" / "data"))
TINY = (*SMALL_WORLD, *ONE_LAYER, "checkpoint.every_steps=0", "++stages.sft.algorithm.epochs=0.5")
SERVICE = ("judge=openai_compatible", "judge.base_url=http://127.0.0.1:9/v1", "judge.model=m")
MODEL = ("needs.policy=owner/model", "needs.sft=null")
ALONE = ("needs.policy=sft", "needs.sft=null")
QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["write a red ode", "now a blue one"]},
    {"question_id": 101, "category": "reasoning", "turns": ["who is second?", "and last?"], "reference": ["me", ""]},
    {"question_id": 111, "category": "math", "turns": ["add 2 and 3", "double it"], "reference": ["5", "10"]},
    {"question_id": 142, "category": "stem", "turns": ["why is it red?", "and blue?"], "reference": ["light", "sky"]},
]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Return (run a stage on QUESTIONS with a judge's answer, the judge)."""

    def run(answers, *overrides: str):
        judge = FakeJudge(answers)
        monkeypatch.setattr(mt_bench, "judge_of", lambda run: judge)
        # both splits are used, train first
        path = write_rows(tmp_path / "question.jsonl", QUESTIONS[:3])
        test_path = write_rows(tmp_path / "more.jsonl", QUESTIONS[3:])
        data = (
            "data=mt_bench",
            f"data.path={path}",
            f"data.test_path={test_path}",
            *ONE_LAYER,
            "checkpoint.every_steps=0",
        )
        # a policy from another data set: the questions have no responses to imitate
        policy = planned("sft", *TINY, "algorithm.epochs=0.5", f"outputs={tmp_path / 'outputs'}")
        ensure(policy, 0)
        needs = (f"needs.policy={policy.model}", "needs.sft=null", f"outputs={tmp_path / 'outputs'}")
        stage = planned("mt_bench", *data, *SERVICE, *needs, *overrides)
        return stage, execute(stage), judge

    return run


def test_both_turns_are_graded_with_the_first_response_in_the_conversation(served):
    grades = iter([3, 5, 1, 2, 10, 8, 7, 4])
    stage, result, judge = served(lambda request: says(reason="so", overall=next(grades)))
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    assert [(row["question_id"], row["turn"]) for row in rows] == [
        (str(question["question_id"]), turn) for question in QUESTIONS for turn in (1, 2)
    ]
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        turns = next(q["turns"] for q in QUESTIONS if str(q["question_id"]) == first["question_id"])
        assert first["prompt"] == f"\n\nHuman: {turns[0]}\n\nAssistant:"
        assert second["prompt"].startswith(first["prompt"])
        assert second["prompt"].endswith(f"\n\nHuman: {turns[1]}\n\nAssistant:")
        assert quote(first["response"]) in second["prompt"]  # a response cannot start a turn of its own
    # (3 + 5 + 1 + 2 + 10 + 8 + 7 + 4) / 8 = 5; first turns 21 / 4; second turns 19 / 4; math (10 + 8) / 2
    metrics = result["policies"][0]["metrics"]
    assert metrics["mt_bench/score"]["mean"] == 5 and metrics["mt_bench/score"]["clusters"] == 4
    assert (metrics["mt_bench/turn_1"]["mean"], metrics["mt_bench/turn_2"]["mean"]) == (5.25, 4.75)
    assert metrics["mt_bench/score/math"]["mean"] == 9
    assert not undeclared(metrics) and not undeclared(result["metrics"])
    assert all(request.schema["properties"]["overall"]["enum"] == list(range(1, 11)) for request in judge.asked)
    assert "graded 5.0" in answer(read_run(stage.directory)).sentence


def test_reference_answers_only_for_math_reasoning_and_coding(served, tmp_path):
    stage, _, judge = served(lambda request: says(reason="", overall=5))
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    # the second reasoning turn has none, and stem is graded without
    both = "First question: 5\n\nSecond question: 10"
    assert [row["reference"] for row in rows] == [None, None, "me", None, "5", both, None, None]
    shown = ["Second question: 10" in request.messages[0]["content"] for request in judge.asked]
    assert shown == [False, False, False, False, False, True, False, False]
    assert ["reference answer is given: take it" in request.system for request in judge.asked] == [
        row["reference"] is not None for row in rows
    ]


def test_answers_without_a_grade_are_left_out_and_counted(served):
    answers = iter(
        [
            Completion("no", "refused"),
            says(reason="", overall=11),
            Completion("{", "truncated"),
            *[says(reason="", overall=4)] * 5,
        ]
    )
    _, result, _ = served(lambda request: next(answers))
    metrics = result["policies"][0]["metrics"]
    assert metrics["mt_bench/score"]["mean"] == 4 and metrics["mt_bench/score"]["n"] == 5
    assert metrics["mt_bench/score"]["unscored"] == 3
    assert [metrics[f"mt_bench/{name}"]["mean"] for name in ("refused", "invalid", "truncated")] == [0.125] * 3


def test_the_recipe_on_the_world(tmp_path):
    """Each question is two prompts of one turn; the simulated judge grades the second response by its own question."""
    stage = planned("mt_bench", *TINY, *ALONE, f"outputs={tmp_path}", "evaluation.prompts=6")
    ensure(stage, 0)
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    assert len(rows) == 6 * 2 * 2 and {row["turn"] for row in rows} == {1, 2}
    for first, second in zip(rows[::2], rows[1::2], strict=True):  # of two conversations per question
        assert quote(first["response"]) in second["prompt"]
    corpus = registry.build("data", stage.config.data)
    for row in rows:
        question = f"\n\nHuman:{row['prompt'].rpartition(chr(10) * 2 + 'Human:')[2]}"
        grades = corpus.oracle.grade([question], [row["response"]], seed=0)
        # the mean of the world's five grades, from 1…5 to 1…10
        assert row["mt_bench/score"] == pytest.approx(1 + (grades.mean() - 1) / 4 * 9)
    metrics = stage.result()["policies"][0]["metrics"]
    assert 1 <= metrics["mt_bench/score"]["mean"] <= 10 and metrics["mt_bench/score"]["clusters"] == 6
    page = write_report(stage.directory).read_text()
    assert "MT-Bench score" in page and "first turn" in page


def test_the_real_file():
    path = DATA / "mt_bench_question.jsonl"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {DATA}; set RLHF_LAB_DATA to the folder with the public data sets")
    corpus = registry.build("data", checked("mt_bench", "data=mt_bench", f"data.path={path}", *SERVICE, *MODEL).data)
    questions = questions_of(corpus, 384)
    assert len(questions) == 80 and all(len(question.turns) == 2 for question in questions)
    # reasoning: 10 first turns and 7 second ones; math: 10 and 10; coding: 9 and 9
    assert sum(question.reference(0) is not None for question in questions) == 29
    assert sum(question.reference(1) is not None for question in questions) == 26
    assert len({question.category for question in questions_of(corpus, 8)}) == 8


def test_questions_are_balanced_over_categories():
    questions = [TwoTurnQuestion(str(i), category, ("a", "b")) for i, category in enumerate("aaaabbc")]
    # the first of each category, then the second of each: a0 b4 c6, a1 b5
    assert [question.identifier for question in balanced(questions, 4)] == ["0", "1", "4", "6"]
    assert balanced(questions, 99) == questions


def test_rows_that_are_no_questions_are_refused(tmp_path):
    path = write_rows(tmp_path / "q.jsonl", [{"question_id": 1, "turns": ["one", "two", "three"]}])
    test_path = write_rows(tmp_path / "more.jsonl", QUESTIONS)
    files = ("data=mt_bench", f"data.path={path}", f"data.test_path={test_path}")
    data = checked("mt_bench", *files, *SERVICE, *MODEL).data
    with pytest.raises(DataError, match=r"question 1: turns is .*expected a list of two messages"):
        questions_of(registry.build("data", data), 10)


def test_two_turns_of_every_question_are_sampled():
    settings = MTBench()
    assert settings.sampled(Evaluation(prompts=80, samples_per_prompt=3), 8) == [(80, 3), (80, 3)]
    assert [copy.name for copy in settings.model_copies(adapter=False)] == ["policy"]


def test_turns_and_conversations_of_a_question_are_one_cluster():
    rows = [
        {"prompt_id": prompt, "turn": turn, "category": "math", mt_bench.SCORE: score, "unscored": None}
        for prompt, turn, score in ((0, 1, 8.0), (0, 2, 6.0), (1, 1, 4.0), (1, 2, None), (2, 1, 9.0), (2, 2, 9.0))
    ]
    metrics = mt_bench.summarise(rows)
    assert (metrics[mt_bench.SCORE].clusters, metrics[mt_bench.SCORE].n, metrics[mt_bench.SCORE].unscored) == (3, 5, 1)
    assert (metrics["mt_bench/turn_2"].clusters, metrics["mt_bench/turn_2"].mean) == (2, 7.5)
