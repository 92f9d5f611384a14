"""Build of stages that are not in the store: open the directory, train, evaluate, save, and write the result last."""

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
from rlhf_lab.core import checksums as seal
from rlhf_lab.core import ranks
from rlhf_lab.core.console import LOG_FILE, console
from rlhf_lab.core.errors import ArtifactError, LabError
from rlhf_lab.core.files import (
    explained,
    finite_values,
    json_text,
    make_dir,
    read_json,
    read_object,
    read_rows,
    replacing,
    write_json,
    write_text,
)
from rlhf_lab.core.invocation import start_building
from rlhf_lab.core.redaction import redacted
from rlhf_lab.core.signals import handled
from rlhf_lab.models.build import save_model
from rlhf_lab.monitoring import silence
from rlhf_lab.stages.artifacts import CODE, Stage
from rlhf_lab.stages.code_digest import edited
from rlhf_lab.stages.launch import processes
from rlhf_lab.stages.manifest import manifest
from rlhf_lab.stages.reuse import check_source, forget_attempts, reusable, track_reused
from rlhf_lab.trackers.tracker import StageOutcome
from rlhf_lab.trackers.tracking import track
from rlhf_lab.training import checkpoint
from rlhf_lab.training.loop import Algorithm, Interrupted, Paused, train
from rlhf_lab.training.peak_memory import peak_gib, reset_peak
from rlhf_lab.training.run import Result, Run, is_there

NEUTRAL = "rlhf_lab.memory.neutral"
"""Module that fits a stage to its device. Imported by name, because memory plans belong to a layer above stages."""
AWAIT_SECONDS = 0.2
"""Seconds between two checks whether another process has completed a stage."""


def ensure(
    stage: Stage, started: float, *, late_needs_elsewhere: bool = False, last: Stage | None = None
) -> dict[str, Any]:
    """Return the result of a stage, from the store or built now after its upstream stages. Safe between processes.

    Args:
        started: start time of this run (Unix seconds); with `artifacts.refresh`, older results are built again.
        late_needs_elsewhere: True if another process builds what only the stage's evaluation reads (`late_needs`). The
            stage then starts without it and waits before its evaluation.
        last: last stage of the run, among whose stages this one is counted for the console; None for the stage itself.
    """
    stored = ranks.on_main(lambda: reusable(stage, started))
    if stored:
        ranks.on_main(lambda: track_reused(stage))
        return stored
    late = stage.config.algorithm.inputs.late if late_needs_elsewhere else ()
    for role, need in stage.needs.items():
        if role in late and isinstance(need, Stage):
            continue
        if isinstance(need, Stage):
            ensure(need, started, last=last or stage)
        else:
            ranks.on_main(partial(check_source, Path(need.source)))
    with stoppable(), _stage_lock(stage):
        # Check again: another process may have built the stage while this one waited for the lock.
        stored = ranks.on_main(lambda: reusable(stage, started))
        if stored:
            return stored
        if not late_needs_elsewhere:  # otherwise the process that started this one has printed the line
            console.inform(f"  {position(stage, last or stage)}")
        return _build(stage, partial(_await_need, stage, started))


def position(stage: Stage, last: Stage) -> str:
    """Return "stage 2 of 5: dpo": the position of a stage in the plan of a run that ends with the stage `last`."""
    order = [upstream.directory for upstream in last.upstream()]
    return f"stage {order.index(stage.directory) + 1} of {len(order)}: {stage.recipe}"


def _await_need(stage: Stage, started: float, role: str) -> None:
    """Wait until the stage in `needs.<role>` is complete. Return at once unless another process builds it."""
    need = stage.needs.get(role)
    while isinstance(need, Stage) and not reusable(need, started):
        time.sleep(AWAIT_SECONDS)


