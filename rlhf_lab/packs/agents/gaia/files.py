"""Attachments as text: text files unchanged, spreadsheets as rows, PDF by page.

Files may come from the web. Spreadsheets and PDF files are therefore read in a separate process, with a deadline and
limits of memory, unpacked size and text length.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from rlhf_lab.core.errors import OPTIONAL, MissingDependency
from rlhf_lab.core.tools import ToolError

SCRIPT = Path(__file__).with_name("read_file.py")
DEADLINE_S = 60.0
"""Deadline for reading one file, in seconds."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment variables of the process that reads a file. openpyxl imports numpy; several numpy threads could exceed
the process's memory limit."""
PLAIN = (".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".py", ".xml", ".html", ".yaml", ".yml")


def file_text(name: str, content: bytes) -> str:
    """Return the text of an attachment.

    Raise ToolError if the format is not supported, the file is damaged, a limit is exceeded, or a library is missing.
    """
    suffix = PurePosixPath(name).suffix.lower()
    reader = READERS.get(suffix)
    if reader is None:
        raise ToolError(f"error: {name} cannot be read as text; readable are {', '.join(READERS)}")
    try:
        return reader(content)
    except MissingDependency as error:
        raise ToolError(f"error: {name}: {error}") from error
    except (ValueError, OSError) as error:
        raise ToolError(f"error: {name} cannot be read: {str(error) or type(error).__name__}") from error


def is_readable(name: str) -> bool:
    """Return True if the format of a file is supported, provided that its library is installed."""
    return PurePosixPath(name).suffix.lower() in READERS


def _to_plain(content: bytes) -> str:
    # UTF-16 is only tried with a byte order mark. cp1252 fails for a few bytes only, so it is the last guess.
    for encoding in ("utf-8-sig", "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "cp1252"):
        try:
            return content.decode(encoding).replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
    return content.decode("utf-8", "replace")


def _in_process(suffix: str, library: str, content: bytes) -> str:
    """Return the text of a file that a library reads, in a process with limits: see read_file.py."""
    if find_spec(library) is None:
        raise MissingDependency(*OPTIONAL[library])
    # -P: the script's directory is not on the import path, so its modules cannot shadow those of the library.
    command = [sys.executable, "-P", str(SCRIPT), suffix]
    # The script needs the user's environment to find the libraries.
    environment = {**os.environ, **ONE_THREAD}
    try:
        ran = subprocess.run(
            command,
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            env=environment,
            start_new_session=True,  # Ctrl-C must only reach the run itself, which then stops this process
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"reading it takes more than {DEADLINE_S:g} s") from error
    text = ran.stdout.decode("utf-8", "replace")
    if ran.returncode:
        raise ValueError(text or f"the process that read it ended with status {ran.returncode}")
    return text


READERS: Mapping[str, Callable[[bytes], str]] = {
    **dict.fromkeys(PLAIN, _to_plain),
    ".xlsx": partial(_in_process, ".xlsx", "openpyxl"),
    ".pdf": partial(_in_process, ".pdf", "pypdf"),
}
