"""Trackers get every row once, hold no secrets, and never take a run with them."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb_log
import yaml
from support import checked, planned

from rlhf_lab.cli.track import run as track_runs
from rlhf_lab.config import registry, root
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import append_jsonl, write_json
from rlhf_lab.core.redaction import redacted
from rlhf_lab.stages.reuse import track_reused
from rlhf_lab.trackers.settings import Files, Tensorboard, Wandb, marked
from rlhf_lab.trackers.tracker import StageOutcome, TrackedStage, TrackedTable
from rlhf_lab.trackers.tracking import IDENTITY, TRACKED, Tracking, _make_subject, track, track_stored
from rlhf_lab.trackers.trackio import TrackioTracker

OUTCOME = StageOutcome(
    {"gold": 1.25},
    {
        "policies": TrackedTable(["policy", "metric", "mean", "low"], [["SFT", "gold", 1.25, None]]),
        "samples": TrackedTable(["prompt", "SFT"], [["a | b", "two\nlines"]]),
    },
)


def subject(directory: Path, **changes) -> TrackedStage:
    config = {"level": "algorithm.beta=0.1", "algorithm": {"beta": 0.1}}
    made = TrackedStage(
        "dpo-0a1b-20260101-000000",
        "dpo beta",
        "dpo",
        "buffers",
        ["algorithm.beta=0.1"],
        config,
        "Why?",
        directory,
        False,
    )
    return dataclasses.replace(made, **changes)


class Recorder:
    """A tracker that records its calls, and fails at the configured ones."""

    def __init__(self, continues: bool = False, fails: str = ""):
        self.continues, self.fails = continues, fails
        self.rows: list[dict] = []
        self.finished: list[str] = []

    def log(self, row):
        if self.fails == "log":
            raise OSError("no space left\nin the whole house")
        self.rows.append(dict(row))

    def finish(self, status, outcome):
        if self.fails == "finish":
            raise ConnectionError("gone")
        self.finished.append(status)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    wandb_log.hide_login(monkeypatch, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name", ["apiKey", "api-key", "HFToken", "hf_tokens", "Authorization", "basic.auth", "passwords"]
)
def test_a_secret_is_known_by_the_last_word_of_its_name(name):
    assert redacted({name: "s3cret"}) == {name: "…"}
    assert redacted({name: ["s3cret"]}) == {name: "…"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://h/x?a=1&token=s3cret&b=2#c", "https://h/x?a=1&token=…&b=2#c"),
        ("https://h/x?access_token=s3cret", "https://h/x?access_token=…"),
        ("postgres://me:s3/cr@et@host/db", "postgres://…@host/db"),
        ("https://s3cret@host/x", "https://…@host/x"),
        ("https://host/x@v1?tokens=12", "https://host/x@v1?tokens=…"),
        ("https://host:8000/v1 of a@b", "https://host:8000/v1 of a@b"),
    ],
)
def test_a_secret_in_an_address_is_not_passed_on(text, shown):
    assert redacted({"url": text, "urls": [text]}) == {"url": shown, "urls": [shown]}


def test_a_swept_secret_is_in_no_label(tmp_path):
    swept = {"reward.api_key": "s3cret", "reward.url": "https://h/?token=s3cret", "seed": 3}
    settings = marked(Tensorboard(tags=["https://me:s3cret@h"]), swept=swept)
    found = _make_subject(root.to_values(checked("sft")), settings, "sft", "id", False)
    assert "s3cret" not in repr(found)
    assert found.name == "sft reward.api_key=… reward.url=https://h/?token=… seed=3"
    assert found.config["level"] == "reward.api_key=…"


@pytest.mark.parametrize(("continues", "seen"), [(True, [4, 5]), (False, [1, 2, 3, 4, 5])])
def test_after_a_kill_every_row_is_there_once(continues, seen):
    """Rows 1 and 2 were kept, row 3 was cut off and is logged again: a tracker that resumes has 1 to 3 already."""
    recorder, tracking = Recorder(continues), Tracking("wandb")
    tracking.start(lambda: recorder, [{"step": 1}, {"step": 2}], 1)
    for step in (3, 4, 5):
        tracking.log({"step": step})
    assert [row["step"] for row in recorder.rows] == seen


@pytest.mark.parametrize("fails", ["start", "log", "finish"])
def test_a_tracker_that_fails_is_noted_once_and_left_alone(fails, tmp_path, capsys):
    notes: list[str] = []
    identity = tmp_path / IDENTITY
    identity.write_text("wandb x\n")
    recorder, tracking = Recorder(fails=fails), Tracking("wandb", identity, notes.append)

    def build():
        if fails == "start":
            raise RuntimeError("boom")
        return recorder

    tracking.start(build, [], 0)
    tracking.log({"step": 1})
    tracking.log({"step": 2})
    tracking.finish("completed", lambda: OUTCOME)
    stated = notes if fails != "finish" else [capsys.readouterr().out]
    assert len(stated) == 1
    assert "tracker=wandb failed and is switched off" in stated[0].replace("\n", " ")
    assert "house" not in stated[0]
    assert not identity.exists()
    assert recorder.finished == []


def test_an_attempt_that_resumes_has_the_same_id_and_one_that_starts_over_another(monkeypatch, tmp_path):
    subjects: list[TrackedStage] = []
    monkeypatch.setattr(
        "rlhf_lab.trackers.tensorboard.build", lambda settings, found: subjects.append(found) or Recorder()
    )
    monkeypatch.setattr("time.strftime", lambda _: f"2026010{len(subjects)}-000000")
    job = checked("sft", "tracker=tensorboard", "tracker.tags=[mine]", f"outputs={tmp_path}")
    directory = tmp_path / "sft-0a1b"
    directory.mkdir()
    for _ in range(2):
        track(job, "sft", directory, 0, print)
    (directory / IDENTITY).unlink()
    track(job, "sft", directory, 0, print)
    assert [found.id for found in subjects] == ["sft-0a1b-20260100-000000"] * 2 + ["sft-0a1b-20260102-000000"]
    assert [found.resumed for found in subjects] == [False, True, False]
    assert subjects[0].tags == ["mine"]
    assert subjects[0].group == subjects[0].config["level"] == "sft"
    assert "tracker" not in subjects[0].config


def test_rows_behind_the_checkpoint_are_counted(monkeypatch, tmp_path):
    recorder = Recorder(continues=True)
    monkeypatch.setattr("rlhf_lab.trackers.tensorboard.build", lambda settings, found: recorder)
    job = checked("sft", "tracker=tensorboard", f"outputs={tmp_path}")
    size = append_jsonl(tmp_path / "metrics.jsonl", [{"step": 1}])
    append_jsonl(tmp_path / "metrics.jsonl", [{"step": 2}])
    tracking = track(job, "sft", tmp_path, size, print)
    for step in (2, 3):
        tracking.log({"step": step})
    assert recorder.rows == [{"step": 3}]


@pytest.fixture
def recorders(monkeypatch) -> list[tuple[TrackedStage, Recorder]]:
    """Every run that `tracker=tensorboard` starts."""
    started: list[tuple[TrackedStage, Recorder]] = []

    def start(settings, found):
        started.append((found, Recorder()))
        return started[-1][1]

    monkeypatch.setattr("rlhf_lab.trackers.tensorboard.build", start)
    return started


def test_a_stored_stage_is_tracked_once_for_each_group(recorders, tmp_path):
    job = checked("sft", "tracker=tensorboard", f"outputs={tmp_path}")
    append_jsonl(tmp_path / "metrics.jsonl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}])

    def again(**changes) -> bool:
        tracker = marked(job.tracker, **changes)
        return track_stored(root.to_values(job), tracker, "sft", tmp_path, "completed", lambda: OUTCOME)

    changed = {"group": "lambdas", "swept": {"a": 1}}
    assert [again(), again(), again(**changed), again(**changed)] == [True, False, True, False]
    assert [found.group for found, _ in recorders] == ["sft", "lambdas"]
    assert recorders[0][0].id != recorders[1][0].id
    assert recorders[1][0].name == "sft a=1"
    for _, recorder in recorders:
        assert recorder.rows == [{"step": 1, "loss": 2.0}, {"step": 2}]
        assert recorder.finished == ["completed"]


def test_trackio_gets_no_name_that_it_reserves():
    logged = []
    tracker = TrackioTracker(None, SimpleNamespace(log=lambda values, step: logged.append((step, values))), False)
    tracker.log({"step": 3, "time": 1.5, "loss": 2.0})
    tracker.log({"step": 4, "loss": 1.0})
    assert logged == [(3, {"loss": 2.0, "seconds": 1.5}), (4, {"loss": 1.0})]


def test_an_incomplete_stage_is_tracked_again_once_it_has_gone_on(recorders, tmp_path):
    job = checked("sft", "tracker=tensorboard", f"outputs={tmp_path}")
    seen = []
    for step, status in ((1, "interrupted"), (1, "interrupted"), (2, "interrupted"), (2, "completed")):
        (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
        append_jsonl(tmp_path / "metrics.jsonl", [{"step": each} for each in range(step)])
        seen.append(track_stored(root.to_values(job), job.tracker, "sft", tmp_path, status, lambda: OUTCOME))
    assert seen == [True, False, True, True]
    assert len({found.id for found, _ in recorders}) == 3
    assert [len(recorder.rows) for _, recorder in recorders] == [1, 2, 2]


def test_a_stage_that_was_tracked_while_it_was_built_is_not_tracked_again(recorders, tmp_path):
    job = checked("sft", "tracker=tensorboard", f"outputs={tmp_path}")
    track(job, "sft", tmp_path, 0, print).finish("completed", lambda: OUTCOME)
    assert not track_stored(root.to_values(job), job.tracker, "sft", tmp_path, "completed", lambda: OUTCOME)
    assert len(recorders) == 1
    (tmp_path / TRACKED).unlink()
    track(job, "sft", tmp_path, 0, print).finish("interrupted", lambda: OUTCOME)
    assert not (tmp_path / TRACKED).exists()


def test_a_reused_stage_reaches_the_tracker(recorders, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    for tracker in ("files", "tensorboard"):
        stage = planned("sft", f"tracker={tracker}", f"outputs={tmp_path}")
        stage.__dict__["directory"] = tmp_path  # a run directory without results
        track_reused(stage)
    assert [found.recipe for found, _ in recorders] == ["sft"]


def test_the_command_tracks_runs_and_the_jobs_of_a_study(recorders, tmp_path, capsys):
    values = yaml.safe_dump(root.to_values(checked("sft", f"outputs={tmp_path}")))
    for name in ("a", "b"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        write_json(run / "manifest.json", {"recipe": "sft"})
        write_json(run / "result.json", {"status": "completed", "policies": [], "metrics": {}})
        (run / "config.yaml").write_text(values)
        (run / "metrics.jsonl").write_text("")
    study = tmp_path / "studies" / "lambdas"
    for index, record in enumerate(
        [{"status": "completed", "run": str(tmp_path / "runs" / "b")}, {"status": "failed"}]
    ):
        (study / "jobs" / str(index)).mkdir(parents=True)
        write_json(study / "jobs" / str(index) / "job.json", record)
    jobs = [{"index": index, "overrides": {"seed": 0, "algorithm.lr": index}} for index in range(2)]
    write_json(study / "study.json", {"compare": "algorithm.lr", "jobs": jobs})
    track_runs([str(tmp_path / "runs" / "a"), str(study), "tracker=tensorboard", "tracker.tags=[later]"])
    assert [(found.group, found.name) for found, _ in recorders] == [
        ("sft", "sft"),
        ("lambdas", "sft algorithm.lr=0 seed=0"),
    ]
    assert all("later" in found.tags for found, _ in recorders)
    assert capsys.readouterr().out.count("tracked: ") == 2
    (tmp_path / "runs" / "a" / "config.yaml").unlink()
    track_runs([str(tmp_path / "runs" / "a"), str(study), "tracker=tensorboard", "tracker.tags=[again]"])
    (first, second) = capsys.readouterr().out.splitlines()
    assert first.startswith("  skipped: ") and second.startswith("  skipped, because the tracker has it")
    for wrong in (["tracker=tensorboard"], [str(study)], [str(study), "tracker=tensorboard", "seed=1"]):
        with pytest.raises(ConfigError, match="track needs runs or studies and a tracker"):
            track_runs(wrong)


def test_settings():
    settings = marked(Wandb(tags=["mine"]), group="buffers", swept={"algorithm.beta": 0.1, "seed": 3})
    assert (settings.group, settings.swept) == ("buffers", {"algorithm.beta": 0.1, "seed": 3})
    assert marked(Wandb(group="written"), group="buffers").group == "written"
    assert marked(Files(), group="buffers") == Files()
    with pytest.raises(ConfigError, match=r"project=a/b contains /"):
        Tensorboard(project="a/b")
    with pytest.raises(ConfigError, match="project is not set"):
        Wandb(project="")


def test_tensorboard_reads_back(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for last in (20, 30):  # the second attempt resumes: it writes everything again
        tracker = registry.build("tracker", Tensorboard(), subject(tmp_path))
        assert not tracker.continues
        for step in range(10, last + 1, 10):
            tracker.log({"step": step, "loss": 1 / step})
    tracker.finish("completed", OUTCOME)
    (directory,) = (tmp_path / "tensorboard" / "rlhf_lab" / "buffers").iterdir()
    found = EventAccumulator(str(directory))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [
        (step, pytest.approx(1 / step, rel=1e-6)) for step in (10, 20, 30)
    ]
    assert found.Scalars("final/gold")[0].value == 1.25
    text = found.Tensors("samples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text == "| prompt | SFT |\n| --- | --- |\n| a \\| b | two<br>lines |"


@pytest.mark.slow
def test_wandb_offline_reads_back(offline):
    pytest.importorskip("wandb")
    long = "algorithm.weights=" + "x" * 80
    for last in (20, 30):  # the second attempt resumes: one file is left, with everything in it
        tracker = registry.build("tracker", Wandb(), subject(offline, tags=["algorithm.beta=0.1", long]))
        assert not tracker.continues
        for step in range(10, last + 1, 10):
            tracker.log({"step": step, "loss": 1 / step})
        tracker.finish("interrupted" if last == 20 else "completed", OUTCOME)
        time.sleep(1.1)  # W&B names a directory by the second
    (path,) = offline.glob("wandb/offline-run-*/*.wandb")
    run = wandb_log.read(path)
    assert run.rows() == [{"step": step, "loss": 1 / step} for step in (10, 20, 30)]
    assert (run.id, run.group, run.job_type, run.project) == ("dpo-0a1b-20260101-000000", "buffers", "dpo", "rlhf_lab")
    assert run.tags == ["algorithm.beta=0.1", long[:64]]
    assert run.config["level"] == "algorithm.beta=0.1"
    assert (run.summary["status"], run.summary["final/gold"], run.exit_code) == ("completed", 1.25, 0)
    (table,) = path.parent.glob("files/media/table/samples_*.table.json")
    assert '"two\\nlines"' in table.read_text()


def test_wandb_that_is_wanted_online_without_a_login_is_switched_off(offline):
    pytest.importorskip("wandb")
    notes: list[str] = []
    tracking = Tracking("wandb", None, notes.append)
    tracking.start(lambda: registry.build("tracker", Wandb(mode="online"), subject(offline)), [], 0)
    tracking.log({"step": 1})
    assert len(notes) == 1


def test_a_disabled_wandb_leaves_no_record_of_a_tracked_stage(monkeypatch, offline, capsys):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    job = checked("sft", "tracker=wandb", f"outputs={offline}")
    assert not track_stored(root.to_values(job), job.tracker, "sft", offline, "completed", lambda: OUTCOME)
    assert not (offline / TRACKED).exists()
    assert "WANDB_MODE=disabled" in capsys.readouterr().out
