"""Check for content that must not be published: secrets, paths of this machine, pickles, rows of data."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator
from pathlib import Path

from rlhf_lab.core.redaction import secrets_in, unescaped
from rlhf_lab.models.model_files import read_header

ALLOWED = re.compile(
    r"(README\.md|[\w.-]+\.safetensors|[\w.-]+\.json|[\w.-]+\.jinja|vocab\.txt|merges\.txt|[\w.-]+\.model)"
)
"""Names of files that a published model may contain: weights in safetensors, settings, tokenizers, templates."""
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
"""Files with words from training texts, so that a word such as "/home/" is not a path of this machine."""
LOCAL_PATH = re.compile(
    r"(?<![\w.:/~>-])(~|/(?!/)[\w.+@-]+)(/[\w.+@=-]+)+|\b[A-Za-z]:\\[\w\\.-]+|\b(?i:file):/+[\w.+@=%:~-]+(/[\w.+@=%~-]+)*"
)
"""An absolute path with at least two components, a path below ~, a Windows path, or a file URL; no part of another
URL."""

ADDRESS = re.compile(r"https?://\S+")


def leaks(directory: Path) -> list[str]:
    """Return descriptions of everything in a directory that must not be published; empty if it is clean."""
    problems = []
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            continue
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not ALLOWED.fullmatch(path.name):
            problems.append(
                f"{name} is not a type of file that is published (safetensors, settings, tokenizer). A pickle can "
                "execute code, and other files may contain data"
            )
        else:
            text = _text_of(path)
            found = _in_text(text, is_vocabulary=path.name in VOCABULARIES)
            problems += [f"{name} contains {what}" for what in found]
    return problems


def _text_of(path: Path) -> str:
    """Return the text of a file; for weights, their metadata and names."""
    if path.suffix != ".safetensors":
        return path.read_text(encoding="utf-8", errors="replace")
    metadata, tensors, _ = read_header(path)
    texts = [*map(str, metadata), *map(str, metadata.values()), *tensors]
    return "\n".join(texts)


def _in_text(text: str, *, is_vocabulary: bool) -> Iterator[str]:
    yield from secrets_in(text, is_vocabulary=is_vocabulary)
    if is_vocabulary:
        return
    # JSON escapes such as \u002f could hide a path, so the unescaped text is searched as well.
    text = f"{text}\n{unescaped(text)}" if "\\" in text else text
    if match := LOCAL_PATH.search(text):
        yield f"a path of this machine ({match[0]})"
    user = _user()
    # Web addresses are excluded, because the owner of a page may have the same name as the user.
    if user and re.search(rf"/{re.escape(user)}/", ADDRESS.sub("", text)):
        yield "a path with the name of this machine's user"


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # the user of a container may have no name
        return ""
    return name if len(name) > 2 else ""  # a shorter name would match many harmless paths


def without_local_paths(text: str) -> str:
    """Shorten paths of this machine in a text to their last component: `…/name`."""
    return LOCAL_PATH.sub(lambda match: "…/" + re.split(r"[/\\]", match[0])[-1], text)
