"""Settings of environments of one's own, or written for other libraries (`data=environment`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt, NotEmpty
from rlhf_lab.core.user_code import files_behind, names_object
from rlhf_lab.data.file_settings import Prompts

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@register("data", "environment")
@dataclass(frozen=True)
class ForeignEnvironment(Prompts):
    """An environment of one's own, or one written for another library, that answers the policy (docs/environments.md).

    Args:
        style: `lab` is an object with the methods of `rlhf_lab.Environment`; `trl` a class in the form of TRL's
            `environment_factory`; `openenv` a server of OpenEnv; `verifiers` an installed environment of verifiers 0.1.
        environment: FILE.py:NAME of the class or function that makes it; of `openenv` the server's address, of
            `verifiers` the environment's name.
        arguments: what it is made with, by name.
        path: file of tasks: `prompt`, and further columns that the environment gets when an episode begins. Not for
            `lab` and `verifiers`, which have tasks of their own.
        prompt: the column of what is asked: text, or messages.
        action, observation: of `openenv`: the field of an action that holds the reply, and of an observation that the
            policy reads.
        max_turns: most turns of the policy in an episode.
        timeout_s: of `verifiers`: longest wait for the environment.
        version: declared version of a server or an installed environment; change it when its answers change, so that
            stored results are not reused. The code in a file is known by itself.
    """

    max_turns: Annotated[int, Ge(1)] = 8  # type: ignore[misc]  # depends on the settings here, on the class elsewhere
    style: Literal["lab", "trl", "openenv", "verifiers"] = "lab"
    environment: Annotated[str, NotEmpty(hint="write data.environment=my_env.py:MyEnvironment")] = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    action: str = "message"
    observation: str = "message"
    timeout_s: Annotated[float, Gt(0)] = 60.0
    version: str = ""

    @property
    def brings_tasks(self) -> bool:
        """Whether the environment has tasks of its own."""
        return self.style in ("lab", "verifiers")

    @property
    def reads_file(self) -> bool:
        return not self.brings_tasks

    def rules(self) -> tuple[Rule, ...]:
        is_file = self.style in ("lab", "trl")
        return (
            *super().rules(),
            (
                not is_file or not self.environment or names_object(self.environment),
                f"environment={self.environment} is not FILE.py:NAME, such as my_env.py:MyEnvironment",
            ),
            (
                not (self.brings_tasks and self.path),
                f"path={self.path} is not read with style={self.style}: the environment has tasks of its own",
            ),
            (
                self.verifier is None,
                f"verifier={self.verifier} is not read: what the environment gives is the reward of an episode",
            ),
            (
                not self.brings_tasks or (self.prompt_template == "{prompt}" and not self.system),
                f"prompt_template and system are not read with style={self.style}, whose tasks are its own",
            ),
        )


def code_files(config: Config) -> list[Path]:
    """Source files of the user's own environment that the stage runs."""
    data = config.data
    return files_behind(data.environment) if isinstance(data, ForeignEnvironment) else []
