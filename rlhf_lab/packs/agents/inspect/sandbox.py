"""Our sandbox for inspect: `inspect eval TASK.py --sandbox rlhf_lab`, or `rlhf_lab:settings.yml`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
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
from rlhf_lab.core.text import well_formed
from rlhf_lab.core.yaml_files import read_mapping
from rlhf_lab.packs.agents.inspect.workspace import Workspace
from rlhf_lab.packs.code.sandbox.outcome import ProgramOutcome
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

LEVEL_KEY = "rlhf_lab/sandbox_level"
"""Key in the sample's store: the isolation level of its commands."""
ENDED = 137
"""Exit status of a command that was killed: 128 + SIGKILL."""


class SandboxSection(BaseModel):
    """Section `sandbox` of a config, as inspect stores it in its logs."""

    model_config = ConfigDict(extra="allow")


@sandboxenv(name="rlhf_lab")
class LabSandbox(SandboxEnvironment):
    """A directory per sample, in which each command runs in a new sandbox; see workspace.py."""

    def __init__(self, settings: Sandboxing):
        super().__init__()
        self.workspace = Workspace(settings)
        self._turn = anyio.Lock()  # one command at a time: each needs the files that the previous one wrote

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandboxSection(**config)

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """Determine the isolation level before the first sample. Raise SandboxUnavailable or ConfigError."""
        # In a thread, because determining the level may run programs, and inspect's event loop must not be blocked.
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
        """Do nothing: no process survives its command, and the files are only in memory."""

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
        """See `SandboxEnvironment.exec`. `timeout_retry` is ignored, because a timeout here is never transient."""
        if user is not None:
            raise SandboxUserUnsupportedError(f"user={user}: the sandbox of rlhf_lab has only one user; leave it out")
        stdin = well_formed(input).encode() if isinstance(input, str) else input or b""

        def run() -> ProgramOutcome:
            return self.workspace.run(cmd, stdin, cwd or "", env, timeout)

        async with self._turn, _limit(concurrency):
            # In a thread as well, because running the command blocks.
            outcome = await to_thread.run_sync(run)
        # inspect reports these two errors to the model as the result of its call.
        if outcome.status == "timeout":
            limit_s = timeout or self.workspace.settings.timeout_s
            raise TimeoutError(f"{cmd[0]} ran longer than {limit_s:g} seconds")
        if outcome.status == "output":
            limit = f"{self.workspace.settings.output_kib} KiB"
            raise OutputLimitExceededError(limit, outcome.stdout or outcome.stderr)
        status = ENDED if outcome.exit is None else outcome.exit
        return ExecResult(outcome.status == "ok", status, outcome.stdout, outcome.stderr + _note(outcome))

    async def write_file(self, file: str, contents: str | bytes) -> None:
        async with self._turn:
            content = well_formed(contents).encode() if isinstance(contents, str) else contents
            self.workspace.write(file, content)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        async with self._turn:
            content = self.workspace.read(file)
        # This is inspect's own limit, which a sandbox has to apply.
        if len(content) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else content


def read_settings(config: BaseModel | str | None) -> Sandboxing:
    """Read the section `sandbox` from a YAML file or a model of it. Raise ConfigError for a wrong setting."""
    if config is None:
        return Sandboxing()
    if isinstance(config, BaseModel):
        # inspect passes a model if it has read the settings back from a log.
        where, values = "sandbox", config.model_dump()
    else:
        path = Path(config)
        if not path.is_file():
            raise ConfigError(f"sandbox rlhf_lab:{config}: the file does not exist; name a YAML file of settings")
        where, values = config, read_mapping(path, "settings of the sandbox")
    try:
        return Sandboxing(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; `explain sandbox` lists the settings") from error


def _limit(expected: bool) -> Any:
    """Return a context that limits concurrent commands to the number of cores, if `expected` is true."""
    return concurrency("rlhf_lab sandbox", usable_cores()) if expected else nullcontext()


def _note(outcome: ProgramOutcome) -> str:
    """Return notes about how a command finished that its own output does not contain."""
    notes = []
    if outcome.status in ("memory", "disk", "processes"):
        notes.append(f"the command ran into its limit of {outcome.status}")
    if outcome.lost:
        notes.append(f"the command's end is not known: {outcome.lost}")
    if outcome.files_cut:
        notes.append("some files could not be kept")
    return "".join(f"\n[sandbox] {note}" for note in notes)
