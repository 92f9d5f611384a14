"""Which program a reply is: a fenced block, a whole program, or text that goes on where the code of the prompt ends."""

from __future__ import annotations

import ast
import re
import warnings

BLOCK = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
PYTHON = ("", "py", "python", "python3")
INDENT = "    "
MOST_CUTS = 200
"""Lines at the end of a completion that may be cut until the rest is a program."""


def parses(code: str) -> bool:
    """Whether text is a Python program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes of the reply are not the lab's
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def prompt_code(question: str, entry_point: str) -> str:
    """The code that a question gives: all of it, or a fenced block, that defines the entry point; or nothing."""
    for code in (question, *_blocks(question)):
        if f"def {entry_point}" in code and parses(code):
            return code
    return ""


def program_of(response: str, given: str, entry_point: str) -> str:
    """The program that a reply is.

    Args:
        given: code of the prompt, which ends where a completion goes on; empty where there is none. What it defines is
            defined before the reply's code runs, so that a reply need not repeat imports.
        entry_point: the name that tests ask for; empty where it is not known.
    """
    blocks = _blocks(response)
    if blocks:
        defining = [code for code in blocks if entry_point and f"def {entry_point}" in code]
        if defining:
            return f"{given}\n{defining[-1]}" if given else defining[-1]
        return _completed(given, blocks[-1]) if given else "\n".join(blocks)
    if f"def {entry_point}" in response and parses(response):
        return f"{given}\n{response}" if given else response
    return _completed(given, response) if given else response


def _blocks(text: str) -> list[str]:
    return [code for language, code in BLOCK.findall(text) if language.lower() in PYTHON]


def _completed(given: str, continuation: str) -> str:
    """The code of a prompt with its continuation, without the lines at its end that are no code any more.

    The first line may have lost its indent where prompt and reply were joined.
    """
    lines = continuation.splitlines()
    for kept in range(len(lines), max(0, len(lines) - MOST_CUTS), -1):
        text = "\n".join(lines[:kept])
        for body in (text, INDENT + text.lstrip(" ")):
            if parses(f"{given}{body}\n"):
                return f"{given}{body}\n"
    return f"{given}{continuation}\n"
