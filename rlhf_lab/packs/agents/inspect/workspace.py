"""A persistent directory and commands that run in it, on top of `Sandbox`, which runs one Python program in isolation.

The directory is stored in memory. Its files are copied into the sandbox for each command and copied back after it. The
sandbox runs the program RUNNER, which replaces itself with the command. A command has access to Python's standard
library and to copies of this machine's shell and of a few small programs; the rest of the machine is hidden.

Not supported: processes that outlive their command, empty directories, links, file permissions (all files are
executable), and files that a command writes outside its directory.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePosixPath

from rlhf_lab.packs.code.sandbox.jail.launch import MAX_PATH_BYTES
from rlhf_lab.packs.code.sandbox.levels import MAIN, SandboxTask
from rlhf_lab.packs.code.sandbox.outcome import Level, ProgramOutcome
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox, choose_level
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

FOLDER = "sample"
"""Name of the working directory, inside the sandbox's own directory."""
ROOT = f"/work/{FOLDER}"
"""Path of the working directory for a command. At the level `rlimits` it is a temporary directory instead."""
MAX_NAME_BYTES = 255
"""Maximum length of a file name on Linux, in bytes."""
# Names inside the sandbox: the file with the command, and the directory with the copied programs.
COMMAND, PROGRAMS = "command.json", "programs"
SHELL: tuple[str, ...] = ("bash", "sh", "basename", "cat", "chmod", "cp", "cut", "date", "diff", "dirname", "echo")
SHELL += ("env", "expr", "find", "grep", "head", "ls", "mkdir", "mv", "printf", "pwd", "rm", "sed", "seq", "sleep")
SHELL += ("sort", "tail", "tee", "test", "touch", "tr", "true", "uniq", "wc", "xargs")
"""Programs that a command can use in addition to `python` and `python3`, if this machine has them."""
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
    """Working files of one sample, and the execution of commands on them.

    Attributes:
        settings: settings of the sandbox.
        files: path relative to the working directory → content.
    """

    settings: Sandboxing = field(default_factory=Sandboxing)
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def level(self) -> Level:
        """Isolation level of commands. Raises SandboxUnavailable, also for a level that returns no files."""
        return choose_level(self.settings, keep=True)

    def run(
        self,
        argv: Sequence[str],
        stdin: bytes = b"",
        directory: str = "",
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> ProgramOutcome:
        """Run a command in the working directory.

        Args:
            argv: the command and its arguments.
            stdin: standard input.
            directory: directory relative to the working directory; it is created if it does not exist.
            environment: additional environment variables.
            timeout_s: time limit in seconds, instead of that of the settings.

        Returns:
            The outcome. A command that was killed leaves the files unchanged.

        Raises:
            PermissionError: `directory` is outside the working directory.
            SandboxError: the machine cannot run the command.
        """
        level = self.level
        # At `rlimits` the command sees the machine's own programs; other levels get copies of them.
        is_open = level == "rlimits"
        command = {
            "argv": list(argv),
            "folder": relative(directory),
            "environment": dict(environment or {}),
            "path": ["/usr/local/bin", "/usr/bin", "/bin"] if is_open else [],
        }
        programs = {} if is_open else shell_programs()
        # The sandbox gets one set of files: the working files, the programs, and the runner with its command.
        files = {f"{FOLDER}/{name}": content for name, content in self.files.items()}
        files |= {f"{PROGRAMS}/{name}": content for name, content in programs.items()}
        files[MAIN] = RUNNER.encode()
        files[COMMAND] = json.dumps(command).encode()
        # The copied programs must not count towards the disk limit of the command's own files.
        programs_mib = sum(map(len, programs.values())) // 2**20 + 1
        settings = replace(
            self.settings,
            disk_mib=self.settings.disk_mib + programs_mib,
            timeout_s=timeout_s or self.settings.timeout_s,
        )
        # keep=True returns the files as the command left them.
        task = SandboxTask(files, stdin, keep=True)
        outcome = Sandbox(settings).run_retrying(lambda: [task], level)[0]
        left = outcome.next_files(files)
        # Programs and runner are not part of the working directory, so they are dropped again.
        names = [name for name in left if name.startswith(f"{FOLDER}/")]
        self.files = {name.removeprefix(f"{FOLDER}/"): left[name] for name in names}
        return outcome

    def write(self, path: str, content: bytes) -> None:
        """Write a file.

        Raises:
            PermissionError: the path is outside the working directory.
            IsADirectoryError: the path is a directory.
            NotADirectoryError: a parent of the path is a file.
            OSError: the path is too long, or the disk limit would be exceeded.
        """
        name = self._file(path)
        for directory in PurePosixPath(name).parents:
            if str(directory) in self.files:
                raise NotADirectoryError(errno.ENOTDIR, f"{directory} is a file of the sandbox, not a folder", path)
        # Checked here, because the copy into the sandbox would fail with a less clear error.
        longest_name = max(len(os.fsencode(part)) for part in name.split("/"))
        if len(os.fsencode(name)) > MAX_PATH_BYTES or longest_name > MAX_NAME_BYTES:
            message = f"a path has at most {MAX_PATH_BYTES} bytes, and each name in it {MAX_NAME_BYTES}"
            raise OSError(errno.ENAMETOOLONG, message, path)
        # The disk limit includes files that inspect writes, because each command gets all files.
        others = sum(len(other) for key, other in self.files.items() if key != name)
        if others + len(content) > self.settings.disk_mib << 20:
            message = f"more than disk_mib={self.settings.disk_mib} in the folder"
            raise OSError(errno.ENOSPC, message, path)
        self.files[name] = content

    def read(self, path: str) -> bytes:
        """Read a file. Raise PermissionError outside the working directory, IsADirectoryError or FileNotFoundError."""
        name = self._file(path)
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file in the sandbox", path)
        return self.files[name]

    def _file(self, path: str) -> str:
        name = relative(path)
        # There are no empty directories, so a directory is the prefix of a file's path.
        if not name or any(other.startswith(f"{name}/") for other in self.files):
            raise IsADirectoryError(errno.EISDIR, "a folder of the sandbox", path)
        return name


def relative(path: str) -> str:
    """Return a path relative to the working directory, "" for itself. Raise PermissionError if it is outside."""
    pure = PurePosixPath(path)
    # Commands see the directory under this absolute path, so it is accepted as well.
    if pure.is_absolute() and pure.is_relative_to(ROOT):
        pure = pure.relative_to(ROOT)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise PermissionError(errno.EACCES, f"outside the sandbox's folder {ROOT}; write a path below it", path)
    return "" if pure == PurePosixPath(".") else str(pure)


@cache
def shell_programs() -> Mapping[str, bytes]:
    """Return the programs of SHELL that this machine has. The sandbox already contains their libraries."""
    # Only programs of the system: the sandbox contains the directories of their libraries.
    search_path = "/usr/local/bin:/usr/bin:/bin"
    paths = {name: shutil.which(name, path=search_path) for name in SHELL}
    return {name: Path(path).read_bytes() for name, path in paths.items() if path}
