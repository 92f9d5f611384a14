"""Settings of the sandbox in which programs of a model run. Imports no torch."""

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
    """Where programs run that a model wrote, and their tests; see docs/code/sandbox.md.

    Args:
        level: how much isolation. `auto` takes the first of `namespaces+seccomp`, `container` (docker or podman) and
            `namespaces` that works on this machine, and stops the run where none does. `rlimits` is never chosen by
            itself: a program under it reads the user's files and uses the network.
        timeout_s: seconds that a program may take, and of processor time each of its processes.
        memory_mib: address space of each process of a program; of all together where a control group can be made.
        disk_mib: of all files that a program writes.
        processes: processes and threads of a program at a time.
        output_kib: that a program may write to standard output, and to standard error.
        image: of `level=container`; it needs `python3`.
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
        """What decides what a program can do; how well it is isolated does not."""
        return {name: value for name, value in asdict(self).items() if name not in ("level", "image")}

    def key_material(self, config: Config) -> dict[str, Any]:
        return {"sandbox": self.limits} if runs_code(config) else {}


def runs_code(config: Config) -> bool:
    """Return True if the stage runs programs in the sandbox: in a component, a verifier, or a tool of its tasks."""
    components = [settings for _, settings in config.parts()]
    if config.verifier is not None:
        components.append(config.verifier)
    return config.algorithm.tools_run_code or any(getattr(item, "runs_code", False) for item in components)
