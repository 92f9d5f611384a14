"""Entry point of the examination: the machine, then the model that a command would start from.

Only the second half imports torch, so that the doctor still runs on a machine where torch does not load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_lab.config import command_line
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.files import write_json
from rlhf_lab.core.packs import contributed_objects
from rlhf_lab.doctor import report
from rlhf_lab.doctor.environment import ENVIRONMENT
from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, examine, pass_or_fail
from rlhf_lab.doctor.parts import examine_parts
from rlhf_lab.doctor.storage import STORAGE, redacted_path, temporary_directory
from rlhf_lab.stages import artifacts

if TYPE_CHECKING:
    from rlhf_lab.doctor.subject import ExaminedModel

RECIPE = "sft"
"""Recipe used to check a model if none is named; it has the lowest requirements of all."""
NOT_ABOUT_MODEL = {"outputs", "artifacts", "tracker"}
"""Sections that do not concern the model: a command that sets only these examines the machine alone."""


def run(arguments: Sequence[str]) -> None:
    """Run `doctor [to=FILE.json] [+recipe=… model=… …]`.

    Raises:
        ConfigError: the command is wrong.
        LabError: a check failed.
    """
    # `to=` is the doctor's own argument; all others are overrides of a run.
    to = next((word.removeprefix("to=") for word in arguments if word.startswith("to=")), "")
    overrides = [word for word in arguments if not word.startswith("to=")]
    stage = _plan_stage(overrides)
    outputs = Path(stage.config.outputs)
    console.inform("checking the machine")
    results = [
        *examine("environment", [*ENVIRONMENT, *contributed_objects("doctor")], None),
        *examine("storage", STORAGE, outputs),
        *examine_parts(),
    ]
    subject_text = ""
    if any(_key(word).partition(".")[0] not in NOT_ABOUT_MODEL for word in overrides):
        console.inform("checking the model; this can take minutes for a large one")
        with temporary_directory(outputs) as directory:
            subject_text = _examine(stage, directory, results)
    console.print(report.table(results))
    console.print(report.summary(results))
    if to:
        write_json(Path(to), report.as_values(results, subject_text))
        console.print(f"report: {redacted_path(Path(to))}")
    failed = [result.name for result in results if result.status == "fail"]
    if failed:
        raise LabError(f"{len(failed)} of {len(results)} checks failed: {', '.join(failed)}; follow the hints above")


def _plan_stage(overrides: Sequence[str]) -> artifacts.Stage:
    """Return the stage that a command line describes; for a sweep, the stage of the first job."""
    names_recipe = any(_key(word) == "recipe" for word in overrides)
    default = [] if names_recipe else [f"+recipe={RECIPE}"]
    command = command_line.check_command([*overrides, *default])
    return artifacts.plan(command.configs[0], command.recipe or RECIPE)


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _examine(stage: artifacts.Stage, directory: Path, findings: list[CheckResult]) -> str:
    """Append the results of the model's checks, of which loading it is the first. Return a description of the model."""
    loaded: list[ExaminedModel] = []  # a check can only return a CheckResult, so `load` passes the model on here

    def load(_: object) -> CheckResult:
        from rlhf_lab.doctor.subject import load_subject
        from rlhf_lab.stages.launch.processes import set_threads

        set_threads(stage.config, 1)
        subject = load_subject(stage, directory)
        loaded.append(subject)
        return pass_or_fail(True, f"{subject.what}: {subject.parameters:,} parameters, {subject.device}")

    findings += examine("model", [DoctorCheck("loads", load)], None)
    if not loaded:
        return "a model that does not load"
    from rlhf_lab.doctor.masks import picture  # imports torch

    subject = loaded[0]
    console.print(picture(subject.encoder, subject.full_rows))
    findings += examine_model(subject)
    return str(subject.what)


def examine_model(subject: ExaminedModel) -> Iterator[CheckResult]:
    """Yield the results for tokens, forward pass and training. Checks that do not fit into memory are skipped."""
    from rlhf_lab.doctor.forward import FORWARD
    from rlhf_lab.doctor.tokens import TOKENS
    from rlhf_lab.doctor.training import TRAINING

    yield from examine("tokens", TOKENS, subject)
    # Free memory is measured again for each group, because earlier checks may keep copies of the model.
    yield from examine("forward pass", FORWARD, subject, capacity=subject.fitting_copies())
    yield from examine("training", TRAINING, subject, capacity=subject.fitting_copies())
