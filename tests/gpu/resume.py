"""Runs killed with SIGKILL on the device and resumed, compared with uninterrupted ones, bit for bit

A difference is reported with its size: some GPU kernels add in an order that changes between runs (atomic additions in
the backward pass of an embedding), so that two uninterrupted runs differ as well. Those are compared first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from kit import Case, Outcome, Target
from sizes import overrides as small
from support import model_tensors

RECIPES = ("sft", "reward_model", "dpo", "ppo", "grpo")


def cases(target: Target) -> list[Case]:
    """One kill per algorithm."""
    recipes = ("sft", "ppo") if target.tiny else RECIPES  # four processes each, which start slowly on a CPU
    return [Case(name, lambda n=name: killed(target, n), 90) for name in recipes]  # type: ignore[misc]


def killed(target: Target, recipe: str) -> Outcome:
    """Largest difference of the weights between a run that was killed and resumed and one that was not."""
    first = finished(target, recipe, "first")
    again = finished(target, recipe, "again")
    steps = cut(target, recipe, "killed")
    resumed = finished(target, recipe, "killed")
    noise, error = largest_difference(first, again), largest_difference(first, resumed)
    same = "bit for bit" if error == 0 else "not bit for bit"
    values = {"difference": error, "between_two_runs": noise, "killed_at_row": steps}
    return Outcome(
        values, error <= max(10 * noise, 0.0), f"{same}; at most ten times what two uninterrupted runs differ by"
    )


def command(target: Target, recipe: str, store: str) -> list[str]:
    words = [f"+recipe={recipe}", target.runtime, f"outputs={target.scratch / 'resume' / store}", *small(recipe)]
    # Long enough to be killed in the middle; a checkpoint at every step.
    words += ["algorithm.epochs=4" if recipe in ("sft", "reward_model", "dpo") else "algorithm.iterations=12"]
    return target.command(*words)


def folder_of(target: Target, recipe: str, store: str) -> Path:
    runs = (target.scratch / "resume" / store / "runs").glob(f"{recipe}-*")
    return next(iter(sorted(runs)))


def finished(target: Target, recipe: str, store: str) -> Path:
    done = subprocess.run(command(target, recipe, store), capture_output=True, text=True, cwd=target.scratch)
    if done.returncode:
        raise RuntimeError(f"+recipe={recipe} ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return folder_of(target, recipe, store) / "model"


def cut(target: Target, recipe: str, store: str) -> int:
    """Start a run and kill its whole process group once it has logged four steps; returns the rows it had logged."""
    process = subprocess.Popen(
        command(target, recipe, store),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=target.scratch,
        start_new_session=True,
    )
    rows = 0
    while process.poll() is None and rows < 4:
        time.sleep(0.05)
        try:
            rows = (folder_of(target, recipe, store) / "metrics.jsonl").read_bytes().count(b"\n")
        except (StopIteration, FileNotFoundError):
            continue
    if process.poll() is not None:
        raise RuntimeError(f"+recipe={recipe} ended before it could be killed, with {process.returncode}")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return rows


def largest_difference(a: Path, b: Path) -> float:
    left, right = model_tensors(a), model_tensors(b)
    return max((left[name].double() - right[name].double()).abs().max().item() for name in left)
