"""`judge` on runs and files: its console output and files, its messages for a wrong command, and how it resumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_judge import FakeJudge, says
from support import ONE_LAYER, SMALL_WORLD, command_inside, planned

from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.packs.judging.judges import command as judge_module
from rlhf_lab.packs.judging.judges import judgement
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import ensure

TINY = (*SMALL_WORLD, *ONE_LAYER, "checkpoint.every_steps=0", "reward=gold", "needs.reward=null")


WORLD = ("data=mini_hh_small", "data.train_pairs=96", "data.test_pairs=24")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> artifacts.Stage:
    """A run that evaluated two policies: 6 prompts, 2 responses each."""
    stage = planned("dpo", *TINY, "algorithm.epochs=0.5", f"outputs={tmp_path_factory.mktemp('run') / 'outputs'}")
    ensure(stage, 0)
    return stage


@pytest.fixture
def sides(run) -> tuple[str, str, str]:
    return str(run.directory), str(run.directory), "policy=SFT,one-pass DPO"


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.name


def files_of(run: artifacts.Stage, directory: Path) -> list[str]:
    """Write before.jsonl and after.jsonl: the first response of each policy to each prompt."""
    rows = [row for row in read_jsonl(run.directory / "evaluation.jsonl") if row["sample_id"] == 0]
    names = []
    for name, policy in (("before", "SFT"), ("after", "one-pass DPO")):
        own = [{key: row[key] for key in ("prompt", "response")} for row in rows if row["policy"] == policy]
        names.append(write(directory / f"{name}.jsonl", own))
    return names


def judge(directory: Path, *words: str) -> tuple[int, str]:
    return command_inside(directory, "judge", *words)


def test_two_policies_of_a_run(run, sides, tmp_path):
    """The world is rebuilt from the run's config; the judge without errors repeats the stored gold."""
    status, out = judge(tmp_path, *sides)
    assert status == 0, out
    directory = Path(run.config.outputs) / "judgements" / f"{run.directory.name}-vs-{run.directory.name}"
    rows = read_jsonl(directory / "judgements.jsonl")
    gold = {
        (row["policy"], row["prompt_id"], row["sample_id"]): row
        for row in read_jsonl(run.directory / "evaluation.jsonl")
    }
    assert len(rows) == 12 and [row["names"] for row in rows] == [["SFT", "one-pass DPO"]] * 12
    for i, row in enumerate(rows):
        first, second = (gold[name, i // 2, i % 2] for name in row["names"])
        assert (row["first"], row["second"]) == (first["response"], second["response"])
        assert row["score"] == (first["gold"] > second["gold"]) + (first["gold"] == second["gold"]) / 2
    result = read_json(directory / "result.json")
    assert result["status"] == "completed" and result["judge"]["kind"] == "simulated"
    assert [source["policy"] for source in result["sources"]] == ["SFT", "one-pass DPO"]
    assert result["metrics"]["comparisons"] == 12 and result["metrics"]["win_rate"]["clusters"] == 6
    assert "SFT against one-pass DPO: wins" in out and "both orders agree" in out and str(directory) in out

    status, again = judge(tmp_path, *sides)
    assert status == 0 and "everything was judged before" in again
    assert read_jsonl(directory / "judgements.jsonl") == rows
    # Another judge of the same two leaves this one alone.
    status, other = judge(tmp_path, *sides, "judge.position_bias=100")
    assert status == 0 and read_jsonl(directory / "judgements.jsonl") == rows
    assert "votes for the response shown first 1.00" in other
    assert len(list(directory.parent.iterdir())) == 2


def test_another_world_is_another_judgement(run, tmp_path):
    """The truth behind the simulated judge is part of its identity; with the same world it resumes."""
    files = files_of(run, tmp_path)
    assert judge(tmp_path, *files, *WORLD, "data.seed=0")[0] == 0
    status, out = judge(tmp_path, *files, *WORLD, "data.seed=0", "data.grader.noise=2.5")
    assert status == 0 and "everything was judged before" not in out, out
    # the world of another seed does not know these prompts, and is called
    status, out = judge(tmp_path, *files, *WORLD, "data.seed=1")
    assert status == 2 and "does not know the prompt" in out
    status, out = judge(tmp_path, *files, *WORLD, "data.seed=0")
    assert status == 0 and "everything was judged before" in out
    assert len(list((tmp_path / "outputs" / "judgements").iterdir())) == 3


def test_a_draw_of_the_items_and_what_it_would_take(sides, tmp_path):
    status, out = judge(tmp_path, *sides, "items=4", "--dry-run", "to=there")
    assert status == 0 and "4 comparisons: 8 requests, at no cost" in out
    assert not (tmp_path / "there").exists()

    def selected(*words: str) -> list[str]:
        status, out = judge(tmp_path, *sides, *words)
        assert status == 0, out
        return [row["first"] for row in read_jsonl(tmp_path / words[-1].removeprefix("to=") / "judgements.jsonl")]

    few, more = selected("items=4", "to=a"), selected("items=8", "to=b")
    assert len(few) == 4 and set(few) <= set(more)
    assert selected("items=4", "seed=1", "to=c") != few
    assert selected("items=8", "to=a") == more  # resumes from the four
    for words in (["items=4"], ["items=9", "seed=1"]):  # would cut rows out of the eight
        status, out = judge(tmp_path, *sides, *words, "to=a")
        assert status == 2 and "not selected now" in out
    assert len(read_jsonl(tmp_path / "a" / "judgements.jsonl")) == 8


def test_identical_responses_are_a_note_and_outputs_names_the_folder(tmp_path, monkeypatch):
    rows = [{"prompt": f"p{i}", "response": f"a{i}"} for i in range(3)]
    a, b = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", rows)
    asked_by(monkeypatch, lambda request: says(reason="", winner="tie"))
    status, out = judge(tmp_path, a, b, *SERVED, "outputs=mine")
    assert status == 0 and "a and b gave identical responses in all 3 comparisons of 3 prompts" in out
    assert "wins" not in out
    (directory,) = (tmp_path / "mine" / "judgements").iterdir()
    result = read_json(directory / "result.json")
    assert result["metrics"]["win_rate"]["mean"] is None and len(result["notes"]) == 1
    assert not (tmp_path / "outputs").exists()


def test_a_smaller_draw_has_a_folder_of_its_own(tmp_path, monkeypatch):
    rows = [{"prompt": f"p{i}", "response": f"a{i}"} for i in range(6)]
    a = write(tmp_path / "a.jsonl", rows)
    b = write(tmp_path / "b.jsonl", [{**row, "response": "b"} for row in rows])
    asked_by(monkeypatch, lambda request: says(reason="", winner="tie"))

    def counts(*words: str) -> list[int]:
        status, out = judge(tmp_path, a, b, *SERVED, *words)
        assert status == 0, out
        folders = (tmp_path / "outputs" / "judgements").iterdir()
        return sorted(len(read_jsonl(directory / "judgements.jsonl")) for directory in folders)

    assert counts("items=3") == [3]
    assert counts() == [6]  # resumes from the three
    assert counts("items=2") == [2, 6]
    assert counts("items=2", "seed=1") == [2, 2, 6]
    assert counts("items=2") == [2, 2, 6]
    assert counts("items=6") == [2, 2, 6]  # all of them


def test_one_run_is_graded(run, tmp_path):
    status, out = judge(tmp_path, str(run.directory), "to=graded")
    assert status == 0, out
    rows = read_jsonl(tmp_path / "graded" / "grades.jsonl")
    assert len(rows) == 12 and 1 <= rows[0]["honesty"] <= 5 and rows[0]["name"] == "one-pass DPO"
    assert "conciseness" in out and "one-pass DPO: 12 responses to 6 prompts" in out


def test_files_need_another_judge_or_the_world_they_are_of(run, tmp_path):
    files = files_of(run, tmp_path)
    status, out = judge(tmp_path, *files)
    assert status == 2 and "add the world of the prompts" in out
    status, out = judge(tmp_path, *files, *WORLD, "to=there")
    assert status == 0 and "before against after: wins" in out
    judged = read_jsonl(tmp_path / "there" / "judgements.jsonl")
    assert len(judged) == 6 and all(row["score"] is not None for row in judged)
    # A file and a run are matched by prompt; responses beyond the first of each prompt have no counterpart.
    status, out = judge(tmp_path, files[0], str(run.directory), "to=mixed")
    assert status == 0 and "not matched: 0 responses of A, 6 of B" in out


def asked_by(monkeypatch, answer, **settings) -> FakeJudge:
    fake = FakeJudge(answer, **settings)
    monkeypatch.setattr(judge_module, "open_judge", lambda *_: fake)
    return fake


SERVED = ("judge=openai_compatible", "judge.base_url=http://127.0.0.1:9/v1", "judge.model=m")


def test_any_judge_on_files_with_a_reference_and_a_rubric(tmp_path, monkeypatch):
    rows = [{"prompt": f"what is {i} + 1?", "response": str(i + 1), "answer": str(i + 1)} for i in range(4)]
    a = write(tmp_path / "a.jsonl", rows)
    b = write(tmp_path / "b.jsonl", [{**row, "response": "3"} for row in rows])
    (tmp_path / "mine.yaml").write_text("name: m\nscale: {low: 1, high: 3}\ncriteria: {sum: adds up}\n")
    fake = asked_by(
        monkeypatch, lambda request: says(reason="adds up", winner="A" if request.about.first != "3" else "B")
    )
    status, out = judge(tmp_path, a, b, *SERVED, "reference=answer", "rubric=mine.yaml", "to=there")
    assert status == 0, out
    assert len(fake.asked) == 6 and "1 of them identical (ties without a request)" in out
    assert all("- sum: the reply adds up" in request.system for request in fake.asked)
    result = read_json(tmp_path / "there" / "result.json")
    assert result["rubric"]["name"] == "m" and result["metrics"]["win_rate"]["mean"] == pytest.approx(3.5 / 4)
    assert [row["reference"] for row in read_jsonl(tmp_path / "there" / "judgements.jsonl")] == ["1", "2", "3", "4"]
    status, out = judge(tmp_path, a, b, *SERVED, "reference=key", "to=there")
    assert status == 2 and "have text in this column" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "takes"),
    [
        (["judge=openai_compatible", "judge.model=m", "judge.input_usd=1", "judge.output_usd=1"], "8 to send: about"),
        (["judge=local", "judge.path=no/such-model"], "8 requests, at no cost"),
    ],
)
def test_an_estimate_needs_no_key_no_store_and_no_model(tmp_path, monkeypatch, words, takes):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    rows = [{"prompt": f"p{i}", "response": f"a{i}"} for i in range(4)]
    a = write(tmp_path / "a.jsonl", rows)
    b = write(tmp_path / "b.jsonl", [{**row, "response": "b"} for row in rows])
    status, out = judge(tmp_path, a, b, *words, "--dry-run")
    assert status == 0 and takes in " ".join(out.split()), out
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "b.jsonl"}


