"""The kinds of faults: how each is injected, in which stages, and what has to follow."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import damages
from cases import Play
from scenarios import TRAINS_NOTHING

FEW = 5
"""Moments of a run whose files are written by other processes."""


def killed(play: Play) -> None:
    by_signal(play, signal.SIGKILL)


def by_signal(play: Play, number: int, *, twice: bool = False) -> None:
    """Once or twice, at a moment of a write or at any time."""
    play.prepare()
    for _ in range(play.rng.choice((1, 1, 2))):
        if play.rng.random() < 0.6 and not twice and len(play.scenario.moments) >= FEW:
            play.interrupt(play.moment(), number)
        else:
            after = play.rng.uniform(0.05, play.scenario.seconds)
            play.remarks.append(f"after {after:.2f} s")
            play.interrupted(*play.run(after=(after, number), twice=twice), number)
    play.finish()


def disk_full(play: Play) -> None:
    with damages.Disk(play.cwd) as disk:
        play.prepare()
        free = play.rng.randrange(4096, max(8192, play.scenario.grows))
        play.remarks.append(f"{free} bytes free")
        disk.leave(free)
        status, text = play.run()
        if status:
            play.refusal(status, text)
        disk.give_space()
        play.finish()


def file_too_large(play: Play) -> None:
    play.prepare()
    largest = play.rng.randrange(16 * 1024, 128 * 1024)
    play.remarks.append(f"files up to {largest} bytes")
    status, text = play.run(largest_file=largest)
    if status:
        play.refusal(status, text)
    play.finish()


def read_only(play: Play) -> None:
    with damages.Disk(play.cwd) as disk:
        play.prepare(complete=play.rng.random() < 0.2)
        disk.read_only(True)
        play.refusal(*play.run())
        disk.read_only(False)
        play.finish()


def revoked(play: Play) -> None:
    """Permission to write is taken away while the run writes."""
    play.prepare()
    play.outputs.mkdir(exist_ok=True)
    try:
        status, text = play.run(at=play.moment(), action=lambda _: damages.revoke(play.outputs))
    finally:
        damages.grant(play.outputs)
    if status:
        play.refusal(status, text)
    play.finish()


def checkpoint_damaged(play: Play) -> None:
    play.prepare()
    directory = play.unfinished()
    play.remarks.append(damages.damage(directory / "checkpoint.pt", play.rng))
    play.finish()


def log_damaged(play: Play) -> None:
    """A log, a round or a record of an unfinished stage."""
    play.prepare()
    directory = play.unfinished()
    files = [*directory.glob("*.json*"), *directory.glob("*.yaml"), *directory.glob("rounds/*")]
    refused_then_lifted(play, play.rng.choice(sorted(files)), directory)


def artifact_damaged(play: Play) -> None:
    """A file of a stage that is complete: one that the command starts from, or its own."""
    own = not play.scenario.before or play.rng.random() < 0.3
    play.prepare(complete=own)
    directory = play.cwd / play.rng.choice(play.scenario.own if own else play.scenario.before)
    names = [line.split("  ", 1)[1] for line in (directory / "SHA256SUMS").read_text().splitlines()]
    likely = [name for name in names if name.endswith((".safetensors", "result.json", ".jsonl", "manifest.json"))]
    refused_then_lifted(play, directory / play.rng.choice([*likely, *likely, *names, "SHA256SUMS"]), directory)


def refused_then_lifted(play: Play, path: Path, directory: Path) -> None:
    """Damage a file; when the command refuses, restore the file or follow the remedy, which is to delete the folder."""
    backup = path.read_bytes()
    play.remarks.append(f"{directory.name}: {damages.damage(path, play.rng)}")
    status, text = play.run()
    if status:
        play.refusal(status, text)
        if play.rng.random() < 0.5:
            path.write_bytes(backup)
            play.keep(directory)
        else:
            play.remarks.append("folder deleted")
            play.kept.pop(directory.relative_to(play.cwd), None)
            shutil.rmtree(directory)
    play.finish()


def cache_damaged(play: Play) -> None:
    play.prepare(cache=True)
    for path in sorted((play.outputs / "cache").rglob("*.safetensors")):
        play.remarks.append(damages.damage(path, play.rng))
    play.finish()


FAULTS: dict[str, Callable[[Play], None]] = {
    "SIGKILL": killed,
    "SIGTERM": lambda play: by_signal(play, signal.SIGTERM),
    "SIGUSR1": lambda play: by_signal(play, signal.SIGUSR1),
    "SIGINT": lambda play: by_signal(play, signal.SIGINT),
    "SIGINT twice": lambda play: by_signal(play, signal.SIGINT, twice=True),
    "disk full": disk_full,
    "file size limit": file_too_large,
    "read-only disk": read_only,
    "permission taken away": revoked,
    "checkpoint damaged": checkpoint_damaged,
    "log of an unfinished stage damaged": log_damaged,
    "file of a finished stage damaged": artifact_damaged,
    "reference cache damaged": cache_damaged,
}
HOW = {
    "SIGKILL": "to the first process of the command, at a moment of a write or at any time, once or twice",
    "SIGTERM": "the same",
    "SIGUSR1": "the same",
    "SIGINT": "the same, to all processes of the command as Ctrl-C sends it",
    "SIGINT twice": "50 ms apart, at any time",
    "disk full": "the store is on a tmpfs with less room than the stages need (ENOSPC)",
    "file size limit": "RLIMIT_FSIZE below what the largest files need (EFBIG)",
    "read-only disk": "the store is on a tmpfs mounted read-only (EROFS), with complete stages or without",
    "permission taken away": "at a moment of a write files become immutable (chattr +i, EPERM; else chmod, EACCES)",
    "checkpoint damaged": "after a kill it is cut, emptied, garbled, zeroed in part or deleted, or a bit flips",
    "log of an unfinished stage damaged": "the same to a log, round, record or config after a kill",
    "file of a finished stage damaged": "the same to a model, result, log or tokenizer of a complete stage, or a seal",
    "reference cache damaged": "the same to cached log-probabilities of the reference",
}
MOUNTS = ("disk full", "read-only disk")


def fits(kind: str, stage: str) -> bool:
    """Return True if a stage can suffer a fault: it has the file, and hooks reach the process that writes it."""
    if kind == "reference cache damaged":
        return stage in ("dpo", "dpo_lora", "sweep")
    if kind == "checkpoint damaged":
        return stage not in (*TRAINS_NOTHING, "sweep, 2 processes")
    if stage == "sweep, 2 processes":
        return kind in ("SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1", "file of a finished stage damaged", *MOUNTS)
    return True


def possible(directory: Path) -> tuple[list[str], list[str]]:
    """The kinds of faults that can happen on this machine, and what to say of the others."""
    kinds, notes = list(FAULTS), []
    if not damages.can_mount():
        kinds = [kind for kind in kinds if kind not in MOUNTS]
        notes.append("no tmpfs can be mounted here: `disk full` and `read-only disk` did not run")
    if not damages.can_revoke(directory):
        kinds.remove("permission taken away")
        notes.append("files cannot be made immutable here: `permission taken away` did not run")
    return kinds, notes
