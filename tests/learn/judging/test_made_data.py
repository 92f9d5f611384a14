"""Stages that make data: what becomes of every item, with a judge of any kind, and after an interruption."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import ONE_LAYER, SMALL_WORLD, command_inside, planned, prompt_text, write_pairs

from rlhf_lab.core.errors import JudgeUnavailable
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.data.generated import write_generated
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest
from rlhf_lab.packs.judging.synthesis import cai_preferences, making, self_instruct, synthetic_sft
from rlhf_lab.reports.run.samples import corpus_dots
from rlhf_lab.results.answer_corpora import synthetic_corpus
from rlhf_lab.results.rundir import read_run
from rlhf_lab.training.run import Run

LOOPBACK = "judge.base_url=http://127.0.0.1:9"  # needs no key and no price; nothing is sent there
SMALL = (*SMALL_WORLD, *ONE_LAYER, "runtime.threads=1")


@dataclass
class Judge:
    """Answers by a function of the request's number and the request; can fail once after some calls."""

    answer: Callable[[int, CompletionRequest], Completion | str]
    fails_at: int | None = None
    requests: list[CompletionRequest] = field(default_factory=list)
    calls: int = 0
    identity: Mapping[str, Any] = field(default_factory=lambda: {"kind": "stub"})

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise JudgeUnavailable("the service is down")
        first = len(self.requests)
        self.requests += requests
        answers = [self.answer(first + i, request) for i, request in enumerate(requests)]
        return [Completion(answer) if isinstance(answer, str) else answer for answer in answers]


def run(directory: Path, recipe: str, *overrides: str, status: int = 0) -> Path:
    """Directory of the stage that a command built."""
    before = set((directory / "outputs" / "runs").glob("*"))
    found, out = command_inside(directory, f"+recipe={recipe}", *SMALL, *overrides)
    assert found == status, out
    kind = recipe if recipe in ("cai_preferences", "synthetic_sft", "self_instruct") else "*"
    generated = sorted((directory / "outputs" / "runs").glob(f"{kind}-*"), key=lambda path: path.stat().st_mtime)
    return next((path for path in reversed(generated) if path not in before), generated[-1])


def files(directory: Path) -> dict[str, Any]:
    return {name: (directory / name).read_text() for name in ("corpus.jsonl", "rejected.jsonl", "corpus.json")}


def metrics(directory: Path) -> dict[str, Any]:
    return read_json(directory / "result.json")["metrics"]


def test_every_item_is_a_row_or_rejected_and_is_counted(tmp_path):
    directory = run(tmp_path, "synthetic_sft", "algorithm.prompts=150", "judge.unusable=0.1")
    rows, rejected = read_jsonl(directory / "corpus.jsonl"), read_jsonl(directory / "rejected.jsonl")
    measured = metrics(directory)
    assert {row["item"] for row in rows} | {row["item"] for row in rejected} == set(range(150))
    assert measured["made/items"] == 150 and measured["made/rows"] == len(rows) and len(rejected) == 150 - len(rows)
    assert measured["made/acceptance"]["mean"] == pytest.approx(len(rows) / 150)
    counts = Counter(row["problem"] for row in rejected)
    assert {f"made/rejected/{name}": n for name, n in counts.items()} == {
        name: n for name, n in measured.items() if name.startswith("made/rejected/")
    }
    assert counts == read_json(directory / "corpus.json")["rejected"]
    assert {"critique refused", "critique truncated", "critique invalid", synthetic_sft.UNCHANGED} <= set(counts)
    revised = [row for row in rows if row["violations"]]
    assert revised and all(row["completion"] != row["draft"] for row in revised)
    assert all(row["completion"] == row["draft"] for row in rows if not row["violations"])
    assert measured["made/gold_gain"]["low"] > 0  # set by the judge's parameters
    assert not (directory / making.WORK).exists()
    stored = read_run(directory)
    assert f"{len(rows)} of 150 items became rows" in synthetic_corpus(stored)
    assert corpus_dots(stored) is not None and "<svg" in (directory / "report.html").read_text()


