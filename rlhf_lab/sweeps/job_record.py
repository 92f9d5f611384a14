"""One job of a sweep or a search: what its trackers show, the file with its output, and its job.json."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from rlhf_lab.config import root
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.files import write_json
from rlhf_lab.core.redaction import redacted
from rlhf_lab.stages import artifacts
from rlhf_lab.trackers.settings import marked

OUTPUT = "output.txt"
"""File of a job's directory with what the job prints."""


def plan_tracked(config: root.Config, name: str, *, group: str, swept: Mapping[str, Any]) -> artifacts.Stage:
    """Return the last stage of a job.

    Trackers of all its stages get the group; that of the last one also gets the swept values.
    """
    in_group = config.replace(tracker=marked(config.tracker, group=group))
    stage = artifacts.plan(in_group, name)
    last_config = stage.config.replace(tracker=marked(stage.config.tracker, swept=swept))
    return dataclasses.replace(stage, config=last_config)


def record_job(directory: Path, work: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Do the work of a job, which updates its record, and write job.json, even if it fails. Return the record."""
    record: dict[str, Any] = {"status": "interrupted", "run": None, "error": None}
    started = time.monotonic()
    try:
        work(record)
    except LabError as error:
        record |= {"status": "failed", "error": redacted(str(error))}
    except Exception as error:  # a bug in a job must not prevent the sweep's table
        record |= {"status": "failed", "error": redacted(f"{type(error).__name__}: {error}")}
        (directory / "error.txt").write_text(redacted(traceback.format_exc()))
    except KeyboardInterrupt:  # outside training, which returns an interruption as a result
        record["error"] = "stopped"
    finally:
        record["seconds"] = round(time.monotonic() - started, 1)
        write_json(directory / "job.json", record)
    return record


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Write what a job prints to a file, so that tables of parallel jobs do not hide the lines of the study."""
    with path.open("w", encoding="utf-8", buffering=1) as file, console.diverted(file), redirect_stdout(file):
        yield
