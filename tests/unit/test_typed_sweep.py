"""A sweep that is typed instead of written as a study: its settings, its jobs, and what its table shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_lab.config import command_line, typed_sweep
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.stages import preflight
from rlhf_lab.sweeps import sweep

SWEEP = ("+recipe=reward_model", "algorithm.centering=0,0.01", "seed=0,1")


def estimate(mean: float | None) -> dict[str, Any]:
    return {"mean": mean, "low": mean, "high": mean, "n": 8, "clusters": 4}


def study_dir(tmp_path: Path, *results: dict[str, Any], **plan: Any) -> Path:
    """The folder of a typed sweep whose jobs hold these results."""
    jobs = [{"index": index, "overrides": {"seed": index}} for index in range(len(results))]
    values = {"metrics": ["gold", "proxy"], "primary": "gold", "metrics_from": "results", "jobs": jobs, **plan}
    (tmp_path / "study.json").write_text(json.dumps(values))
    for index, result in enumerate(results):
        run = tmp_path / f"run-{index}"
        run.mkdir()
        (run / "result.json").write_text(json.dumps(result))
        (tmp_path / f"jobs/{index}").mkdir(parents=True)
        (tmp_path / f"jobs/{index}/job.json").write_text(json.dumps({"status": "completed", "run": str(run)}))
    return tmp_path


def chosen(directory: Path) -> tuple[str, list[str]]:
    typed_sweep.choose_metrics(directory)
    plan = json.loads((directory / "study.json").read_text())
    return plan["primary"], plan["metrics"]


def test_metrics_are_those_that_the_runs_print(tmp_path):
    reward_model = {
        "policies": [],
        "metrics": {"accuracy": estimate(0.7), "ece": estimate(0.1), "rest": estimate(1.0)},
        "primary": ["accuracy", "ece"],
    }
    other = {"policies": [], "metrics": {"accuracy": estimate(0.6), "gold_agreement": estimate(0.5)}}
    directory = study_dir(tmp_path, reward_model, {**other, "primary": ["accuracy", "gold_agreement"]})
    assert chosen(directory) == ("accuracy", ["accuracy", "ece", "gold_agreement"])


def test_of_policies_those_of_the_last_one_come_first(tmp_path):
    policies = [
        {"name": "SFT", "metrics": {"gold": estimate(0.0), "kl": estimate(0.0)}},
        {"name": "GRPO", "metrics": {"correct": estimate(0.4), "gold": estimate(None), "kl": estimate(1.0)}},
    ]
    result = {"policies": policies, "metrics": {"heldout_nll": estimate(2.0)}, "primary": ["heldout_nll"]}
    assert chosen(study_dir(tmp_path, result)) == ("correct", ["correct", "kl", "heldout_nll"])


def test_metrics_that_were_written_stay_and_so_do_those_of_a_sweep_without_results(tmp_path):
    result = {"policies": [], "metrics": {"accuracy": estimate(0.7)}, "primary": ["accuracy"]}
    written = study_dir(tmp_path, result, metrics_from="study")
    assert chosen(written) == ("gold", ["gold", "proxy"])
    (tmp_path / "empty").mkdir()
    assert chosen(study_dir(tmp_path / "empty")) == ("gold", ["gold", "proxy"])


def test_settings_of_a_study_fit_a_typed_sweep():
    command = command_line.check_command([*SWEEP, "study.processes=1", "study.metrics=[ece]", "study.baseline=0.01"])
    assert command.typed and len(command.jobs) == 4
    study = command.study
    assert study is not None
    assert (study.processes, study.metrics, study.compare) == (1, ["ece"], "algorithm.centering")
    assert study.baseline == 0.01 and study.sweep == {"algorithm.centering": [0, 0.01], "seed": [0, 1]}
    assert command_line.check_command(SWEEP).study.baseline == 0


def test_wrong_settings_of_a_typed_sweep():
    with pytest.raises(ConfigError) as error:
        command_line.check_command([*SWEEP, "study.proceses=1"])
    assert error.value.problems == ["study.proceses is not a setting; did you mean processes?"]
    with pytest.raises(ConfigError, match=r"study.compare=algorithm.lr is not a key of sweep: algorithm.centering"):
        command_line.check_command([*SWEEP, "study.compare=algorithm.lr"])


def test_a_study_setting_where_nothing_is_swept_is_one_problem():
    with pytest.raises(ConfigError) as error:
        command_line.check_command(["+recipe=reward_model", "study.processes=1"])
    (problem,) = error.value.problems
    assert problem.startswith("study.processes=1: reward_model is one run, not a study; ")
    assert "sweep a setting, for example seed=0,1,2" in problem


def test_a_stopped_sweep_without_a_complete_job_has_no_empty_tables(tmp_path):
    command = command_line.check_command([*SWEEP, f"outputs={tmp_path}"])
    directory = tmp_path / "study"
    assert command.study is not None
    sweep._write_plan(directory, command, command.study, preflight.planned(command))
    with console.capture() as printed:
        assert sweep.write_results(directory, 4) == 4
    assert printed.get().splitlines() == [
        "  writing the tables and the report",
        f"no job is complete, so there is no table; report {directory / 'report.html'}",
    ]


@pytest.mark.parametrize(
    ("words", "processes", "expected"),
    [
        ([], "1", True),
        (["hydra/launcher=basic"], "2", True),
        (["hydra/launcher=joblib"], "2", False),
        (["hydra/launcher=submitit_slurm"], "1", False),
    ],
)
def test_which_jobs_run_in_the_process_of_the_study(monkeypatch, words, processes, expected):
    command = command_line.check_command([*SWEEP, *words])
    monkeypatch.setenv(sweep.PROCESSES, processes)
    assert sweep._runs_here(command, words) is expected
