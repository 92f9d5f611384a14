"""Settings of where metrics go besides the run directory (`tracker=…`). Imports no torch; see `config/registry.py`."""

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
    """Nowhere else: metrics.jsonl, the console and the HTML report are always written."""

    inherited: ClassVar[bool] = True


@dataclass(frozen=True)
class Shared(Section):
    """What the trackers have in common that show many runs side by side.

    Args:
        project: what the runs are kept under.
        group: runs that belong together; empty takes the name of the study, or of the recipe on the command line.
        tags: marks of your own on every run.
        swept: setting → value of a job in a sweep, the compared setting first; the sweep fills it in.
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
            (not forbidden, f"project={self.project} has {' '.join(forbidden)} in it; use letters, digits, - and _"),
        )


@register("tracker", "wandb")
@dataclass(frozen=True)
class Wandb(Shared):
    """Weights & Biases. Never asks for a login; offline it calls nobody.

    Args:
        mode: `online` needs a login; `offline` writes files for `wandb sync`; `auto` is online where there is a login
            (WANDB_API_KEY, `wandb login`) and the service answers, else offline. WANDB_MODE, where set, decides `auto`.
        entity: user or team; empty takes the login's own.
    """

    mode: Literal["auto", "online", "offline"] = "auto"
    entity: str = ""


@register("tracker", "trackio")
@dataclass(frozen=True)
class Trackio(Shared):
    """Trackio: one SQLite file per project on this machine."""


@register("tracker", "tensorboard")
@dataclass(frozen=True)
class Tensorboard(Shared):
    """TensorBoard's event files; `project` is a folder of theirs."""


def marked(tracker: object, *, group: str = "", swept: Mapping[str, Any] | None = None) -> object:
    """The settings with the group and the swept settings of a command's runs. A group that was written stays.

    `tracker=files` has neither and stays as it is.
    """
    if not isinstance(tracker, Shared):
        return tracker
    return dataclasses.replace(tracker, group=tracker.group or group, swept=dict(swept or {}))
