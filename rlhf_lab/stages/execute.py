"""Builds stages that are not in the store: opens the directory, trains, evaluates, saves, writes the result last."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
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
from rlhf_lab.core.redaction import redacted
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
from rlhf_lab.training.loop import Algorithm, Interrupted, Paused, train
from rlhf_lab.training.run import Result, Run, is_there

NEUTRAL = "rlhf_lab.memory.neutral"
"""The module that makes a stage fit its device. Imported by name: plans of memory lie above stages."""
AWAIT_SECONDS = 0.2
"""Between two looks at whether another process has completed a stage."""


def ensure(stage: Stage, started: float, *, late_needs_elsewhere: bool = False) -> dict[str, Any]:
    """The result of a stage, from the store or built now, after the stages it starts from. Safe between processes.

    Args:
        started: when this run began (Unix seconds); with `artifacts.refresh`, older results are built again.
        late_needs_elsewhere: whether another process is building what only the stage's evaluation reads
            (`late_needs`); the stage then begins without it, and waits before its evaluation.
    """
    stored = ranks.on_main(lambda: reusable(stage, started))
    if stored:
        return stored
    late = stage.config.algorithm.late_needs if late_needs_elsewhere else ()
    for role, need in stage.needs.items():
        if role in late and isinstance(need, Stage):
            continue
        if isinstance(need, Stage):
            ensure(need, started)
        else:
            ranks.on_main(partial(check_source, Path(need.source)))
    with stoppable(), _stage_lock(stage):
        # Look again: another process may have built the stage while this one waited for the lock.
        stored = ranks.on_main(lambda: reusable(stage, started))
        return stored or _build(stage, partial(_await_need, stage, started))


def _await_need(stage: Stage, started: float, role: str) -> None:
    """Wait until the stage in a role is complete. Returns at once unless another process is building it."""
    need = stage.needs.get(role)
    while isinstance(need, Stage) and not reusable(need, started):
        time.sleep(AWAIT_SECONDS)


@contextmanager
def _stage_lock(stage: Stage) -> Iterator[None]:
    """Hold the stage's file lock, so that no other process builds it. One rank holds it for all."""
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
    checked = stage.config
    discard = checked.artifacts.refresh
    if ranks.world() == 1:
        count = processes.wanted(checked)
        if count > 1:
            return processes.train_together(stage, count, discard=discard)
        return execute(stage, discard=discard, await_need=await_need)
    if checked.algorithm.shares_work and registry.kind_of("sharding", checked.sharding) != "none":
        return execute(stage, discard=discard)

    def execute_alone() -> dict[str, Any]:
        with ranks.alone():
            return execute(stage, discard=discard)

    return ranks.on_main(execute_alone)


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn a signal into Interrupted while nothing trains (loading, evaluating, waiting), so that it is recorded.

    The training loop has a handler of its own, which saves a checkpoint first.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    with handled(handle):
        yield


def execute(
    stage: Stage,
    *,
    discard: bool = False,
    await_need: Callable[[str], None] = is_there,
    micro_batch_tokens: int | None = None,
) -> dict[str, Any]:
    """Build a stage, from its checkpoint when there is one. Returns what result.json holds.

    Args:
        discard: forget an earlier attempt.
        await_need: called with a role of `late_needs` before what stands in it is read.
        micro_batch_tokens: in place of those of the config, with which a device ran out of memory.
    """
    begin = time.monotonic()
    folder = stage.folder
    makes_model = stage.config.algorithm.makes_model
    _require_planned_code(stage)
    if not discard:
        _require_consent(stage)
    state, problem = _resume_or_clear(folder, makes_model, discard)
    config, fitted_with = import_module(NEUTRAL).fitted(stage)
    if micro_batch_tokens:
        config = config.replace(algorithm=replace(config.algorithm, micro_batch_tokens=micro_batch_tokens))
    run = Run(folder, config, stage.sources(), state, await_need=await_need)
    if fitted_with:
        run.note(f"to fit the device: {fitted_with}")
    if micro_batch_tokens:
        run.note(f"out of memory: micro-batches of {micro_batch_tokens} tokens from here on")
    if problem:
        run.note(f"started over: {problem}")
    elif state:
        run.note(f"resumed at step {state['step']}")
    write_text(folder / "config.yaml", yaml.safe_dump(redacted(root.to_values(stage.config)), sort_keys=False))
    result: dict[str, Any] = {"status": "running", "error": None, "seconds": 0.0, "policies": [], "metrics": {}}
    write_json(folder / "result.json", result)
    write_json(folder / CODE, {"version": __version__, "definitions": stage.code})
    peak_memory.reset_peak()
    try:
        # A stage that resumes without a checkpoint logs everything again, also what it need not compute again.
        log_size = state["log_size"] if state else 0
        del state  # `run` holds it until the loop takes it; a second reference would keep the tensors in memory
        run.tracking = track(stage.config, stage.recipe, folder, log_size, run.note)
        run.rewind_log(log_size)
        write_json(folder / "manifest.json", manifest(stage, run.corpus))
        _note_data(run)
        _note_trained_weights(run)
        train_steps = _training_engine(stage.config)
        algorithm = registry.build("algorithm", config.algorithm, run)
        if makes_model:
            train_steps(algorithm, run, stage.recipe)
        outcome = algorithm.finish()
        if changed := edited(stage.code):
            run.note(
                f"{', '.join(changed)}: edited while this stage was built. It was computed by the code as it was when "
                "the stage began, unless a part was loaded later; artifacts.refresh=true builds it again"
            )
        _note_silence(run, outcome)
        if makes_model:
            with replacing(folder / "model") as model_folder:
                save_model(algorithm.model, algorithm.encoder, model_folder)
                algorithm.save_extra(model_folder)
        result |= {
            "status": "completed",
            "policies": outcome.policies,
            "metrics": outcome.metrics,
            "primary": outcome.primary,
        }
    except BaseException as error:
        result |= _error_entry(error)
        raise
    finally:
        cost = {"seconds": round(time.monotonic() - begin, 1), "peak_gib": peak_memory.peak_gib(), "training": run.cost}
        try:
            _record(folder, result | cost | {"notes": run.notes})
        except BaseException as error:  # a full disk: the trackers are told, too, that the stage failed
            result |= _error_entry(error)
            raise
        finally:
            run.tracking.finish(result["status"], partial(_tracker_outcome, folder))
    if ranks.is_main():
        with suppress(OSError):  # on a disk that has become read-only the checkpoints stay
            forget_attempts(folder)
    ranks.wait()
    return read_json(folder / "result.json")


