"""A folder that lasts, and commands that run in it, over `Sandbox`, which runs one Python program and forgets it.

The folder is kept here, in memory: its files go into the sandbox with each command and come back after it. The program
of the sandbox is RUNNER, which becomes the command. A command finds Python's standard library and copies of this
machine's shell and of a few small programs; everything else of the machine stays hidden.

Left out: processes that go on after their command, empty folders, links and permissions of files (all are executable),
and what a command leaves outside its folder.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.code.sandbox.levels import MAIN, Task
from rlhf_lab.packs.code.sandbox.outcome import Level, Outcome
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

FOLDER = "sample"
"""Of the working files, below the sandbox's own."""
ROOT = f"/work/{FOLDER}"
"""Where a command finds them, but on the level `rlimits`, whose folder is a temporary one of the machine."""
COMMAND, PROGRAMS = "command.json", "programs"
SHELL: tuple[str, ...] = ("bash", "sh", "basename", "cat", "chmod", "cp", "cut", "date", "diff", "dirname", "echo")
SHELL += ("env", "expr", "find", "grep", "head", "ls", "mkdir", "mv", "printf", "pwd", "rm", "sed", "seq", "sleep")
SHELL += ("sort", "tail", "tee", "test", "touch", "tr", "true", "uniq", "wc", "xargs")
"""Programs that a command finds beside `python` and `python3`, where this machine has them."""
RUNNER = f"""
import json, os, sys
with open("{COMMAND}") as file:
    command = json.load(file)
programs, home = os.path.abspath("{PROGRAMS}"), os.path.abspath("{FOLDER}")
os.makedirs(programs, exist_ok=True)
os.makedirs(os.path.join(home, command["folder"]), exist_ok=True)
for top in (programs, home):
    for folder, _, names in os.walk(top):
        for name in names:
            os.chmod(os.path.join(folder, name), 0o755)
for name in ("python", "python3"):  # behind chmod, which follows links
    os.symlink(sys.executable, os.path.join(programs, name))
os.chdir(os.path.join(home, command["folder"]))
path = os.pathsep.join([programs, *command["path"]])
environment = {{**os.environ, "PATH": path, "HOME": home, **command["environment"]}}
argv = command["argv"]
try:
    os.execvpe(argv[0], argv, environment)
except FileNotFoundError:
    sys.exit(print(f"{{argv[0]}}: not found", file=sys.stderr) or 127)
except OSError as error:
    sys.exit(print(f"{{argv[0]}}: {{error.strerror}}", file=sys.stderr) or 126)
"""


@dataclass
class Workspace:
    """The working files of one sample, and what runs on them.

    Attributes:
        files: path relative to the folder → content.
    """

    settings: Sandboxing = field(default_factory=Sandboxing)
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def level(self) -> Level:
        """The level that commands run at. Raises SandboxUnavailable; ConfigError for one that gives no files back."""
        level = Sandbox(self.settings).level
        if level == "container":
            raise ConfigError(
                "level=container gives no files back, which a sample's folder needs; write a level of namespaces or "
                "rlimits into the sandbox's file, see docs/agents/interop.md"
            )
        return level

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        folder: str = "",
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Outcome:
        """Run a command in the folder.

        Args:
            folder: below the working folder; made where it is missing.
            timeout_s: in place of the settings'.

        Returns:
            What came of it. A command that was ended from outside leaves the files as they were.

        Raises:
            PermissionError: the folder is outside.
            SandboxError: the machine cannot run it.
        """
        level = self.level
        is_open = level == "rlimits"
        command = {
            "argv": list(argv),
            "folder": relative(folder),
            "environment": dict(environment or {}),
            "path": ["/usr/local/bin", "/usr/bin", "/bin"] if is_open else [],
        }
        programs = {} if is_open else shell_programs()
        files = {f"{FOLDER}/{name}": content for name, content in self.files.items()}
        files |= {f"{PROGRAMS}/{name}": content for name, content in programs.items()}
        files |= {MAIN: RUNNER.encode(), COMMAND: json.dumps(command).encode()}
        # the programs take nothing of the room that the settings give to the command's own files
        programs_mib = sum(map(len, programs.values())) // 2**20 + 1
        settings = replace(
            self.settings,
            disk_mib=self.settings.disk_mib + programs_mib,
            timeout_s=timeout_s or self.settings.timeout_s,
        )
        task = Task(files, stdin, keep=True)
        outcome = Sandbox(settings).run_retrying(lambda: [task], level)[0]
        if MAIN in outcome.files:  # without it the folder could not be read, and nothing is known of it
            names = [name for name in outcome.files if name.startswith(f"{FOLDER}/")]
            self.files = {name.removeprefix(f"{FOLDER}/"): outcome.files[name] for name in names}
        return outcome

    def write(self, path: str, content: bytes) -> None:
        """Raises PermissionError outside the folder, IsADirectoryError, or OSError where the disk would be full."""
        name = self._file(path)
        others = sum(len(other) for key, other in self.files.items() if key != name)
        if others + len(content) > self.settings.disk_mib << 20:
            message = f"more than disk_mib={self.settings.disk_mib} in the folder"
            raise OSError(errno.ENOSPC, message, path)
        self.files[name] = content

    def read(self, path: str) -> bytes:
        """Raises PermissionError outside the folder, IsADirectoryError or FileNotFoundError."""
        name = self._file(path)
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file in the sandbox", path)
        return self.files[name]

    def _file(self, path: str) -> str:
        name = relative(path)
        if not name or any(other.startswith(f"{name}/") for other in self.files):
            raise IsADirectoryError(errno.EISDIR, "a folder of the sandbox", path)
        return name


def relative(path: str) -> str:
    """A path relative to the working folder, "" for the folder itself. Raises PermissionError for one outside."""
    pure = PurePosixPath(path)
    if pure.is_absolute() and pure.is_relative_to(ROOT):
        pure = pure.relative_to(ROOT)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise PermissionError(errno.EACCES, f"outside the sandbox's folder {ROOT}; write a path below it", path)
    return "" if pure == PurePosixPath(".") else str(pure)


@cache
def shell_programs() -> Mapping[str, bytes]:
    """The programs of SHELL that this machine has. Their libraries lie where the sandbox shows them."""
    paths = {name: shutil.which(name, path="/usr/local/bin:/usr/bin:/bin") for name in SHELL}
    return {name: Path(path).read_bytes() for name, path in paths.items() if path}
