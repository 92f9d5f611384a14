"""Settings of the sandbox for model-written programs. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.config.section import Section, section
from rlhf_lab.core.ranges import Ge, Gt

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@section("sandbox")
@dataclass(frozen=True)
class Sandboxing(Section):
    """Sandbox for model-written programs and their tests; see docs/code/sandbox.md.

    Args:
        level: level of isolation. `auto` selects the first of `namespaces+seccomp`, `container` (docker or podman) and
            `namespaces` that works on this machine, and stops the run if none works. Programs of agents, whose files
            are kept, never get `container`. `rlimits` is never selected automatically, because its programs can read
            the user's files and use the network.
        timeout_s: maximum wall time of a program in seconds, and maximum processor time of each of its processes.
        memory_mib: maximum address space of each process in MiB. If a control group can be created, it is also the
            maximum total memory of a program.
        disk_mib: maximum total size of the files that a program writes, in MiB.
        processes: maximum number of simultaneous processes and threads of a program.
        output_kib: maximum size of standard output, and of standard error, in KiB.
        image: container image for `level=container`; it must contain `python3`.
    """

    inherited: ClassVar[bool] = True
    level: Literal["auto", "namespaces+seccomp", "container", "namespaces", "rlimits"] = "auto"
    timeout_s: Annotated[float, Gt(0)] = 10.0
    memory_mib: Annotated[int, Ge(32, hint="the interpreter alone needs 32")] = 512
    disk_mib: Annotated[int, Ge(1)] = 16
    processes: Annotated[int, Ge(1)] = 16
    output_kib: Annotated[int, Ge(1)] = 256
    image: str = "python:3.11-slim"

    @property
    def limits(self) -> dict[str, float]:
        """Settings that can change the outcome of a program. Level and image only affect its isolation."""
        limits = asdict(self)
        del limits["level"], limits["image"]
        return limits

    def key_material(self, config: Config) -> dict[str, Any]:
        return {"sandbox": self.limits} if runs_code(config) else {}


def runs_code(config: Config) -> bool:
    """Return True if the stage runs programs in the sandbox: in a component, a verifier, or a tool of its tasks."""
    components = [settings for _, settings in config.parts()]
    if config.verifier is not None:
        components.append(config.verifier)
    return config.algorithm.resources.runs_code or any(getattr(item, "runs_code", False) for item in components)


def keeps_files(config: Config) -> bool:
    """Return True if programs of the stage start with the files of earlier ones: those of an agent, or of its tools."""
    agents = [settings for group, settings in config.parts() if group == "agent"]
    return config.algorithm.resources.runs_code or any(getattr(agent, "runs_code", False) for agent in agents)
