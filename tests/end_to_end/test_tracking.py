"""A tracker's values of real runs equal metrics.jsonl: of a sweep, after a kill, and in every backend."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
import wandb_log
from support import ONE_LAYER, SMALL_WORLD, Stopped, planned, stop_at

from rlhf_lab.algorithms.supervised.sft import SupervisedFineTuning
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.stages.execute import execute

SFT = (
    *("algorithm.epochs=1", "algorithm.batch_size=8", "algorithm.log_every_steps=1", "checkpoint.every_steps=4"),
    *("model=micro", *ONE_LAYER, *SMALL_WORLD),
)


@pytest.fixture
def offline(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        wandb_log.hide_login(patch, tmp_path)
        yield


def logged(directory: Path) -> list[dict]:
    """Rows of metrics.jsonl without nulls."""
    return [
        {key: value for key, value in row.items() if value is not None}
        for row in read_jsonl(directory / "metrics.jsonl")
    ]


def build_after_a_kill(stage, monkeypatch) -> None:
    """The stage is killed in its seventh step, logged six and saved four; the second attempt finishes it."""
    stop_at(monkeypatch, SupervisedFineTuning, 6)
    with pytest.raises(Stopped):
        execute(stage)
    assert [row["step"] for row in logged(stage.directory)] == [1, 2, 3, 4, 5, 6]
    stop_at(monkeypatch, SupervisedFineTuning, None)
    assert "resumed at step 4" in execute(stage)["notes"]


@pytest.mark.slow
def test_a_sweep_in_wandb_reads_back(fresh, sized, offline):
    pytest.importorskip("wandb")
    here = "hydra/launcher=basic"  # one job after the other, in this process
    out = fresh.inside("+recipe=dpo", *sized("dpo"), "algorithm.beta=0.1,0.3", "tracker=wandb", here)
    (study,) = (fresh.directory / "outputs" / "studies").iterdir()
    runs = {run.id: run for run in map(wandb_log.read, fresh.directory.glob("outputs/wandb/offline-run-*/*.wandb"))}
    assert sorted(run.job_type for run in runs.values()) == ["dpo", "dpo", "reward_model", "sft"]
    assert {run.group for run in runs.values()} == {study.name}, out
    assert {run.name: run.tags for run in runs.values() if run.job_type != "dpo"} == {"sft": [], "reward_model": []}
    for job, label in enumerate(("algorithm.beta=0.1", "algorithm.beta=0.3")):
        directory = Path(read_json(study / "jobs" / str(job) / "job.json")["run"])
        run = runs[(directory / "tracker.txt").read_text().split()[1]]
        assert run.tags[0] == run.config["level"] == label
        assert run.rows() == logged(directory)
        last = read_json(directory / "result.json")["policies"][-1]["metrics"]
        assert run.summary["final/gold"] == last["gold"]["mean"]
        assert run.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["wandb", "tensorboard"])
def test_after_a_kill_a_tracker_shows_each_step_once(tracker, tmp_path, monkeypatch, offline):
    pytest.importorskip(tracker)
    stage = planned("sft", *SFT, f"tracker={tracker}", f"outputs={tmp_path}")
    build_after_a_kill(stage, monkeypatch)
    rows = logged(stage.directory)
    if tracker == "wandb":
        (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
        assert wandb_log.read(path).rows() == rows
        return
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (directory,) = tmp_path.glob("tensorboard/rlhf_lab/sft/*")
    found = EventAccumulator(str(directory))
    found.Reload()
    expected = [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in rows if "loss" in row]
    assert [(event.step, event.value) for event in found.Scalars("loss")] == expected


@pytest.mark.slow
def test_trackio_goes_on_after_an_interruption(fresh, tmp_path, offline):
    """Two processes: the first is told to stop after its second step, the second takes the stage to its end."""
    pytest.importorskip("trackio")
    arguments = ["+recipe=sft", *SFT, "tracker=trackio"]
    stop = (
        "import os, signal, sys\n"
        "from rlhf_lab.algorithms.supervised.sft import SupervisedFineTuning as S\n"
        "collect = S.collect\n"
        "S.collect = lambda self, step: (step == 1 and os.kill(os.getpid(), signal.SIGTERM), collect(self, step))[1]\n"
        "from rlhf_lab.main import main\n"
        "main()\n"
    )
    process = fresh.start(*arguments, code=stop)
    process.communicate(timeout=120)
    assert process.returncode == 130
    out = fresh.run(*arguments)
    directory = fresh.stage(out, "sft")
    with sqlite3.connect(fresh.directory / "outputs" / "trackio" / "rlhf_lab.db") as database:
        found = database.execute("SELECT step, metrics FROM metrics ORDER BY id").fetchall()
        runs = database.execute("SELECT DISTINCT run_name FROM metrics").fetchall()
    assert runs == [((directory / "tracker.txt").read_text().split()[1],)]
    values = [(step, json.loads(text)) for step, text in found]
    assert [(step, row["loss"]) for step, row in values if "loss" in row] == [
        (row["step"], row["loss"]) for row in logged(directory) if "loss" in row
    ]
    assert [row["status"] for _, row in values if "status" in row] == ["interrupted", "completed"]


def test_a_tracker_that_fails_changes_nothing_but_a_note(tmp_path, monkeypatch):
    simple = planned("sft", *SFT, f"outputs={tmp_path / 'plain'}")
    expected = execute(simple)

    def build(settings, subject):
        raise ConnectionError("the service is gone")

    monkeypatch.setattr("rlhf_lab.trackers.tensorboard.build", build)
    tracked = planned("sft", *SFT, "tracker=tensorboard", f"outputs={tmp_path / 'tracked'}")
    found = execute(tracked)
    assert tracked.key == simple.key
    (note,) = set(found["notes"]) - set(expected["notes"])
    assert note.startswith("tracker=tensorboard failed and is switched off")
    same = set(expected) - {"notes", "seconds", "cpu_seconds", "peak_gib", "training"}
    assert {key: found[key] for key in same} == {key: expected[key] for key in same}
    rows = [[{**row, "time": None} for row in logged(stage.directory)] for stage in (simple, tracked)]
    assert rows[0] == rows[1]
