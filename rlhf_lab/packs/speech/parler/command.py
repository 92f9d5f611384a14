"""Sub-command `parler`: sets up the environment of Parler-TTS, and trains it in rounds of DPO on an audio reward."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from rlhf_lab.config import schema
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.user_code import load_from_file, names_object
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows, describe
from rlhf_lab.packs.speech.parler.environment import PARLER, set_up

if TYPE_CHECKING:
    from rlhf_lab.packs.speech.parler.client import SpeechPrompt
    from rlhf_lab.packs.speech.parler.rounds import DpoSettings

USAGE = "parler takes setup, dpo or no action, for example: python -m rlhf_lab parler setup"
DPO_USAGE = "parler dpo model=MODEL prompts=FILE.jsonl reward=FILE.py:NAME to=DIR"


@dataclass(frozen=True)
class ParlerSetupOptions:
    """Options of `parler setup` and of `parler` without an action."""

    folder: str | None = None
    timeout_s: float = 1800.0


@dataclass(frozen=True)
class DpoOptions:
    """Options of `parler dpo`, in addition to the settings of the rounds (`DpoSettings`).

    All weights are trained, and in bfloat16 most of a step would be lost in rounding.
    """

    model: str | None = None
    prompts: str | None = None
    reward: str | None = None
    guard: str | None = None
    to: str | None = None
    folder: str | None = None
    description_tokenizer: str | None = None
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    max_frames: int = 860
    timeout_s: float = 1800.0


def run(arguments: Sequence[str]) -> None:
    action = arguments[0] if arguments and "=" not in arguments[0] else ""
    words = arguments[1:] if action else arguments
    if action == "dpo":
        _train(words)
        return
    if action not in ("", "setup"):
        raise ConfigError(f"{action!r} is not an action of parler; {USAGE}")
    options: ParlerSetupOptions = schema.read_options(ParlerSetupOptions, words)
    directory = Path(options.folder) if options.folder else None
    if not action:
        console.print(PARLER.status(directory))
        return
    with console.status("installing Parler-TTS"):
        environment = set_up(directory, timeout_s=options.timeout_s)
    console.print(str(environment))
    if options.folder:
        console.print(f"export {PARLER.variable}={environment.directory}")


def _train(words: Sequence[str]) -> None:
    # imported here because they import torch, which takes seconds and is not needed to reject a wrong command
    from rlhf_lab.packs.speech.parler.client import Parler
    from rlhf_lab.packs.speech.parler.rounds import DpoSettings, TrainingProgress, run_dpo

    # one command line sets two classes: options with a name of DpoSettings go there, the rest to DpoOptions
    of_rounds = {field.name for field in fields(DpoSettings)}
    problems: list[str] = []
    values = schema.option_values(words, problems)
    settings = schema.build(DpoSettings, {k: v for k, v in values.items() if k in of_rounds}, "", problems)
    options = schema.build(DpoOptions, {k: v for k, v in values.items() if k not in of_rounds}, "", problems)
    if options is not None:
        missing = [name for name in ("model", "prompts", "reward", "to") if getattr(options, name) is None]
        if missing:
            problems.append(f"{', '.join(missing)} must be set: {DPO_USAGE}")
        for name in ("reward", "guard"):
            named = getattr(options, name)
            if named is not None and not names_object(named):
                problems.append(f"{name}={named} must name a function in a file: {name}=my_rewards.py:loudness")
    if problems:
        raise ConfigError(problems)
    prompts = read_prompts(options.prompts)
    reward = load_from_file("reward", options.reward)
    guard = load_from_file("guard", options.guard) if options.guard else None
    progress = TrainingProgress(Path(options.to), _origin(settings, options))
    finished = len(progress.rounds)
    if finished == settings.rounds:
        console.print(f"all {finished} rounds are finished: {progress.model}")
        return
    if finished:
        console.print(f"continuing after round {finished} of {settings.rounds}")
    with Parler(
        str(progress.model) if finished else options.model,
        dtype=options.dtype,
        device=options.device,
        description_tokenizer=None if finished else options.description_tokenizer,
        max_frames=options.max_frames,
        timeout_s=options.timeout_s,
        directory=Path(options.folder) if options.folder else None,
    ) as parler:
        if finished:
            parler.load_optimizer(progress.model)
        for metrics in run_dpo(parler, prompts, reward, settings, guard, finished=finished):
            progress.save(parler, metrics, is_last=metrics.round == settings.rounds)
            rewards = f"reward {metrics.reward:.3f} (best {metrics.reward_best:.3f}, worst {metrics.reward_worst:.3f})"
            training = f"{metrics.pairs} pairs, loss {metrics.loss:.3f}, margin {metrics.margin:.3f}"
            if guard:
                rewards += f", {metrics.refused:.0%} refused by the guard"
            console.print(f"round {metrics.round}: {rewards}, {training}")
    console.print(f"model: {progress.model}")


def _origin(settings: DpoSettings, options: DpoOptions) -> dict[str, Any]:
    """Return what decides the result of a training: its settings, and digests of the files that it reads."""
    origin = {**dataclasses.asdict(settings), "model": options.model, "max_frames": options.max_frames}
    origin |= {"dtype": options.dtype, "description_tokenizer": options.description_tokenizer}
    origin["prompts"] = file_digest(Path(options.prompts or ""))
    for name in ("reward", "guard"):
        named = getattr(options, name)
        if named:
            path, _, function = named.rpartition(":")
            origin[name] = f"{file_digest(Path(path))}:{function}"
    return origin


def read_prompts(source: str) -> list[SpeechPrompt]:
    """Read prompts from a JSONL file. Raises DataError that names the first invalid row, and what is wrong with it."""
    from rlhf_lab.packs.speech.parler.client import SpeechPrompt

    if not Path(source).is_file():  # a progress has the digest of one file
        raise DataError(f"prompts={source} is not a file (relative to {Path.cwd()}); name a JSONL file of prompts")
    bad = _FirstBadRow(source)
    prompts = []
    for row in read_rows(source, bad):
        values: dict[str, Any] = {name: row.values.get(name) for name in SpeechPrompt._fields}
        for name, value in values.items():
            if not isinstance(value, str) or not value.strip():
                bad.add(row.file, row.number, f"{name} is {describe(value)}")
        prompts.append(SpeechPrompt(**values))
    if not prompts:
        raise DataError(f"{source} has no prompts; write one JSON object with text and description per line")
    return prompts


class _FirstBadRow(BadRows):
    """Raises DataError at the first invalid row: the settings of data, which allow some, do not apply to prompts."""

    def add(self, file: str, number: int, problem: str) -> NoReturn:
        form = '{"text": "Good morning.", "description": "A calm voice."}'
        raise DataError(f"{file}, row {number} is not a prompt: {problem}; expected the form {form}")
