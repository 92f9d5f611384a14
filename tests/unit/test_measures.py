"""Measures that a world declares, and those that it only returns: named in `core/measures.py`, logged everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_lab.algorithms.policy_gradient.rollouts import truth_means
from rlhf_lab.core import measures, metrics
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.measures import GOLD, Measure, columns_of, details, named
from rlhf_lab.core.metrics import metric, undeclared
from rlhf_lab.core.types import Corpus, Oracle
from rlhf_lab.evaluations.evaluator import Evaluator
from rlhf_lab.evaluations.rescoring import read_responses
from rlhf_lab.reports.run.policies import policy_table
from rlhf_lab.results.rundir import read_run
from rlhf_lab.training.run_settings import Evaluation

PATIENCE = Measure("patience", "turns before a caller hangs up", title="patience", unit="turns", better="higher")
REACHED = Measure("reached", "whether the caller was reached", title="reached", kind="rate", by_category=True)


class Switchboard:
    """An environment that declares two measures and returns a third."""

    measures = (PATIENCE, REACHED, *details(noise="decibels"))

    def grade(self, episodes):
        count = len(episodes)
        truth = {"gold": 1.0, "patience": 3.0, "reached": 1.0, "noise": 60.0, "hesitations": 2.0, "time/turn": np.nan}
        return {name: np.full(count, value) for name, value in truth.items()}


LOGGED = ["gold", "patience", "reached", "measure/hesitations", "measure/time.turn"]
CORPUS = Corpus("calls", [], [], "", environment=Switchboard())
EPISODES = CORPUS.episodes(["Q", "R"], ["a", "b"])


@pytest.fixture
def forgotten() -> Iterator[None]:
    """The measures of this module are unknown again at the end, and before."""
    yield
    metrics._from_worlds.clear()
    for cached in (metrics.declared, metrics.catalogue, metrics.titled):
        cached.cache_clear()


def rows() -> list[dict[str, Any]]:
    """Rows of evaluation.jsonl: what the environment returns of two episodes in two categories."""
    truth = CORPUS.measure(EPISODES)
    described = {"policy": "SFT", "prompt": "Q", "response": "a", "sample_id": 0, "tokens": 1, "ended": 1}
    described |= {"proxy": None, "kl": 0.0, "verbose": None, "garble": None, "correct": None}
    return [
        described
        | {"prompt_id": i, "category": category}
        | {name: None if np.isnan(values[i]) else float(values[i]) for name, values in truth.items()}
        for i, category in enumerate(("home", "work"))
    ]


def write_run(directory: Path) -> Path:
    """A run directory that knows no more of the environment than what its manifest says."""
    evaluator = Evaluator.__new__(Evaluator)
    evaluator.settings = Evaluation()
    evaluator.is_spoken = False
    evaluator.run = SimpleNamespace(data=SimpleNamespace(oracle=None), corpus=CORPUS)
    evaluator._reference_rows = rows()
    estimates = {name: estimate.to_dict() for name, estimate in evaluator._summarise(rows()).items()}
    manifest = {"data": {"name": "calls", "measures": measures.to_stored(CORPUS.measures)}}
    result = {"status": "completed", "policies": [{"name": "SFT", "metrics": estimates}], "metrics": {}}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (directory / "result.json").write_text(json.dumps(result))
    (directory / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return directory


def test_a_declared_measure_keeps_its_name_and_any_other_has_a_prefix():
    assert list(CORPUS.measure(EPISODES)) == LOGGED
    assert undeclared(["measure/hesitations", "measure/time.turn"]) == []
    means = truth_means(CORPUS.measure(EPISODES))
    assert list(means) == LOGGED
    assert (means["patience"], means["measure/hesitations"]) == (3.0, 2.0)
    assert np.isnan(means["measure/time.turn"])


def test_an_evaluation_estimates_every_measure(tmp_path, forgotten):
    """Both callers of two categories were reached: a rate, whose interval is Wilson's and ends below 1."""
    found = json.loads((write_run(tmp_path) / "result.json").read_text())["policies"][0]["metrics"]
    assert found["patience"]["mean"] == 3.0 and found["measure/hesitations"]["mean"] == 2.0
    assert found["reached/home"]["mean"] == found["reached/work"]["mean"] == 1.0
    assert found["reached"]["low"] > 0 and found["patience"]["low"] == 3.0
    assert not {"noise", "measure/noise", "measure/time.turn"} & found.keys()


def test_a_report_gives_a_stored_run_the_titles_that_its_world_declared(tmp_path, forgotten):
    assert metric("patience").heading == "patience"
    run = read_run(write_run(tmp_path))
    columns, _ = policy_table(run)
    headings = dict(columns)
    assert headings["patience, turns"] == "turns before a caller hangs up"
    assert "measure/hesitations" in headings and "reached" in headings
    assert metric("patience").better == "higher"
    assert metric("reached/home").meaning == "the same for tasks of one category"


def test_a_saved_column_is_read_for_another_weighting(tmp_path, forgotten):
    responses = read_responses(write_run(tmp_path))
    assert responses.columns["patience"].tolist() == [3.0, 3.0]
    assert responses.columns["measure/hesitations"].tolist() == [2.0, 2.0]
    assert {"patience", "reached", "gold", "tokens", "ended"} <= responses.truth
    assert not {"proxy", "kl", "prompt_id"} & responses.truth


def test_a_manifest_of_another_version_may_say_more(tmp_path, forgotten):
    directory = write_run(tmp_path)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["data"]["measures"][0]["colour"] = "red"
    (directory / "manifest.json").write_text(json.dumps(manifest))
    measures.recall(directory)
    assert metric("patience").title == "patience"


@pytest.mark.parametrize("name", ["kl", "prompt_id", "reward/calm", "wasted_groups"])
def test_a_measure_named_like_another_number_is_refused(name):
    with pytest.raises(DataError, match=f"data=calls declares a measure named {name}, .* a name of its own"):
        measures.declare("data=calls", [replace(PATIENCE, name=name)])


def test_details_are_not_logged_and_standard_measures_need_no_declaration():
    class World(Oracle):
        measures = (GOLD, *details(words="words"))

        def measure(self, prompts, responses):
            return {name: np.ones(len(prompts)) for name in ("gold", "words", "hesitations")}

        def prefer(self, prompts, first, second, *, seed):
            raise NotImplementedError

    corpus = Corpus("", [], [], "", oracle=World())
    assert list(corpus.measure(corpus.episodes(["Q"], ["a"]))) == ["gold", "measure/hesitations"]
    truth = {"correct": np.ones(1), "verified/parses": np.ones(1), "calls": np.ones(1)}
    assert list(named(truth, ())) == list(truth)
    assert columns_of(["correct", "kl", "calls"], ()).keys() == {"correct", "calls"}
