"""Settings of additional trackers of metrics (`tracker=…`). This module imports no torch; see `config/registry.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.config.section import Section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import NotEmpty


@register("tracker", "files")
@dataclass(frozen=True)
class Files(Section):
    """No additional tracker: metrics.jsonl, the console and the HTML report are always written."""

    inherited: ClassVar[bool] = True


@dataclass(frozen=True)
class Shared(Section):
    """Common settings of the trackers that compare several runs.

    Args:
        project: name of the project that contains the runs.
        group: name of a group of runs; empty means the name of the study, or of the recipe on the command line.
        tags: user-defined tags on every run.
        swept: settings of a job in a sweep, setting → value, with the compared setting first; filled in by the sweep.
    """

    inherited: ClassVar[bool] = True
    project: Annotated[str, NotEmpty(hint="write a name, e.g. rlhf_lab")] = "rlhf_lab"
    group: str = ""
    tags: list[str] = field(default_factory=list)
    swept: dict[str, Any] = field(default_factory=dict)

    def rules(self) -> tuple[Rule, ...]:
        forbidden = sorted(set(self.project) & set("/\\#?%:"))  # W&B refuses these in the name of a project
        return (
            *super().rules(),
            (not forbidden, f"project={self.project} contains {' '.join(forbidden)}; use letters, digits, - and _"),
        )


@register("tracker", "wandb")
@dataclass(frozen=True)
class Wandb(Shared):
    """Weights & Biases. It never prompts for a login, and uses no network offline.

    Args:
        mode: connection mode. `online` needs a login; `offline` writes files for `wandb sync`; `auto` is online if
            there is a login (WANDB_API_KEY, `wandb login`) and the service answers, else offline. If WANDB_MODE is set,
            it decides `auto`.
        entity: user or team; empty means that of the login.
    """

    mode: Literal["auto", "online", "offline"] = "auto"
    entity: str = ""


@register("tracker", "trackio")
@dataclass(frozen=True)
class Trackio(Shared):
    """Trackio, which stores one SQLite file per project on this machine."""


@register("tracker", "tensorboard")
@dataclass(frozen=True)
class Tensorboard(Shared):
    """TensorBoard event files; `project` is the name of their directory."""


def marked(tracker: object, *, group: str = "", swept: Mapping[str, Any] | None = None) -> object:
    """Return the settings with the group and the swept settings of a command's runs. A group set by the user is kept.

    `tracker=files` has neither and is returned unchanged.
    """
    if not isinstance(tracker, Shared):
        return tracker
    return dataclasses.replace(tracker, group=tracker.group or group, swept=dict(swept or {}))
