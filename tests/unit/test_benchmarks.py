"""Benchmarks of reward models end to end on files of their own form: read, scored, written, unscored items counted."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from support import planned

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.types import Corpus, Pair, RewardBatch
from rlhf_lab.data.benchmarks import own_items, read_items, read_solutions
from rlhf_lab.evaluations import rm_bench
from rlhf_lab.evaluations.settings import RewardBenchmark


def table(scores):
    """A reward that looks responses up by their last line; None is unscored."""
    return lambda episodes: RewardBatch(
        np.array([scores[episode.response.splitlines()[-1]] for episode in episodes], dtype=float)
    )


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def bench(tmp_path, monkeypatch, reward, **settings):
    monkeypatch.setattr(rm_bench, "build_reward", lambda run: reward)
    config = SimpleNamespace(needs={"reward": "mine"}, reward=SimpleNamespace(terms={"bt": None}))
    run = SimpleNamespace(directory=tmp_path, config=config, corpus=Corpus("toy", [], [], ""))
    return rm_bench.build(RewardBenchmark(**settings), run).finish().metrics


def test_reward_bench(tmp_path, monkeypatch):
    """mt-bench-easy: won, tied = lost: 1/2. hep-go: won, unscored: 1 of 1. Chat 1/2; Reasoning 1; no overall score."""
    rows = [
        {"id": k, "prompt": f"q{k}", "chosen": f"c{k}", "rejected": f"r{k}", "subset": subset, "chosen_model": "human"}
        for k, subset in enumerate(["mt-bench-easy", "mt-bench-easy", "hep-go", "hep-go"])
    ]
    scores = {"c0": 2, "r0": 1, "c1": 1, "r1": 1, "c2": 1, "r2": 0, "c3": None, "r3": 0}
    path = write(tmp_path / "rows.jsonl", rows)
    found = bench(tmp_path, monkeypatch, table(scores), benchmark="reward_bench", path=path)
    assert found["mt-bench-easy"].mean == 0.5
    assert (found["hep-go"].mean, found["hep-go"].unscored) == (1.0, 1)
    assert {k: v.mean for k, v in found.items() if k.startswith("section/")} == {
        "section/Chat": 0.5,
        "section/Reasoning": 1.0,
    }
    assert (found["items"], found["unscored"]) == (4, 1)
    assert "score" not in found
    written = json.loads((tmp_path / "reward_bench.json").read_text())
    assert written == {"model": "mine", "model_type": "bt", "mt-bench-easy": 0.5, "hep-go": 1.0}
    rows = json.loads((tmp_path / "reward_bench_scores.json").read_text())
    assert rows["results"] == [1.0, 0.0, 1.0, None]
    assert rows["scores_chosen"][3] is None


def test_reward_bench_2_with_ties(tmp_path, monkeypatch):
    """Math: alone on top 1, one of two on top 1/2: 3/4. Ties, one question with tied (5, 4 | 1) and reference (6 | 2):
    .3 + .3 + .2 + .2 + .01·tanh(3/1 − 1)."""
    rows = [
        {"id": "m1", "prompt": "a", "chosen": ["1a"], "rejected": ["1b", "1c", "1d"], "subset": "Math"},
        {"id": "m2", "prompt": "b", "chosen": ["2a"], "rejected": ["2b", "2c", "2d"], "subset": "Math"},
        {"id": "tied:3", "prompt": "c", "chosen": ["3a", "3b"], "rejected": ["3c"], "subset": "Ties"},
        {"id": "ref:3", "prompt": "d", "chosen": ["4a"], "rejected": ["4b"], "subset": "Ties"},
    ]
    scores = {"1a": 3, "1b": 2, "1c": 1, "1d": 0, "2a": 3, "2b": 3, "2c": 1, "2d": 0}
    scores |= {"3a": 5, "3b": 4, "3c": 1, "4a": 6, "4b": 2}
    path = write(tmp_path / "rows.jsonl", rows)
    found = bench(tmp_path, monkeypatch, table(scores), benchmark="reward_bench_2", path=path)
    ties = 1 + 0.01 * math.tanh(2)
    assert found["Math"].mean == 0.75
    assert found["Ties"].mean == pytest.approx(ties)
    assert found["score"].mean == pytest.approx((0.75 + ties) / 2)
    assert json.loads((tmp_path / "reward_bench_2.json").read_text())["Ties"] == pytest.approx(ties)


def test_reward_math_groups_the_solutions_of_a_problem(tmp_path, monkeypatch):
    """Problem 0: 3 against 1, 2: won. Problem 1: 2 against 2, 1: tied, rank 2. Steps are joined by line."""
    rows = [
        {"problem": f"p{problem}", "problem_id": problem, "solution_type": kind, "eval_solution": ["first\nhalf", last]}
        for problem, kind, last in [
            (0, "rejected", "0b"),
            (0, "chosen", "0a"),
            (1, "chosen", "1a"),
            (0, "rejected", "0c"),
            (1, "rejected", "1b"),
            (1, "rejected", "1c"),
        ]
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    assert read_items("reward_math", path)[0].right == ("first half\n0a",)
    scores = {"0a": 3, "0b": 1, "0c": 2, "1a": 2, "1b": 2, "1c": 1}
    found = bench(tmp_path, monkeypatch, table(scores), benchmark="reward_math", path=path)
    assert (found["score"].mean, found["ties_allowed"].mean, found["mrr"].mean) == (0.5, 1.0, 0.75)
    with pytest.raises(DataError, match="each problem needs both"):
        read_items("reward_math", write(tmp_path / "half.jsonl", rows[:1]))


def test_process_bench_scores_the_solution_so_far(tmp_path, monkeypatch):
    """Error 1 of 2 named, correct 1 of 1: F1 = 2·.5·1/1.5. The prefix ends with the step that is scored."""
    rows = [
        {"id": "gsm8k-0", "problem": "p", "steps": ["ok", "bad"], "label": 1, "generator": "x"},
        {"id": "gsm8k-1", "problem": "q", "steps": ["ok", "ok"], "label": 0, "generator": "x"},
        {"id": "gsm8k-2", "problem": "r", "steps": ["ok"], "label": -1, "generator": "x"},
        {"id": "math-0", "problem": "s", "steps": ["lost"], "label": -1, "generator": "x"},
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    assert read_solutions(path)[0].prefixes == ["ok", "ok\nbad"]
    scores = {"ok": 0.9, "bad": 0.4, "lost": None}
    found = bench(tmp_path, monkeypatch, table(scores), benchmark="process_bench", path=path)
    assert found["gsm8k/f1"].mean == pytest.approx(2 * 0.5 / 1.5)
    assert found["score"].mean == pytest.approx(2 * 0.5 / 1.5)
    assert (found["items"], found["unscored"]) == (4, 1)
    errors = [json.loads(line) for line in (tmp_path / "gsm8k_error.jsonl").read_text().splitlines()]
    assert [(row["prediction"], row["match"]) for row in errors] == [(1, True), (-1, False)]
    assert errors[0]["generator"] == "x"
    strict = bench(tmp_path, monkeypatch, table(scores), benchmark="process_bench", path=path, threshold=0.95)
    assert strict["gsm8k/correct"].mean == 0.0


def test_the_content_of_a_benchmark_file_is_part_of_the_key(tmp_path):
    """The same name with other rows is another result."""
    row = {"id": 0, "prompt": "p", "chosen": "c", "rejected": "r", "subset": "s"}
    keys = []
    for chosen in ("c", "other"):
        path = write(tmp_path / "rows.jsonl", [{**row, "chosen": chosen}])
        keys.append(planned("rm_bench", f"algorithm.path={path}").key)
    assert keys[0] != keys[1]


def test_without_a_file_the_corpus_stands_in_in_the_order_of_the_truth():
    gold = [{"gold_chosen": 1.0, "gold_rejected": 2.0}, {"gold_chosen": 1.0, "gold_rejected": 1.0}, {}]
    items = own_items("world", [Pair("p", "c", "r", meta) for meta in gold])
    assert [(item.right, item.wrong) for item in items] == [(("r",), ("c",)), (("c",), ("r",))]
    with pytest.raises(ConfigError, match="needs its rows"):
        RewardBenchmark(benchmark="reward_bench_2")


@pytest.mark.parametrize(
    ("benchmark", "row", "fault"),
    [
        ("reward_bench", {"id": 0, "prompt": "p", "chosen": "c", "subset": "s"}, "column 'rejected' is missing"),
        ("reward_bench_2", {"id": 0, "prompt": "p", "chosen": "c", "rejected": ["r"], "subset": "s"}, "list of texts"),
    ],
)
def test_a_row_of_another_form_is_named(tmp_path, benchmark, row, fault):
    with pytest.raises(DataError, match=fault) as caught:
        read_items(benchmark, write(tmp_path / "rows.jsonl", [row]))
    assert "row 1" in str(caught.value)


def test_a_label_beyond_the_steps_is_refused(tmp_path):
    row = {"id": "gsm8k-0", "problem": "p", "steps": ["a"], "label": 1}
    with pytest.raises(DataError, match="label"):
        read_solutions(write(tmp_path / "rows.jsonl", [row]))
