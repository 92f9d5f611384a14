"""Commands that run while faults happen: one tiny command per kind of stage, and the store that it starts from."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import processes
from sizes import overrides

from rlhf_lab.config import command_line
from rlhf_lab.stages import artifacts

SAVED = "checkpoint.every_steps=2"
LOGGED, EVALUATED = "algorithm.log_every_steps=3", "algorithm.eval_every_steps=4"
"""A kill costs a step that has to be taken again, and checkpoints and stops fall between two logged steps. A stage is
logged alike wherever it is built: how often is not part of its key, and its rows are compared."""

COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "sft": ("sft", ()),
    "reward_model": ("reward_model", ()),
    "dpo": ("dpo", (EVALUATED,)),
    "dpo_lora": ("dpo_lora", ()),
    "dpo_iterative": ("dpo_iterative", ()),
    "ppo": ("ppo", (EVALUATED,)),
    "grpo": ("grpo", ("reward.monitor.action=log", "reward.monitor.every=1", "reward.monitor.warmup=2")),
    "best_of_n": ("best_of_n", ()),
    "compare": ("compare_policies", ("needs.ppo=null", "needs.grpo=null", "needs.rloo=null")),
    "sweep": ("dpo", ("algorithm.beta=0.1,0.3", EVALUATED, "hydra/launcher=basic")),
    "sweep, 2 processes": ("dpo", ("algorithm.beta=0.1,0.3", EVALUATED)),
}
"""Name → recipe and overrides in addition to those of `sizes.overrides`."""
TRAINS_NOTHING = ("best_of_n", "compare")


@dataclass
class Scenario:
    """One command.

    Attributes:
        moments: calls that change files in an uninterrupted run of its own stages, in order.
        seconds: how long such a run takes.
        grows: bytes that its own stages add to a store.
    """

    name: str
    moments: list[processes.Moment] = field(default_factory=list)
    seconds: float = 0.0
    grows: int = 0

    @cached_property
    def command(self) -> list[str]:
        recipe, more = COMMANDS[self.name]
        sized = [override for override in overrides(recipe) if not override.startswith("checkpoint.")]
        upstream = sorted({override.split(".")[1] for override in sized if override.startswith("stages.")})
        logged = [f"stages.{name}.{LOGGED}" for name in upstream] + [LOGGED] * self.trains
        return [f"+recipe={recipe}", *sized, SAVED, *logged, *more]

    @property
    def trains(self) -> bool:
        return self.name not in TRAINS_NOTHING

    @cached_property
    def stages(self) -> list[artifacts.Stage]:
        recipe, _ = COMMANDS[self.name]
        return [artifacts.plan(checked, recipe) for checked in command_line.check_command(self.command).configs]

    @property
    def own(self) -> list[Path]:
        """Directories of the stages that the command is named after, below the working directory."""
        return [stage.directory for stage in self.stages]

    @property
    def before(self) -> list[Path]:
        """Directories of the stages they start from."""
        return list(
            dict.fromkeys(
                part.directory for s in self.stages for part in s.upstream() if part.directory not in self.own
            )
        )

    def prepare(self, reference: Path, directory: Path, *, complete: bool = False) -> None:
        """A working directory in which the stages before are complete, and its own when `complete`."""
        for path in [*self.before, *(self.own if complete else [])]:
            shutil.copytree(reference / path, directory / path)

    def measure(self, reference: Path) -> None:
        """Run it uninterrupted: first in the reference store, then its own stages alone, watched."""
        run = processes.start(self.command, reference, reference / f"{self.name}.log")
        if status := run.wait():
            raise RuntimeError(f"{self.name} without a fault ends with {status}:\n{run.text()}")
        alone, record = reference / f"{self.name} alone", reference / f"{self.name}.json"
        self.prepare(reference, alone)
        alone.mkdir(exist_ok=True)
        before, start = size(alone), time.monotonic()
        run = processes.start(self.command, alone, reference / f"{self.name}.log", record=record)
        if status := run.wait():
            raise RuntimeError(f"{self.name} without a fault ends with {status}:\n{run.text()}")
        self.seconds, self.grows = time.monotonic() - start, size(alone) - before
        self.moments = [processes.Moment(*moment) for moment in json.loads(record.read_text())]


def size(directory: Path) -> int:
    """Bytes of all files, in blocks of 4 KiB."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in directory.rglob("*") if path.is_file())