def test_pairs_are_made_where_both_orders_agree(tmp_path):
    directory = run(tmp_path, "cai_preferences", "algorithm.prompts=80", "judge.position_bias=2")
    rows, rejected = read_jsonl(directory / "corpus.jsonl"), read_jsonl(directory / "rejected.jsonl")
    counts = Counter(row["problem"] for row in rejected)
    assert counts[cai_preferences.INCONSISTENT] > 0 and rows
    for row in rows:
        assert row["chosen"] != row["rejected"] and len(row["reasons"]) == len(row["principles"]) == 2
    agreement = metrics(directory)["made/label_agreement"]["mean"]
    right = [row["gold_chosen"] > row["gold_rejected"] for row in rows]
    tied = [row["gold_chosen"] == row["gold_rejected"] for row in rows]
    assert agreement == pytest.approx((sum(right) + sum(tied) / 2) / len(rows))
    fractions = [value["mean"] for name, value in metrics(directory).items() if name.startswith("made/principle/")]
    assert sum(fractions) == pytest.approx(1)


def test_prompts_are_new(tmp_path):
    directory = run(tmp_path, "self_instruct", "algorithm.prompts=60", "judge.copies=0.3")
    rows, rejected = read_jsonl(directory / "corpus.jsonl"), read_jsonl(directory / "rejected.jsonl")
    prompts = [row["prompt"] for row in rows]
    assert len(prompts) == len(set(prompts)) == 60
    seeds = set(read_json(directory / "corpus.json")["seeds"])
    assert not seeds & {self_instruct.to_plain_text(prompt) for prompt in prompts}
    counts = Counter(row["problem"] for row in rejected)
    assert counts[self_instruct.OF_A_SEED] > 0 and counts[making.DUPLICATE] > 0
    # a corpus of prompts: the responses are written to them
    written = run(tmp_path, "synthetic_sft", "algorithm.prompts=30", f"+needs.prompts={directory}")
    assert {row["prompt"] for row in read_jsonl(written / "corpus.jsonl")} <= set(prompts)


def test_near_duplicates_and_held_out_prompts_are_rejected(tmp_path, monkeypatch):
    """The user's own data and a real judge: the prompts it writes are near one another, or held-out."""
    questions = [f"How do I grow {plant} in a small garden?" for plant in ("roses", "tomatoes", "ferns", "basil")]
    train = [(f"{question} {'really ' * i}", "good reply", "bad") for i, question in enumerate(questions)]
    data = write_pairs(tmp_path / "train.jsonl", train)
    heldout = "Which knife is best for cutting fresh bread at home?"
    test = write_pairs(tmp_path / "test.jsonl", [(heldout, "good", "bad")])
    written = [
        "Which knife is best for cutting fresh bread?",
        "How do I grow roses in a big garden?",
        "Why is the sky blue on most days?",
        "Why is the sky so blue on most days?",
        "word " * 30,
        "",
    ]
    judge = Judge(lambda i, request: json.dumps({"prompts": written}) if i else "no")
    monkeypatch.setattr(self_instruct, "judge_of", lambda run: judge)
    own = ("data=pairs", f"data.path={data}", f"data.test_path={test}")
    own += ("judge=openai_compatible", "judge.model=m", LOOPBACK)
    sizes = ("algorithm.prompts=5", "algorithm.seeds=4", "algorithm.examples=2", "algorithm.max_words=20")
    small = [item for item in SMALL if not item.startswith("data")]
    found, out = command_inside(tmp_path, "+recipe=self_instruct", *small, *own, *sizes)
    assert found == 0, out
    (directory,) = (tmp_path / "outputs" / "runs").glob("self_instruct-*")
    assert [self_instruct.to_plain_text(row["prompt"]) for row in read_jsonl(directory / "corpus.jsonl")] == [
        written[2]
    ]
    problems = [row["problem"] for row in read_jsonl(directory / "rejected.jsonl")][:6]
    near = [making.CONTAMINATED, self_instruct.OF_A_SEED, making.NEAR_DUPLICATE, making.TOO_LONG, making.EMPTY]
    assert problems == ["request invalid", *near]
    assert "1 of 5 new prompts" in out


