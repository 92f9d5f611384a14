"""A judge grades the pairs of a corpus, and a rubric model is trained on the grades."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fake_judge import FakeJudge, says
from support import ONE_LAYER, SMALL_WORLD, planned, toy_rows, write_pairs

from rlhf_lab.algorithms.reward_models.grades import read_grades
from rlhf_lab.config import registry
from rlhf_lab.core.errors import ArtifactError, ConfigError, JudgeUnavailable
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.data.file_settings import GradedData
from rlhf_lab.data.graded import UNGRADED
from rlhf_lab.environments.dialogue.criteria import CRITERIA
from rlhf_lab.packs.judging.grading import grade
from rlhf_lab.packs.judging.judges.requests import Completion
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.run import Run

TINY = (*SMALL_WORLD, *ONE_LAYER, "checkpoint.every_steps=0")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("graded")


@pytest.fixture(scope="module")
def policy(outputs) -> str:
    stage = planned("sft", *TINY, "algorithm.epochs=0.5", f"outputs={outputs}")
    execute(stage)
    return stage.model


@pytest.fixture(scope="module")
def graded(outputs):
    stage = planned("grade_pairs", *TINY, f"outputs={outputs}")
    return stage, execute(stage)


def test_every_reply_has_the_grades_of_the_world_s_judge(graded):
    stage, result = graded
    rows = read_jsonl(stage.directory / "grades.jsonl")
    corpus = registry.build("data", stage.config.data)
    pairs = [*corpus.train, *corpus.test]
    texts = [(pair.prompt, getattr(pair, side)) for pair in pairs for side in ("chosen", "rejected")]
    assert [(row["prompt"], row["response"]) for row in rows] == texts
    truth = corpus.oracle.grade([p for p, _ in texts], [r for _, r in texts], seed=0)
    assert np.array([[row[name] for name in CRITERIA] for row in rows]).tolist() == truth.tolist()
    assert result["metrics"]["replies"] == 240 and result["metrics"]["label_agreement"]["mean"] > 0.5
    header = read_json(stage.directory / "grades.json")
    assert header["rubric"]["name"] == "assistant" and header["judge"]["kind"] == "simulated"


def test_a_rubric_model_learns_from_them_what_it_learns_from_the_data(graded, policy, outputs):
    """The world's own judge gave the same grades: trained on the corpus alone, it is the same model."""
    fixed = (*TINY, f"needs.policy={policy}", "algorithm.epochs=0.5", f"outputs={outputs}")
    stored = planned("rubric_rm", *fixed, f"+needs.grades={graded[0].output}")
    by_data = planned("rubric_rm", *fixed, "algorithm.on_policy_fraction=0")
    found, expected = (execute(stage)["metrics"] for stage in (stored, by_data))
    assert found["pairs/on_policy"] == 0
    for name in ("mse", "correlation", "correlation/truth", "accuracy"):
        assert found[name] == expected[name], name


def test_the_recipe_is_built_on_demand(policy, outputs):
    stage = planned("rubric_rm", *TINY, f"needs.policy={policy}", "+needs.grades=grade_pairs", f"outputs={outputs}")
    assert stage.needs["grades"].kind == "grade"
    assert stage.sources()["grades"] == str(stage.needs["grades"].directory)


@pytest.fixture
def toy(tmp_path):
    path = write_pairs(tmp_path / "pairs.jsonl", toy_rows(60))
    return (
        f"data.path={path}",
        "data=pairs",
        *ONE_LAYER,
        "checkpoint.every_steps=0",
        f"outputs={tmp_path / 'outputs'}",
    )


SERVED = ("judge=openai_compatible", "judge.base_url=http://127.0.0.1:9/v1", "judge.model=m")
RUBRIC = "name: words\nscale: {low: 0, high: 10}\ncriteria: {length: has many words, colour: names colours}\n"


def counts_words(request):
    words = request.about.response.split()
    if words[:2] == ["tall", "old"]:
        return Completion("no", "refused")
    return says(reason="", length=len(words), colour=sum(word in ("red", "green", "blue") for word in words))


