"""Builds stages that are not in the store: opens the directory, trains, evaluates, saves, writes the result last."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from rlhf_lab import __version__
from rlhf_lab.config import registry, root
from rlhf_lab.core import ranks, seal
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ArtifactError, LabError
from rlhf_lab.core.files import (
    explained,
    json_text,
    make_folder,
    read_json,
    read_rows,
    replacing,
    write_json,
    write_text,
)
from rlhf_lab.core.invocation import begin_building
from rlhf_lab.core.signals import handled
from rlhf_lab.models.build import save_model
from rlhf_lab.monitoring import silence
from rlhf_lab.stages.artifacts import CODE, Stage
from rlhf_lab.stages.code_digest import edited
from rlhf_lab.stages.launch import processes
from rlhf_lab.stages.manifest import manifest
from rlhf_lab.stages.reuse import check_source, forget_attempts, reusable
from rlhf_lab.trackers.tracker import Outcome
from rlhf_lab.trackers.tracking import track
from rlhf_lab.training import checkpoint, peak_memory
from rlhf_lab.training.loop import Algorithm, Interrupted, train
from rlhf_lab.training.run import Result, Run, is_there

AWAIT_SECONDS = 0.2


def ensure(stage: Stage, started: float, *, late_needs_elsewhere: bool = False) -> dict[str, Any]:
    """The result of a stage, built first if need be, upstream before it. Shared safely between processes.

    Args:
        started: when this run began (Unix seconds); with `artifacts.refresh`, older results are built again.
        late_needs_elsewhere: whether another process is building what only the stage's evaluation reads
            (`late_needs`); the stage then begins without and waits for it there.
    """
    fresh = ranks.on_main(lambda: reusable(stage, started))
    if fresh:
        return fresh
    late = stage.config.algorithm.late_needs if late_needs_elsewhere else ()
    for role, need in stage.needs.items():
        if role in late and isinstance(need, Stage):
            continue
        if isinstance(need, Stage):
            ensure(need, started)
        else:
            ranks.on_main(partial(check_source, Path(need.source)))
    with stoppable(), _locked(stage):
        return ranks.on_main(lambda: reusable(stage, started)) or _build(stage, partial(_await_need, stage, started))


def _await_need(stage: Stage, started: float, role: str) -> None:
    """Wait until the stage in a role is complete: here it is already, or another process is building it."""
    need = stage.needs.get(role)
    while isinstance(need, Stage) and not reusable(need, started):
        time.sleep(AWAIT_SECONDS)


@contextmanager
def _locked(stage: Stage) -> Iterator[None]:
    """Nobody else builds the stage meanwhile."""
    if not ranks.is_main():
        yield
        return
    locks = Path(stage.config.outputs) / "runs" / ".locks"
    lock = FileLock(locks / f"{stage.folder.name}.lock")
    make_folder(locks)
    with explained(locks):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            console.print(f"  {stage.recipe}: another process is building {stage.folder.name}; waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(stage: Stage, await_need: Callable[[str], None]) -> dict[str, Any]:
    """Build a stage here, or with processes that share the work: those a launcher started, or our own."""
    begin_building()
    checked, discard = stage.config, stage.config.artifacts.refresh
    if ranks.world() == 1:
        count = processes.wanted(checked)
        if count > 1:
            return processes.train_together(stage, count, discard=discard)
        return execute(stage, discard=discard, await_need=await_need)
    if checked.algorithm.shares_work and registry.kind_of("sharding", checked.sharding) != "none":
        return execute(stage, discard=discard)

    def by_itself() -> dict[str, Any]:
        with ranks.alone():
            return execute(stage, discard=discard)

    return ranks.on_main(by_itself)


@contextmanager
def stoppable() -> Iterator[None]:
    """A signal that arrives while nothing is trained (loading, evaluating, waiting) ends the stage, recorded."""

    def handle(number: int, _frame: Any) -> None:
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    with handled(handle):
        yield


def execute(stage: Stage, *, discard: bool = False, await_need: Callable[[str], None] = is_there) -> dict[str, Any]:
    """Build a stage, from its checkpoint when there is one. Returns what result.json holds.

    Args:
        discard: forget an earlier attempt.
        await_need: called with a role of `late_needs` before what stands in it is read.
    """
    folder, begin, makes_model = stage.folder, time.monotonic(), stage.config.algorithm.makes_model
    _require_planned_code(stage)
    state, problem = _take_up(folder, makes_model, discard)
    run = Run(folder, stage.config, stage.sources(), state, await_need=await_need)
    if problem:
        run.note(f"started over: {problem}")
    elif state:
        run.note(f"resumed at step {state['step']}")
    write_text(folder / "config.yaml", yaml.safe_dump(root.to_values(stage.config), sort_keys=False))
    result: dict[str, Any] = {"status": "running", "error": None, "seconds": 0.0, "policies": [], "metrics": {}}
    write_json(folder / "result.json", result)
    write_json(folder / CODE, {"version": __version__, "definitions": stage.code})
    peak_memory.reset_peak()
    try:
        kept = state["log_size"] if state else run.log_size()
        del state  # the loop takes the tensors, and nobody else keeps them
        run.tracking = track(stage.config, stage.recipe, folder, kept, run.note)
        write_json(folder / "manifest.json", manifest(stage, run.corpus))
        _note_data(run)
        run_steps = _engine(stage.config)
        algorithm = registry.build("algorithm", stage.config.algorithm, run)
        if makes_model:
            run_steps(algorithm, run, stage.recipe)
        found = algorithm.finish()
        if changed := edited(stage.code):
            run.note(
                f"{', '.join(changed)}: edited while this stage was built. It was computed by the code as it was when "
                "the stage began, unless a part was loaded later; artifacts.refresh=true builds it again"
            )
        _note_silence(run, found)
        if makes_model:
            with replacing(folder / "model") as part:
                save_model(algorithm.model, algorithm.encoder, part)
                algorithm.save_extra(part)
        result |= {
            "status": "completed",
            "policies": found.policies,
            "metrics": found.metrics,
            "primary": found.primary,
        }
    except BaseException as error:
        result |= _end(error)
        raise
    finally:
        cost = {"seconds": round(time.monotonic() - begin, 1), "peak_gib": peak_memory.peak_gib(), "training": run.cost}
        try:
            _record(folder, result | cost | {"notes": run.notes})
        except BaseException as error:
            result |= _end(error)
            raise
        finally:
            run.tracking.finish(result["status"], partial(_outcome, folder))
    if ranks.is_main():
        with suppress(OSError):  # on a disk that has become read-only it stays
            forget_attempts(folder)
    ranks.wait()
    return read_json(folder / "result.json")


def _require_planned_code(stage: Stage) -> None:
    """The key names the code as it was planned with; what is imported from here on must not be another one."""
    if changed := edited(stage.code):
        raise ArtifactError(
            f"{', '.join(changed)}: edited since this command began, so {stage.recipe} would be stored as the work of "
            "other code; give the same command again, what is complete is reused"
        )


def _take_up(folder: Path, makes_model: bool, discard: bool) -> tuple[dict[str, Any] | None, str | None]:
    """What `checkpoint.load` finds of an earlier attempt, in a folder that holds nothing else of it."""
    make_folder(folder)
    state, problem = (None, None) if discard else checkpoint.load(folder)
    if ranks.is_main():
        seal.remove(folder)
        if state is None and (makes_model or discard):
            for path in folder.iterdir():  # without a model, the policies evaluated so far are the checkpoint
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    ranks.wait()
    return state, problem


def _outcome(folder: Path) -> Outcome:
    """What a tracker shows of a stage that has ended. Only then are tables (pandas) needed."""
    from rlhf_lab.results.outcome import outcome

    return outcome(folder)


def _engine(checked: root.Config) -> Callable[[Algorithm, Run, str], None]:
    """What takes the steps: the lab's own loop, or TRL's trainers. Raises MissingDependency where they need more."""
    if checked.engine == "native":
        return train
    from rlhf_lab.algorithms.trl.engine import load

    return load(checked)


def _note_data(run: Run) -> None:
    """Say how many rows were read, kept and dropped, with every reason."""
    reports = run.corpus.report
    for split in ["all"] if "all" in reports else list(reports):
        found = reports[split]
        reasons = ", ".join(f"{count} {reason}" for reason, count in found.dropped.items()) or "none"
        longer = found.statistics.get("longer wins")
        baseline = "" if longer is None else f'; "longer wins" is right {longer:.1%} of the time'
        run.note(f"data {split}: {found.rows} rows read, {found.kept} pairs kept; dropped: {reasons}{baseline}")


def _note_silence(run: Run, found: Result) -> None:
    """Say when a stage ended well without doing anything: no signal, nothing learned, a policy that did not move."""
    settings = type(run.config.algorithm)
    rows, _ = read_rows(run.folder / "metrics.jsonl")  # up to a damaged line: a remark is no reason to fail
    for remark in silence.remarks(settings, rows, found.policies, found.metrics):
        run.note(remark)


def _record(folder: Path, result: dict[str, Any]) -> None:
    """Write result.json, after the seal of a completed stage."""
    if result["status"] == "completed" and ranks.is_main():
        seal.write(folder, json_text(result))
    write_json(folder / "result.json", result)


def _end(error: BaseException) -> dict[str, str]:
    """How a stage that an error ended stands in result.json."""
    interrupted = isinstance(error, (Interrupted, KeyboardInterrupt, SystemExit))
    words = str(error) if isinstance(error, (LabError, Interrupted)) else f"{type(error).__name__}: {error}"
    return {"status": "interrupted" if interrupted else "failed", "error": words}
