"""Settings of user-defined environments and of environments written for other libraries (`data=environment`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt, NotEmpty
from rlhf_lab.core.user_code import files_behind, names_object
from rlhf_lab.data.file_settings import PromptsData

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@register("data", "environment")
@dataclass(frozen=True)
class ForeignEnvironment(PromptsData):
    """User-defined environment, or one written for another library, that answers the policy (docs/environments.md).

    Args:
        style: kind of environment. `lab`: an object with the methods of `rlhf_lab.Environment`. `trl`: a class in the
            form of TRL's `environment_factory`. `openenv`: a server of OpenEnv. `verifiers`: an installed environment
            of verifiers 0.1.
        environment: FILE.py:NAME of the class or function that creates it; for `openenv` the address of the server,
            for `verifiers` the name of the environment.
        arguments: keyword arguments for its creation.
        path: file of tasks with the column `prompt`. Other columns are passed to the environment when an episode
            starts. Not used by `lab` and `verifiers`, which have their own tasks.
        prompt: column of the prompt: text or messages.
        action: field of an action that contains the response; only for `openenv`.
        observation: field of an observation that the policy reads; only for `openenv`.
        max_turns: maximum number of turns of the policy in an episode.
        timeout_s: maximum time to wait for the environment, in seconds; only for `verifiers`.
        version: declared version of a server or an installed environment. Change it when the environment's answers
            change, so that stored results are not reused. Changes of code in a file are detected automatically.
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
        """True if the environment has its own tasks."""
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
                f"environment={self.environment} is not of the form FILE.py:NAME, such as my_env.py:MyEnvironment",
            ),
            (
                not (self.brings_tasks and self.path),
                f"path={self.path} is not used with style={self.style}, because the environment has its own tasks; "
                "remove it",
            ),
            (
                self.verifier is None,
                f"verifier={self.verifier} is not used, because the environment returns the reward of an episode; "
                "remove it",
            ),
            (
                not self.brings_tasks or (self.prompt_template == "{prompt}" and not self.system),
                f"prompt_template and system are not used with style={self.style}, because the environment has its own "
                "tasks; remove them",
            ),
        )


def code_files(config: Config) -> list[Path]:
    """Return the source files of the user's own environment that the stage runs."""
    data = config.data
    return files_behind(data.environment) if isinstance(data, ForeignEnvironment) else []