def test_pairs_without_grades_any_judge_any_rubric(toy, tmp_path, monkeypatch):
    (tmp_path / "words.yaml").write_text(RUBRIC)
    rubric = (f"algorithm.rubric={tmp_path / 'words.yaml'}", *SERVED)
    stage = planned("grade_pairs", *toy, *rubric)
    fake = FakeJudge(counts_words, fails_after=70)
    monkeypatch.setattr(grade, "judge_of", lambda run: fake)
    monkeypatch.setattr(grade, "AT_ONCE", 32)
    with pytest.raises(JudgeUnavailable):
        execute(stage)
    path = stage.directory / "grades.jsonl"
    assert len(read_jsonl(path)) == 64 and not (stage.directory / "grades.json").exists()
    with path.open("a") as handle:
        handle.write('{"split": "tr')
    fake = FakeJudge(counts_words)
    result = execute(stage)
    assert result["metrics"]["replies"] == 120 and len(fake.asked) == 56
    assert any("64 of 120 responses were graded by an earlier attempt" in note for note in result["notes"])
    rows = read_jsonl(path)
    assert rows[0]["length"] == len(rows[0]["response"].split())
    assert [row["step"] for row in read_jsonl(stage.directory / "metrics.jsonl")] == [32, 64, 96, 120]

    sft = planned("sft", *toy, "algorithm.epochs=1")
    execute(sft)
    small = ("algorithm.epochs=4", "algorithm.batch_size=16", "rollout.max_new_tokens=12")
    by_length = "algorithm.weights={length:1}"
    rm = planned("rubric_rm", *toy, *small, f"needs.policy={sft.model}", f"+needs.grades={stage.directory}", by_length)
    result = execute(rm)
    assert result["metrics"]["correlation"]["mean"] > 0.5
    assert any("trains only on the corpus" in note for note in result["notes"])
    graded_rows = [row for row in rows if row["split"] == "train" and row["unscored"] is None]
    graded_pairs = [number for number, count in Counter(row["pair"] for row in graded_rows).items() if count == 2]
    assert result["metrics"]["selection/pairs"] == len(graded_pairs) < 54
    assert "correlation/truth" not in result["metrics"]


def test_a_reference_that_no_row_has_is_refused(toy, tmp_path, monkeypatch):
    """A misspelt column graded every response without a reference."""
    monkeypatch.setattr(grade, "judge_of", lambda run: FakeJudge(counts_words))
    (tmp_path / "words.yaml").write_text(RUBRIC)
    rubric = (f"algorithm.rubric={tmp_path / 'words.yaml'}", *SERVED)
    with pytest.raises(ConfigError, match=r"algorithm\.reference=anser: no row of data=pairs has text in this column"):
        execute(planned("grade_pairs", *toy, *rubric, "algorithm.reference=anser"))


def test_what_has_no_grades_is_left_out_and_counted(toy, tmp_path, monkeypatch):
    """Some replies are refused, some pairs are not asked about: `rubric_rm` trains on the others, and says so."""
    fake = FakeJudge(lambda r: Completion("no", "refused") if r.about.response.startswith("red") else counts_words(r))
    monkeypatch.setattr(grade, "judge_of", lambda run: fake)
    (tmp_path / "words.yaml").write_text(RUBRIC)
    rubric = (f"algorithm.rubric={tmp_path / 'words.yaml'}", *SERVED)
    stage = planned("grade_pairs", *toy, *rubric, "algorithm.max_pairs=20", "algorithm.heldout_pairs=5")
    metrics = execute(stage)["metrics"]
    assert metrics["pairs/graded"] == 25 and metrics["unscored/refused"] > 0
    assert metrics["grade/length"]["unscored"] == metrics["unscored/refused"]
    rm = planned("rubric_rm", *toy, *SERVED, "needs.policy=owner/name", f"+needs.grades={stage.directory}")
    run = Run(rm.directory, rm.config, {"grades": str(stage.directory)})
    stored = read_grades(run)
    rows = read_jsonl(stage.directory / "grades.jsonl")
    full = [a for a, b in zip(rows[::2], rows[1::2], strict=True) if not (a["unscored"] or b["unscored"])]
    corpus = run.corpus
    pairs = stored.graded([*corpus.train, *corpus.test])
    assert len(pairs) == len(full) < 25
    assert stored.of(pairs).shape == (2, len(pairs), 2)
    assert stored.of(pairs)[0, :, 0].tolist() == [len(pair.chosen.split()) for pair in pairs]

    # The file is data=graded as it is.
    settings = GradedData(
        path=str(stage.directory / "grades.jsonl"), attributes=("length", "colour"), high=10, rank_by="length"
    )
    again = registry.build("data", settings)
    assert again.report["all"].dropped[UNGRADED] == 25 - len(full)
    assert {pair.prompt for pair in (*again.train, *again.test)} == {row["prompt"] for row in full}


def test_grades_of_other_pairs_are_refused(graded, toy, policy, outputs, tmp_path):
    other = planned("rubric_rm", *TINY, "seed=3", "needs.policy=owner/name", f"+needs.grades={graded[0].directory}")
    with pytest.raises(ArtifactError, match=r"grades of other pairs, not of the 96 training pairs of data=mini_hh"):
        read_grades(Run(tmp_path, other.config, {"grades": str(graded[0].directory)}))
    with pytest.raises(ArtifactError, match=r"has no grades\.json; name a run of algorithm=grade"):
        read_grades(Run(tmp_path, other.config, {"grades": policy}))


def test_a_damaged_or_foreign_row_is_asked_for_again(outputs, graded, monkeypatch):
    stage = planned("grade_pairs", *TINY, f"outputs={outputs / 'again'}")
    stage.directory.mkdir(parents=True)
    rows = read_jsonl(graded[0].directory / "grades.jsonl")
    rows[7]["response"] = "something else"
    (stage.directory / "grades.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:20]))
    execute(stage)
    assert read_jsonl(stage.directory / "grades.jsonl") == read_jsonl(graded[0].directory / "grades.jsonl")
