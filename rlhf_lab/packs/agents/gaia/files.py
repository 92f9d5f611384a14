"""Attachments as text: plain files as they are, spreadsheets as rows, PDF by page.

Files may come from the web. Spreadsheets and PDF are read by a process of their own, with a deadline and limits of
memory, of what they unpack to and of their text.
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
"""For the text of one file."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment of the reading process: openpyxl imports numpy, whose threads reserve memory."""
PLAIN = (".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".py", ".xml", ".html", ".yaml", ".yml")


def file_text(name: str, content: bytes) -> str:
    """The text of an attachment.

    Raises ToolError where its form is not read, it is damaged, reading it exceeds a limit, or a library is missing.
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
    """Whether files of this form are read, given the libraries."""
    return PurePosixPath(name).suffix.lower() in READERS


def _plain(content: bytes) -> str:
    for encoding in ("utf-8-sig", "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "cp1252"):
        try:
            return content.decode(encoding).replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
    return content.decode("utf-8", "replace")


def _in_process(suffix: str, library: str, content: bytes) -> str:
    """The text of a file that a library reads, in a process with limits: see read_file.py."""
    if find_spec(library) is None:
        raise MissingDependency(*OPTIONAL[library])
    # -P: the folder of the script must not hide modules of the library
    command = [sys.executable, "-P", str(SCRIPT), suffix]
    environment = {**os.environ, **ONE_THREAD}
    try:
        ran = subprocess.run(
            command,
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DEADLINE_S,
            env=environment,
            start_new_session=True,  # Ctrl-C is meant for the run, which then ends this
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"reading it takes more than {DEADLINE_S:g} s") from error
    text = ran.stdout.decode("utf-8", "replace")
    if ran.returncode:
        raise ValueError(text or f"the process that read it ended with status {ran.returncode}")
    return text


READERS: Mapping[str, Callable[[bytes], str]] = {
    **dict.fromkeys(PLAIN, _plain),
    ".xlsx": partial(_in_process, ".xlsx", "openpyxl"),
    ".pdf": partial(_in_process, ".pdf", "pypdf"),
}