def _require_planned_code(stage: Stage) -> None:
    """Raises ArtifactError where code was edited after planning: the stage's key would name other code than runs."""
    if changed := edited(stage.code):
        raise ArtifactError(
            f"{', '.join(changed)}: edited since this command began, so {stage.recipe} would be stored as the work of "
            "other code; give the same command again, what is complete is reused"
        )


def _require_consent(stage: Stage) -> None:
    """Raises Paused where the monitor paused the stage and the command does not say that it goes on."""
    result = read_json(stage.folder / "result.json") or {}
    if result.get("status") == "paused" and not stage.config.alerts.continue_paused:
        raise Paused(str(result.get("error")))


def _resume_or_clear(folder: Path, makes_model: bool, discard: bool) -> tuple[dict[str, Any] | None, str | None]:
    """(checkpoint, why there is none) of an earlier attempt. Without a checkpoint its files are removed."""
    make_folder(folder)
    state, problem = (None, None) if discard else checkpoint.load(folder)
    if ranks.is_main():
        seal.remove(folder)
        # A stage that makes no model has no checkpoint: the policies evaluated so far are kept and reused.
        if state is None and (makes_model or discard):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    ranks.wait()
    return state, problem


def _tracker_outcome(folder: Path) -> Outcome:
    """What a tracker shows of a stage that has ended. Imported here: it needs pandas, which nothing before does."""
    from rlhf_lab.results.outcome import outcome

    return outcome(folder)


def _training_engine(checked: root.Config) -> Callable[[Algorithm, Run, str], None]:
    """The function that trains: the lab's own loop, or TRL's trainers. Raises MissingDependency without TRL."""
    if checked.engine == "native":
        return train
    from rlhf_lab.algorithms.trl.engine import load

    return load(checked)


def _note_data(run: Run) -> None:
    """Note how many rows were read, kept and dropped, with every reason."""
    reports = run.corpus.report
    for split in ["all"] if "all" in reports else list(reports):
        report = reports[split]
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.dropped.items()) or "none"
        longer_wins = report.statistics.get("longer wins")
        baseline = "" if longer_wins is None else f'; "longer wins" is right {longer_wins:.1%} of the time'
        run.note(f"data {split}: {report.rows} rows read, {report.kept} pairs kept; dropped: {reasons}{baseline}")


def _note_trained_weights(run: Run) -> None:
    """Note that `model.weights` is not about what is trained, where all parameters are."""
    model = run.config.model
    stored = model.stored("policy")
    if run.config.algorithm.makes_model and stored != "float32" and not model.lora.rank:
        run.note(
            f"model.weights={stored} stores what is not trained; trained weights are float32, which under "
            "runtime.dtype=bfloat16 takes as many bytes as bfloat16 weights with a float32 master"
        )


def _note_silence(run: Run, outcome: Result) -> None:
    """Note when a stage ended well without doing anything: no signal, nothing learned, a policy that did not move."""
    settings = type(run.config.algorithm)
    # Rows up to a damaged line, whose problem is ignored: a remark is no reason to fail a finished stage.
    rows, _ = read_rows(run.folder / "metrics.jsonl")
    for remark in silence.remarks(settings, rows, outcome.policies, outcome.metrics):
        run.note(remark)


def _record(folder: Path, result: dict[str, Any]) -> None:
    """Write result.json. The seal of a completed stage comes first, so that no complete stage is without one."""
    if result["status"] == "completed" and ranks.is_main():
        result[seal.SEALED] = True
        seal.write(folder, json_text(result))
    write_json(folder / "result.json", result)


def _error_entry(error: BaseException) -> dict[str, str]:
    """Status and message in result.json of a stage that an error ended."""
    if isinstance(error, Paused):
        return {"status": "paused", "error": str(error)}
    interrupted = isinstance(error, (Interrupted, KeyboardInterrupt, SystemExit))
    message = str(error) if isinstance(error, (LabError, Interrupted)) else f"{type(error).__name__}: {error}"
    return {"status": "interrupted" if interrupted else "failed", "error": redacted(message)}
