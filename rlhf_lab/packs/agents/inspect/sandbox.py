"""The lab's sandbox as a sandbox of inspect: `inspect eval TASK.py --sandbox rlhf_lab`, or `rlhf_lab:settings.yml`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import yaml
from anyio import to_thread
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    concurrency,
    sandboxenv,
    store,
)
from pydantic import BaseModel, ConfigDict

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.machine import usable_cores
from rlhf_lab.packs.agents.inspect.workspace import Workspace
from rlhf_lab.packs.code.sandbox.outcome import Outcome
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

LEVEL_KEY = "rlhf_lab/sandbox_level"
"""Of the sample's store: the isolation that its commands ran under."""
ENDED = 137
"""Exit status of a command that was ended from outside: 128 + SIGKILL."""


class SandboxSection(BaseModel):
    """The section `sandbox` of a config, as inspect keeps it in its logs."""

    model_config = ConfigDict(extra="allow")


@sandboxenv(name="rlhf_lab")
class LabSandbox(SandboxEnvironment):
    """A folder per sample, in which each command runs in a sandbox of its own; see workspace.py."""

    def __init__(self, settings: Sandboxing):
        super().__init__()
        self.workspace = Workspace(settings)
        self._turn = anyio.Lock()  # a command finds the files that the one before it has left

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandboxSection(**config)

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """Find the level before the first sample. Raises SandboxUnavailable or ConfigError."""
        await to_thread.run_sync(lambda: Workspace(read_settings(config)).level)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        sandbox = cls(read_settings(config))
        store().set(LEVEL_KEY, await to_thread.run_sync(lambda: sandbox.workspace.level))
        return {"default": sandbox}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Nothing runs between commands, and the files were in memory."""

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """See `SandboxEnvironment.exec`. A command that took too long is not tried again: nothing here is transient."""
        if user is not None:
            raise SandboxUserUnsupportedError(f"user={user}: the sandbox of rlhf_lab has one user; leave it out")
        stdin = input.encode() if isinstance(input, str) else input or b""

        def run() -> Outcome:
            return self.workspace.run(cmd, stdin, cwd or "", env, timeout)

        async with self._turn, _limit(concurrency):
            outcome = await to_thread.run_sync(run)
        if outcome.status == "timeout":
            raise TimeoutError(f"{cmd[0]} ran longer than {timeout or self.workspace.settings.timeout_s:g} seconds")
        if outcome.status == "output":
            limit = f"{self.workspace.settings.output_kib} KiB"
            raise OutputLimitExceededError(limit, outcome.stdout or outcome.stderr)
        status = ENDED if outcome.exit is None else outcome.exit
        return ExecResult(outcome.status == "ok", status, outcome.stdout, outcome.stderr + _remark(outcome))

    async def write_file(self, file: str, contents: str | bytes) -> None:
        async with self._turn:
            self.workspace.write(file, contents.encode() if isinstance(contents, str) else contents)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        async with self._turn:
            content = self.workspace.read(file)
        if len(content) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else content


def read_settings(config: BaseModel | str | None) -> Sandboxing:
    """The section `sandbox` from a YAML file or a model of it. Raises ConfigError naming what is wrong."""
    if config is None:
        return Sandboxing()
    if isinstance(config, BaseModel):
        where, values = "sandbox", config.model_dump()
    else:
        path = Path(config)
        if not path.is_file():
            raise ConfigError(f"sandbox rlhf_lab:{config}: there is no such file; name a YAML file of settings")
        where, values = config, yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        return Sandboxing(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; `explain sandbox` lists the settings") from error


def _limit(wanted: bool) -> Any:
    """As many commands at once as there are cores, where the caller wants a limit."""
    return concurrency("rlhf_lab sandbox", usable_cores()) if wanted else nullcontext()


def _remark(outcome: Outcome) -> str:
    """What a command's own output does not say of its end."""
    remarks = []
    if outcome.status in ("memory", "disk", "processes"):
        remarks.append(f"the command ran into its limit of {outcome.status}")
    if outcome.lost:
        remarks.append(f"the command's end is not known: {outcome.lost}")
    if outcome.files_cut:
        remarks.append("some files could not be kept")
    return "".join(f"\n[sandbox] {remark}" for remark in remarks)
