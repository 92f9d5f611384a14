"""`track`: send stored runs to a tracker after they were built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_lab.config import check, compose
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json
from rlhf_lab.core.yaml_files import read_mapping
from rlhf_lab.results.folders import find_run
from rlhf_lab.trackers.settings import Shared, marked

USAGE = (
    "track needs runs or studies and a tracker: track outputs/runs/RUN … tracker=wandb|trackio|tensorboard "
    "[tracker.project=NAME]"
)


def run(arguments: Sequence[str]) -> None:
    """Run `track RUN … tracker=NAME …`. Raise ConfigError if the command is wrong."""
    # The name of a directory may contain an equals sign.
    folders = [Path(item) for item in arguments if "=" not in item or Path(item).is_dir()]
    settings = _tracker_settings([item for item in arguments if "=" in item and not Path(item).is_dir()])
    if not folders or not isinstance(settings, Shared):
        raise ConfigError(USAGE)
    runs = [found for directory in folders for found in _runs(directory)]
    # Imported late, because these modules import torch and pandas, which a wrong command does not need.
    from rlhf_lab.results.outcome import outcome
    from rlhf_lab.trackers.tracking import track_stored

    for directory, group, swept in runs:
        # A damaged or missing file must not keep the other runs from being tracked.
        manifest = read_json(directory / "manifest.json") or {}
        result = read_json(directory / "result.json") or {}
        try:
            values = read_mapping(directory / "config.yaml", "the settings of a run")
        except ConfigError as error:
            console.print(f"  skipped: {error}")
            continue
        tracker = marked(settings, group=group, swept=swept)
        recipe, status = str(manifest.get("recipe") or directory.name), str(result.get("status"))
        tracked = track_stored(values, tracker, recipe, directory, status, partial(outcome, directory))
        outcome_text = "tracked" if tracked else "skipped, because the tracker has it or failed"
        console.print(f"  {outcome_text}: {directory}")


def _tracker_settings(words: Sequence[str]) -> object:
    """Return the settings of the chosen tracker. Raise ConfigError for arguments about anything else."""
    other = [word for word in words if not word.startswith(("tracker=", "tracker."))]
    if other:
        raise ConfigError([f"{word} is not a setting of a tracker; {USAGE}" for word in other])
    problems: list[str] = []
    settings: object = check.build_group("tracker", compose.compose(words)["tracker"], problems)
    if problems:
        raise ConfigError(problems)
    return settings


def _runs(directory: Path) -> Iterator[tuple[Path, str, Mapping[str, Any]]]:
    """Yield (run directory, group, swept settings) of a run, or of every completed job of a study."""
    study = read_json(directory / "study.json")
    if study is None:
        yield find_run(directory), "", {}
        return
    for job in study["jobs"]:
        path = directory / "jobs" / str(job["index"])
        record = read_json(path / "job.json") or {}
        if record.get("status") == "completed":
            # The first swept setting becomes the `level` of the tracked run, so the compared one comes first.
            compared_first = sorted(job["overrides"], key=lambda key: key != study["compare"])
            yield find_run(path), directory.name, {key: job["overrides"][key] for key in compared_first}
