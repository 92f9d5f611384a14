"""A corpus of rows that a stage made: written, read back, identified, and mixed into the rows of a run."""

from __future__ import annotations

import json

import pytest
from support import SMALL_WORLD, planned

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.data.generated import (
    HEADER,
    REJECTED,
    ROWS,
    generated_identity,
    kind_problem,
    read_generated,
    write_generated,
)
from rlhf_lab.training.run import Run

PAIRS = [{"prompt": f"p{i}", "chosen": f"c{i}", "rejected": f"r{i}", "gold_chosen": 1.0} for i in range(4)]


def made(directory, kind: str = "pairs", rows=PAIRS):
    directory.mkdir(exist_ok=True)
    write_generated(directory, kind, rows, [{"prompt": "p", "problem": "tie"}] * 2, {"judge": {"kind": "simulated"}})
    return directory


def test_rows_are_read_back_with_what_the_world_knows_of_them(tmp_path):
    directory = made(tmp_path / "a")
    pairs = read_generated(directory, "pairs")
    assert [(pair.prompt, pair.chosen, pair.rejected) for pair in pairs][:1] == [("p0", "c0", "r0")]
    assert pairs[1].meta == {"source": "corpus.jsonl:2", "gold_chosen": 1.0}
    header = json.loads((directory / HEADER).read_text())
    assert (header["rows"], header["rejected"], header["judge"]) == (4, {"tie": 2}, {"kind": "simulated"})
    assert len((directory / REJECTED).read_text().splitlines()) == 2
    demonstrations = made(tmp_path / "b", "demonstrations", [{"prompt": "p", "completion": "c"}])
    (pair,) = read_generated(demonstrations, "demonstrations")
    assert (pair.chosen, pair.rejected) == ("c", "")


def test_a_kind_serves_in_the_place_of_those_before_it(tmp_path):
    assert kind_problem("pairs", "demonstrations") == kind_problem("demonstrations", "prompts") == ""
    assert "its rows are prompts, but pairs are needed" in kind_problem("prompts", "pairs")
    assert "generates no corpus" in kind_problem("", "prompts")
    with pytest.raises(ArtifactError, match="its rows are prompts, but demonstrations are needed"):
        read_generated(made(tmp_path / "a", "prompts", [{"prompt": "p"}]), "demonstrations")


def test_rows_that_were_changed_are_refused(tmp_path):
    directory = made(tmp_path / "a")
    (directory / ROWS).write_text((directory / ROWS).read_text().replace("c0", "c9"))
    with pytest.raises(ArtifactError, match=r"does not match corpus\.json"):
        read_generated(directory, "pairs")
    (directory / HEADER).unlink()
    with pytest.raises(ArtifactError, match=r"there is no corpus\.json"):
        read_generated(directory, "pairs")


def test_a_folder_is_identified_by_its_rows_alone(tmp_path):
    first = made(tmp_path / "a")
    identity = generated_identity(first)
    (first / "report.html").write_text("later")
    assert generated_identity(first) == identity == generated_identity(made(tmp_path / "b"))
    assert generated_identity(made(tmp_path / "c", rows=PAIRS[:3])) != identity
    assert generated_identity(tmp_path) is None


def test_a_run_trains_on_the_mixture_and_is_tested_on_its_own_data(tmp_path):
    directory = made(tmp_path / "a")
    overrides = (*SMALL_WORLD, f"+needs.corpus={directory}", "mixture.rows=8", "mixture.shares={data:1,corpus:1}")
    stage = planned("reward_model", *overrides)
    run = Run(tmp_path, stage.config, stage.sources())
    assert run.needs["corpus"] == str(directory) and run.needs["policy"].endswith("/model")
    assert len(run.corpus.train) == 8
    assert sum(pair.prompt.startswith("p") for pair in run.corpus.train) == 4
    assert run.corpus.test == run.own_corpus.test
    assert len(run.own_corpus.train) == 96
