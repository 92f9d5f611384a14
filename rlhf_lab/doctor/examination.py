"""The whole examination: the machine, then the model a command would start from.

Only the second half imports torch: the doctor must still run on a machine where torch does not load.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_lab.config import compose
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.files import write_json
from rlhf_lab.core.packs import contributed
from rlhf_lab.doctor import report
from rlhf_lab.doctor.environment import ENVIRONMENT
from rlhf_lab.doctor.findings import Check, Finding, examine, pass_or_fail
from rlhf_lab.doctor.parts import examine_parts
from rlhf_lab.doctor.storage import STORAGE, scratch, shown
from rlhf_lab.stages import artifacts

if TYPE_CHECKING:
    from rlhf_lab.doctor.subject import Subject

RECIPE = "sft"
"""The recipe with which a model is checked when none is named: of all it needs the least."""
NOT_ABOUT_MODEL = {"outputs", "artifacts", "tracker"}
"""Sections that say nothing about the model: a command that sets only these examines the machine alone."""


def examine_machine(outputs: Path) -> list[Finding]:
    """Findings about the environment, storage and optional parts."""
    return [
        *examine("environment", [*ENVIRONMENT, *contributed("doctor")], None),
        *examine("storage", STORAGE, outputs),
        *examine_parts(),
    ]


def run(arguments: Sequence[str]) -> None:
    """`doctor [to=FILE.json] [+recipe=… model=… …]`.

    Raises ConfigError when the command is wrong, and LabError when a check failed.
    """
    to = next((word.removeprefix("to=") for word in arguments if word.startswith("to=")), "")
    overrides = [word for word in arguments if not word.startswith("to=")]
    stage = _plan_stage(overrides)
    outputs = Path(stage.config.outputs)
    with console.status("looking at the machine"):
        findings = examine_machine(outputs)
    subject_text = ""
    if any(_key(word).partition(".")[0] not in NOT_ABOUT_MODEL for word in overrides):
        console.print("examining the model; a large one takes minutes")
        with scratch(outputs) as folder:
            subject_text = _examine(stage, folder, findings)
    console.print(report.table(findings))
    console.print(report.summary(findings))
    if to:
        write_json(Path(to), report.as_values(findings, subject_text))
        console.print(f"report: {shown(Path(to))}")
    failed = [finding.name for finding in findings if finding.status == "fail"]
    if failed:
        raise LabError(f"{len(failed)} of {len(findings)} checks: {', '.join(failed)}")


def _plan_stage(overrides: Sequence[str]) -> artifacts.Stage:
    """The stage that a command line describes; of a sweep the first job's."""
    names_recipe = any(_key(word) == "recipe" for word in overrides)
    default = [] if names_recipe else [f"+recipe={RECIPE}"]
    command = compose.check_command([*overrides, *default])
    return artifacts.plan(command.configs[0], command.recipe or RECIPE)


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _examine(stage: artifacts.Stage, folder: Path, findings: list[Finding]) -> str:
    """Append the findings of the model's checks, of which loading it is the first. Returns what was examined."""
    loaded: list[Subject] = []  # a check returns a finding, so this hands the model out

    def load(_: object) -> Finding:
        from rlhf_lab.doctor.subject import load_subject
        from rlhf_lab.stages.launch.threads import set_threads

        set_threads(stage.config, 1)
        subject = load_subject(stage, folder)
        loaded.append(subject)
        return pass_or_fail(True, f"{subject.what}: {subject.parameters:,} parameters, {subject.device}")

    findings += examine("model", [Check("loads", load)], None)
    if not loaded:
        return "a model that does not load"
    from rlhf_lab.doctor.invariants import examine_model
    from rlhf_lab.doctor.masks import picture

    subject = loaded[0]
    console.print(picture(subject.encoder, subject.full_rows))
    findings += examine_model(subject)
    return str(subject.what)