@pytest.mark.parametrize(
    ("recipe", "module", "chunk"), [("cai_preferences", cai_preferences, 20), ("self_instruct", self_instruct, 4)]
)
def test_an_interrupted_stage_goes_on_and_asks_nothing_twice(tmp_path, monkeypatch, recipe, module, chunk):
    """The judge is away in the middle; the corpus is that of an undisturbed run, to the byte."""
    monkeypatch.setattr(making, "CHUNK", chunk)
    monkeypatch.setattr(making.make_all, "__kwdefaults__", {"size": chunk})
    monkeypatch.setattr(self_instruct, "ROUND", chunk)
    overrides = ("algorithm.prompts=60",)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    full = files(run(elsewhere, recipe, *overrides))
    real = module.judge_of
    judges: list[Judge] = []

    def flaky(run: Any) -> Any:
        inner = real(run)
        calls_before_failing = 5 if recipe == "synthetic_sft" else 2
        judge = Judge(lambda i, request: inner.complete_many([request])[0], None if judges else calls_before_failing)
        judge.identity = inner.identity
        judges.append(judge)
        return judge

    monkeypatch.setattr(module, "judge_of", flaky)
    stopped = run(tmp_path, recipe, *overrides, status=1)
    assert not (stopped / "corpus.json").exists()
    settled = len(read_jsonl(stopped / making.WORK))
    assert settled == chunk
    resumed = run(tmp_path, recipe, *overrides)
    assert resumed == stopped
    again = files(resumed)
    assert again["corpus.jsonl"] == full["corpus.jsonl"] and again["rejected.jsonl"] == full["rejected.jsonl"]
    texts = [{(request.messages[0]["content"], request.draw) for request in judge.requests} for judge in judges]
    if recipe == "self_instruct":
        assert not texts[0] & texts[1]
    assert len(judges[1].requests) > 0


def test_drafts_of_the_policy(tmp_path):
    overrides = (
        "algorithm.prompts=20",
        "algorithm.drafts=policy",
        "+needs.policy=sft",
        "stages.sft.algorithm.epochs=1",
    )
    directory = run(tmp_path, "synthetic_sft", *overrides)
    items = [*read_jsonl(directory / "corpus.jsonl"), *read_jsonl(directory / "rejected.jsonl")]
    assert len(items) == 20 and all("draft" in item for item in items)


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_a_judge_that_repeats_itself_drafts_each_prompt_once(tmp_path, monkeypatch, temperature):
    """Two prompts and five items: at temperature 0 the third draft would be the first one again."""
    judge = Judge(lambda number, request: '{"violations": []}' if request.schema else f"draft number {number}")
    monkeypatch.setattr(synthetic_sft, "judge_of", lambda run: judge)
    generated = tmp_path / "prompts"
    generated.mkdir()
    write_generated(generated, "prompts", [{"prompt": prompt_text(text)} for text in ("one", "two")], [], {})
    service = ("judge=openai_compatible", "judge.model=m", f"judge.temperature={temperature}")
    words = ("synthetic_sft", *SMALL, *service, f"+needs.prompts={generated}", "algorithm.prompts=5")
    stage = planned(*words, f"outputs={tmp_path}")
    notes = []
    monkeypatch.setattr(Run, "note", lambda self, text: notes.append(text))
    result = synthetic_sft.build(stage.config.algorithm, Run(tmp_path, stage.config, stage.sources())).finish()
    items = 5 if temperature else 2
    assert result.metrics["made/items"] == items and len(judge.requests) == 2 * items
    assert any("2 of 5 items are processed" in note for note in notes) == (not temperature)