def test_a_judge_that_fails_leaves_what_it_answered(tmp_path, monkeypatch):
    rows = [{"prompt": f"p{i}", "response": f"a{i}"} for i in range(6)]
    a = write(tmp_path / "a.jsonl", rows)
    b = write(tmp_path / "b.jsonl", [{**row, "response": "b"} for row in rows])
    monkeypatch.setattr(judgement, "at_once", lambda *_: 2)

    def answer(request):
        return says(reason="", winner="tie")

    fake = asked_by(monkeypatch, answer, fails_after=9)
    status, out = judge(tmp_path, a, b, *SERVED, "to=there")
    assert status == 1 and "the judge is down" in out
    assert len(read_jsonl(tmp_path / "there" / "judgements.jsonl")) == 4
    assert read_json(tmp_path / "there" / "result.json")["status"] == "failed"
    fake = asked_by(monkeypatch, answer)
    status, out = judge(tmp_path, a, b, *SERVED, "to=there")
    assert status == 0 and len(fake.asked) == 4
    result = read_json(tmp_path / "there" / "result.json")
    assert result["status"] == "completed" and result["error"] is None
    # of both attempts; the answer that was lost with its comparison is not known
    assert result["cost"]["answers"] == 12
    (tmp_path / "c.jsonl").write_text((tmp_path / "a.jsonl").read_text())
    status, out = judge(tmp_path, "c.jsonl", b, *SERVED, "to=there")
    assert status == 2 and "to=there contains a judgement of other responses, by another judge" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b", "c"], "judge takes one or two run directories"),
        (["a", "b", "polcy=x"], "polcy is not an option of judge; did you mean policy"),
        (["a", "b", "items=few"], "items=few is not an integer"),
        (["a", "b"], "a does not exist"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(tmp_path, words, message):
    status, out = judge(tmp_path, *words)
    assert status == 2 and message in " ".join(out.split()), out


def test_a_run_against_itself_is_refused(run, tmp_path):
    status, out = judge(tmp_path, str(run.directory), str(run.directory))
    assert status == 2 and "the same responses" in out
