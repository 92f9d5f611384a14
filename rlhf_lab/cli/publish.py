"""`publish`: the words of the command as a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhf_lab.config.schema import did_you_mean
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError

OPTIONS = ("to", "dtype", "adapter", "base", "despite", "public", "license", "gate", "gate_run")
SWITCHES = ("adapter", "public")
USAGE = "publish takes a run and where to: publish outputs/runs/RUN to=FOLDER (or to=hub:OWNER/NAME)"


def run(arguments: Sequence[str]) -> None:
    """`publish RUN to=FOLDER|hub:OWNER/NAME …`. Raises ConfigError when the command is wrong."""
    # A folder's name may contain an equals sign.
    runs = [item for item in arguments if "=" not in item or Path(item).is_dir()]
    written = dict(item.split("=", 1) for item in arguments if item not in runs)
    if unknown := [name for name in written if name not in OPTIONS]:
        raise ConfigError([f"{name} is not an option of publish{did_you_mean(name, OPTIONS)}" for name in unknown])
    if len(runs) != 1 or not written.get("to"):
        raise ConfigError(USAGE)
    from rlhf_lab.interop.publishing.publish import Request, publish

    address = publish(Request(run=runs[0], **_checked(written)))
    console.print(f"published: {address}", soft_wrap=True)


def _checked(written: dict[str, str]) -> dict[str, Any]:
    """Values of the options. Raises ConfigError with everything that is wrong with them."""
    from rlhf_lab.interop.publishing.refusals import DESPITE

    values: dict[str, Any] = dict(written)
    problems = []
    for name in SWITCHES:
        if name in written:
            values[name] = yaml.safe_load(written[name])
            if not isinstance(values[name], bool):
                problems.append(f"{name}={written[name]} must be true or false")
    dtype = written.get("dtype", "saved")
    if dtype not in ("saved", "bfloat16"):
        problems.append(f"dtype={dtype} is not known; write dtype=bfloat16, or leave it out for the weights as saved")
    values["despite"] = [name for name in written.get("despite", "").split(",") if name]
    for name in values["despite"]:
        if name not in DESPITE:
            problems.append(
                f"despite={name} is no reason{did_you_mean(name, DESPITE)}; choose from {', '.join(DESPITE)}"
            )
    to = written["to"]
    if to.startswith("hub:") and not re.fullmatch(r"hub:[\w.-]+/[\w.-]+", to):
        problems.append(f"to={to}: write to=hub:OWNER/NAME")
    if "base" in written and not re.fullmatch(r"[\w.-]+/[\w.-]+", written["base"]):
        problems.append(f"base={written['base']}: write the hub id of the base, base=OWNER/NAME")
    if values.get("public") and not to.startswith("hub:"):
        problems.append("public=true is of a repository on the hub; leave it out with to=FOLDER")
    if values.get("adapter") is True and dtype != "saved":
        problems.append("dtype=bfloat16 is of a whole model; leave it out with adapter=true")
    if "gate_run" in written and "gate" not in written:
        problems.append("gate_run names the run that a suite asks; name the suite too, gate=SUITE.yaml")
    if problems:
        raise ConfigError(problems)
    return values
