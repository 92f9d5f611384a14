"""`publish`: convert the arguments of the command to a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlhf_lab.config.schema import did_you_mean, paths_and_options
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.yaml_files import parse_yaml

OPTIONS = ("to", "dtype", "adapter", "base", "despite", "public", "license", "gate", "gate_run")
SWITCHES = ("adapter", "public")
USAGE = "publish needs a run and a destination: publish outputs/runs/RUN to=DIR (or to=hub:OWNER/NAME)"


def publish_command(arguments: Sequence[str]) -> None:
    """`publish RUN to=DIR | to=hub:OWNER/NAME [dtype=bfloat16 …]`: publish the model with a card about its run.

    The run must be complete and undamaged, and name its code and data. The published files must reproduce the saved
    model's numbers, and contain no secret, local path, pickle or row of data. A hub repository is private unless
    `public=true`. `dtype=bfloat16` rounds the weights; `adapter=true` publishes only a LoRA adapter, and
    `base=OWNER/NAME` says where its base is published. `license=ID` names a licence.
    `gate=SUITE.yaml` checks the run against a suite; `gate_run=DIR` is the run that evaluated its model.
    `despite=hard_stop,audit,smoke,unnamed_code,failed_gate` publishes a run that would be refused for these
    reasons; its card then says so. docs/publish.md.
    """
    problems: list[str] = []
    runs, written = paths_and_options(arguments, "publish", OPTIONS, problems)
    if problems:
        raise ConfigError(problems)
    if len(runs) != 1 or not written.get("to"):
        raise ConfigError(USAGE)
    # Imported late, because it imports torch, which a wrong command does not need.
    from rlhf_lab.interop.publishing.publish import PublishRequest, publish

    address = publish(PublishRequest(run=runs[0], **_check_options(written)))
    console.print(f"published: {address}")


def _check_options(written: dict[str, str]) -> dict[str, Any]:
    """Return the values of the options. Raise ConfigError listing all problems."""
    from rlhf_lab.interop.publishing.refusals import DESPITE

    values: dict[str, Any] = dict(written)
    problems = []
    for name in SWITCHES:
        if name in written:
            values[name] = parse_yaml(written[name], name)
            if not isinstance(values[name], bool):
                problems.append(f"{name}={written[name]} must be true or false")
    dtype = written.get("dtype", "saved")
    if dtype not in ("saved", "bfloat16"):
        problems.append(f"dtype={dtype} is not known; write dtype=bfloat16, or remove it for the weights as saved")
    # A misspelt reason must not be ignored: the user would believe that it was accepted.
    values["despite"] = [name for name in written.get("despite", "").split(",") if name]
    for name in values["despite"]:
        if name not in DESPITE:
            problems.append(
                f"despite={name} is not a known reason{did_you_mean(name, DESPITE)}; choose from {', '.join(DESPITE)}"
            )
    to = written["to"]
    if to.startswith("hub:") and not re.fullmatch(r"hub:[\w.-]+/[\w.-]+", to):
        problems.append(f"to={to}: write to=hub:OWNER/NAME")
    if "base" in written and not re.fullmatch(r"[\w.-]+/[\w.-]+", written["base"]):
        problems.append(f"base={written['base']}: write the hub id of the base, base=OWNER/NAME")
    if values.get("public") and not to.startswith("hub:"):
        problems.append("public=true applies to a repository on the hub; remove it with to=DIR")
    if values.get("adapter") is True and dtype != "saved":
        problems.append("dtype=bfloat16 applies to a full model; remove it with adapter=true")
    if "gate_run" in written and "gate" not in written:
        problems.append("gate_run names the run that a suite evaluates; name the suite as well, gate=SUITE.yaml")
    if problems:
        raise ConfigError(problems)
    return values
