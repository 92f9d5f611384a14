"""What must not be in published files: secrets, paths of this machine, pickles, rows of data."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator
from pathlib import Path

from rlhf_lab.core.redaction import secrets_in
from rlhf_lab.models.model_files import read_header

ALLOWED = re.compile(
    r"(README\.md|[\w.-]+\.safetensors|[\w.-]+\.json|[\w.-]+\.jinja|vocab\.txt|merges\.txt|[\w.-]+\.model)"
)
"""Names of files that a published model may have: weights in safetensors, settings, tokenizers, templates."""
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
"""Files whose words come from texts, so that a word such as "/home/" is no path of this machine."""
LOCAL_PATH = re.compile(r"(?<![\w.:/~>-])(~|/(?!/)[\w.+@-]+)(/[\w.+@=-]+)+|\b[A-Za-z]:\\[\w\\.-]+")
"""An absolute path with two parts or more, a path below ~, or one of Windows; no part of a URL."""

ADDRESS = re.compile(r"https?://\S+")


def leaks(folder: Path) -> list[str]:
    """What a folder has that must not be published, in words; empty where there is nothing."""
    problems = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not ALLOWED.fullmatch(path.name):
            problems.append(
                f"{name} is not a kind of file that is published (safetensors, settings, tokenizer); a pickle can run "
                "programs and other files may hold data"
            )
        else:
            text = _text_of(path)
            problems += [f"{name} holds {what}" for what in _in_text(text, is_vocabulary=path.name in VOCABULARIES)]
    return problems


def _text_of(path: Path) -> str:
    """What of a file is text; of weights, their metadata and names."""
    if path.suffix != ".safetensors":
        return path.read_text(encoding="utf-8", errors="replace")
    metadata, tensors, _ = read_header(path)
    return "\n".join([*map(str, metadata), *map(str, metadata.values()), *tensors])


def _in_text(text: str, *, is_vocabulary: bool) -> Iterator[str]:
    yield from secrets_in(text, is_vocabulary=is_vocabulary)
    if is_vocabulary:
        return
    if match := LOCAL_PATH.search(text):
        yield f"a path of this machine ({match[0]})"
    user = _user()
    # an address on the web may have an owner of that name
    if user and re.search(rf"/{re.escape(user)}/", ADDRESS.sub("", text)):
        yield "a path with the name of this machine's user"


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container may run as a user without a name
        return ""
    return name if len(name) > 2 else ""


def without_local_paths(text: str) -> str:
    """A text in which paths of this machine are their last part alone: `…/name`."""
    return LOCAL_PATH.sub(lambda match: "…/" + re.split(r"[/\\]", match[0])[-1], text)
