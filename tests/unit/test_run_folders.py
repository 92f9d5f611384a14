"""Meaning of a directory on the command line, and what a tracker receives of the run in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_runs import POLICIES, write_run, write_study

from rlhf_lab.core.errors import DataError
from rlhf_lab.models.model_files import input_identity
from rlhf_lab.results.folders import find_run
from rlhf_lab.results.outcome import outcome
from rlhf_lab.results.rundir import input_directory


def test_a_job_names_its_run_or_says_why_there_is_none(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    assert find_run(run) == run
    study = write_study(tmp_path, seeds=1)
    with pytest.raises(DataError, match=r"study is a study; name one of its jobs, such as .*study/jobs/0"):
        find_run(study)
    job = study / "jobs" / "0"
    assert find_run(job) == job / "run"
    (job / "job.json").write_text(json.dumps({"status": "failed", "error": "Traceback\nNumericError: NaN"}))
    with pytest.raises(DataError, match=r"started no run \(failed: NumericError: NaN\)"):
        find_run(job)
    (job / "job.json").write_text(json.dumps({"status": "completed", "run": "gone"}))
    with pytest.raises(DataError, match="names the run gone, which does not exist"):
        find_run(job)


def test_an_input_that_the_user_named_belongs_to_its_run(tmp_path: Path) -> None:
    """A model is named by its directory, rows by the run directory; both are known by their content."""
    user, made = write_run(tmp_path, "user"), write_run(tmp_path, "made")
    (made / "model").mkdir()
    (made / "model" / "config.json").write_text("{}")
    for named in (made, made / "model"):
        need = {"recipe": None, "key": input_identity(str(named)), "dir": str(named)}
        assert input_directory(user, need) == made
        moved = need | {"dir": str(Path("elsewhere", *named.relative_to(tmp_path).parts))}
        assert input_directory(user, moved) == made
        assert input_directory(user, need | {"key": "of another content"}) is None
    assert input_directory(user, {}) is None
    hub = "openai-community/gpt2"
    assert input_directory(user, {"recipe": None, "key": input_identity(hub), "dir": hub}) is None


def test_the_outcome_has_the_last_policys_means_and_every_interval(tmp_path: Path) -> None:
    found = outcome(write_run(tmp_path, prompts=6))
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    last = stored["policies"][-1]["metrics"]
    assert found.final["gold"] == last["gold"]["mean"] and found.final["staleness"] == 1.5
    policies = found.tables["policies"]
    assert policies.columns == ["policy", "metric", "mean", "low", "high", "n", "title"]
    kl = {row[0]: row[2:5] for row in policies.rows if row[1] == "kl"}
    assert kl["iteration 3"] == [last["kl"][name] for name in ("mean", "low", "high")]
    samples = found.tables["samples"]
    assert samples.columns == ["prompt", *POLICIES]
    assert all(len(row) == len(samples.columns) for row in samples.rows)


def test_a_run_without_policies_has_no_tables(tmp_path: Path) -> None:
    assert outcome(write_run(tmp_path, policies=())).tables == {}