@contextmanager
def _stage_lock(stage: Stage) -> Iterator[None]:
    """Hold the stage's file lock so that no other process builds it. The main rank holds it for all ranks."""
    if not ranks.is_main():
        yield
        return
    locks = Path(stage.config.outputs) / "runs" / ".locks"
    lock = FileLock(locks / f"{stage.directory.name}.lock")
    make_dir(locks)
    with explained(locks):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            console.inform(f"  {stage.recipe}: another process is building {stage.directory.name}; waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(stage: Stage, await_need: Callable[[str], None]) -> dict[str, Any]:
    """Build a stage in this process, or together with processes that a launcher or rlhf_lab itself starts."""
    start_building()
    checked = stage.config
    discard = checked.artifacts.refresh
    if ranks.world() == 1:
        count = processes.requested_processes(checked)
        if count > 1:
            return processes.train_together(stage, count, discard=discard)
        return execute(stage, discard=discard, await_need=await_need)
    if checked.algorithm.resources.distributed and registry.kind_of("sharding", checked.sharding) != "none":
        return execute(stage, discard=discard)

    # A stage that is not distributed runs on the main process; the others wait for its result.
    def execute_alone() -> dict[str, Any]:
        with ranks.single_process():
            return execute(stage, discard=discard)

    return ranks.on_main(execute_alone)


@contextmanager
def stoppable() -> Iterator[None]:
    """Turn a signal into Interrupted outside training (loading, evaluating, waiting), so that it is recorded.

    The training loop has its own handler, which saves a checkpoint first.
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
    """Build a stage, from its checkpoint if there is one, and return the content of result.json.

    Args:
        discard: True to ignore an earlier attempt.
        await_need: called with a role of `late_needs` before its content is read.
        micro_batch_tokens: replaces the config's value, with which a device ran out of memory.
    """
    with console.logged(stage.directory):
        return _execute(stage, discard, await_need, micro_batch_tokens)


def _execute(
    stage: Stage, discard: bool, await_need: Callable[[str], None], micro_batch_tokens: int | None
) -> dict[str, Any]:
    """Build a stage; see `execute`."""
    # 1. Restore or clear an earlier attempt.
    start, cpu_start = time.monotonic(), time.process_time()
    directory = stage.directory
    makes_model = stage.config.algorithm.outputs.model
    _require_planned_code(stage)
    if not discard:
        _require_consent(stage)
    state, problem = _resume_or_clear(directory, makes_model, discard)
    config, fitted_with = import_module(NEUTRAL).fitted(stage)
    if micro_batch_tokens:
        config = config.replace(algorithm=replace(config.algorithm, micro_batch_tokens=micro_batch_tokens))
    # 2. Describe the attempt: notes, settings, status and code. A killed process leaves the status "running".
    run = Run(directory, config, stage.sources(), state, await_need=await_need)
    for section in stage.config.sections().values():
        for note in section.notes(stage.config):
            run.note(note)
    if fitted_with:
        run.note(f"to fit the device: {fitted_with}")
    if micro_batch_tokens:
        run.note(f"out of memory: micro-batches of {micro_batch_tokens} tokens from here on")
    if problem:
        run.note(f"started over: {problem}")
    elif state:
        run.note(f"resumed at step {state['step']}")
    values = redacted(root.to_values(stage.config))
    write_text(directory / "config.yaml", yaml.safe_dump(values, sort_keys=False))
    result: dict[str, Any] = {"status": "running", "error": None, "seconds": 0.0, "policies": [], "metrics": {}}
    write_json(directory / "result.json", result)
    write_json(directory / CODE, {"version": __version__, "definitions": stage.code})
    reset_peak()
    try:
        # A stage that restarts without a checkpoint logs everything again, including results that it reuses.
        log_size = state["log_size"] if state else 0
        del state  # a second reference besides `run.checkpoint` would keep the tensors in memory
        run.tracking = track(stage.config, stage.recipe, directory, log_size, run.note)
        run.rewind_log(log_size)
        write_json(directory / "manifest.json", manifest(stage, run.corpus))
        _note_data(run)
        _note_trained_weights(run)
        # 3. Train, evaluate and save. The model is moved into place only when it is complete.
        train_steps = _training_engine(stage.config)
        algorithm = registry.build("algorithm", config.algorithm, run)
        if makes_model:
            train_steps(algorithm, run, stage.recipe)
        outcome = algorithm.finish()
        if changed := edited(stage.code):
            run.note(
                f"{', '.join(changed)}: edited while this stage was built. The stage used the code as of its start, "
                "unless a module was loaded later; artifacts.refresh=true builds it again"
            )
        _note_silence(run, outcome)
        if makes_model:
            with replacing(directory / "model") as model_dir:
                save_model(algorithm.model, algorithm.encoder, model_dir)
                algorithm.save_extra(model_dir)
        result |= {
            "status": "completed",
            "policies": outcome.policies,
            "metrics": outcome.metrics,
            "primary": outcome.primary,
            **({"failure": outcome.failure} if outcome.failure else {}),
        }
    except BaseException as error:
        result |= _error_entry(error)
        raise
    finally:
        # 4. Record the outcome, whatever it is.
        cost = {
            "seconds": round(time.monotonic() - start, 1),
            "cpu_seconds": round(time.process_time() - cpu_start, 1),
            "peak_gib": peak_gib(),
            "training": run.cost,
        }
        try:
            _record(directory, result | cost | {"notes": run.notes})
        except BaseException as error:  # e.g. a full disk; the trackers must show the failure, too
            result |= _error_entry(error)
            raise
        finally:
            run.tracking.finish(result["status"], partial(_tracker_outcome, directory))
            reason = f": {result['error']}" if result["error"] else ""
            ending = f"  {stage.recipe} {result['status']} after {cost['seconds']:.0f} s{reason}"
            console.detail(ending)
    if ranks.is_main():
        with suppress(OSError):  # checkpoints stay if the disk has become read-only
            forget_attempts(directory)
    ranks.wait()
    return read_json(directory / "result.json")


def _require_planned_code(stage: Stage) -> None:
    """Raise ArtifactError if code was edited after planning, because the stage's key would describe other code."""
    if changed := edited(stage.code):
        raise ArtifactError(
            f"{', '.join(changed)}: edited since this command started, so the key of {stage.recipe} would not match "
            "its code; run the same command again, complete stages are reused"
        )


def _require_consent(stage: Stage) -> None:
    """Raise Paused if the monitor paused the stage and the command does not set alerts.continue_paused."""
    result = read_object(stage.directory / "result.json")
    if result.get("status") == "paused" and not stage.config.alerts.continue_paused:
        raise Paused(str(result.get("error")))


def _resume_or_clear(directory: Path, makes_model: bool, discard: bool) -> tuple[dict[str, Any] | None, str | None]:
    """Return (checkpoint, reason for its absence) of an earlier attempt; without a checkpoint, remove its files."""
    make_dir(directory)
    state, problem = (None, None) if discard else checkpoint.load(directory)
    if ranks.is_main():
        seal.remove(directory)
        # A stage without a model has no checkpoint; the policies evaluated so far are kept and reused.
        if state is None and (makes_model or discard):
            for path in directory.iterdir():
                if path.name != LOG_FILE:  # the log has the lines of this command, and of earlier attempts
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    ranks.wait()
    return state, problem


def _tracker_outcome(directory: Path) -> StageOutcome:
    from rlhf_lab.results.outcome import outcome  # the only import that needs pandas

    return outcome(directory)


def _training_engine(checked: root.Config) -> Callable[[Algorithm, Run, str], None]:
    """Return the training function: the built-in loop or TRL's trainers. Raise MissingDependency without TRL."""
    if checked.engine == "native":
        return train
    from rlhf_lab.algorithms.trl.engine import load

    return load(checked)


def _note_data(run: Run) -> None:
    reports = run.corpus.report
    for split in ["all"] if "all" in reports else reports:
        report = reports[split]
        reasons = ", ".join(f"{count} {reason}" for reason, count in report.dropped.items()) or "none"
        longer_wins = report.statistics.get("longer wins")
        baseline = "" if longer_wins is None else f'; "longer wins" is right {longer_wins:.1%} of the time'
        run.note(f"data {split}: {report.rows} rows read, {report.kept} kept; dropped: {reasons}{baseline}")


def _note_trained_weights(run: Run) -> None:
    """Note that `model.weights` does not apply to trained weights if all parameters are trained."""
    model = run.config.model
    stored = model.stored("policy")
    if run.config.algorithm.outputs.model and stored != "float32" and not model.lora.rank:
        run.note(
            f"model.weights={stored} only applies to frozen weights; trained weights are float32, which with "
            "runtime.dtype=bfloat16 need as much memory as bfloat16 weights with a float32 master"
        )


def _note_silence(run: Run, outcome: Result) -> None:
    """Add notes if a stage completed without effect: no signal, nothing learned, a policy that did not move."""
    rows, _ = read_rows(run.directory / "metrics.jsonl")  # up to a damaged line, which must not fail a finished stage
    for note in silence.remarks(type(run.config.algorithm), rows, outcome.policies, outcome.metrics):
        run.note(note)


def _record(directory: Path, result: dict[str, Any]) -> None:
    """Write result.json. The checksums of a completed stage come first, so that no complete stage lacks them."""
    result = finite_values(result)
    if result["status"] == "completed" and ranks.is_main():
        result[seal.SEALED] = True
        seal.write(directory, json_text(result))
    write_json(directory / "result.json", result)


def _error_entry(error: BaseException) -> dict[str, str]:
    if isinstance(error, Paused):
        return {"status": "paused", "error": str(error)}
    interrupted = isinstance(error, (Interrupted, KeyboardInterrupt, SystemExit))
    message = str(error) if isinstance(error, (LabError, Interrupted)) else f"{type(error).__name__}: {error}"
    return {"status": "interrupted" if interrupted else "failed", "error": redacted(message)}
