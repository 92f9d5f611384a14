"""Extraction of the program from a response: a fenced block, a full program, or a continuation of the prompt's code."""

from __future__ import annotations

import ast
import re
import warnings

BLOCK = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
PYTHON = ("", "py", "python", "python3")
INDENT = "    "
MOST_CUTS = 200
"""Maximum number of lines that may be cut at the end of a continuation until the rest is valid Python."""


def parsed(code: str) -> ast.Module | None:
    """Parse the code; None if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in a response must not print warnings
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parses(code: str) -> bool:
    """Return True if the text is valid Python."""
    return parsed(code) is not None


def prompt_code(question: str, entry_point: str) -> str:
    """Return the code in a question that defines the entry point: the full text or a fenced block; else empty."""
    for code in (question, *_blocks(question)):
        if f"def {entry_point}" in code and parses(code):
            return code
    return ""


def program_of(response: str, provided: str, entry_point: str) -> str:
    """Return the program of a response.

    Args:
        provided: code of the prompt, which the response may continue; empty if there is none. It runs before the code
            of the response, so that a response need not repeat imports.
        entry_point: name that the tests call; empty if unknown.
    """
    blocks = _blocks(response)
    if blocks:
        defining = [code for code in blocks if entry_point and f"def {entry_point}" in code]
        if defining:  # the last definition counts, as it would in one file
            return f"{provided}\n{defining[-1]}" if provided else defining[-1]
        return _completed(provided, blocks[-1]) if provided else "\n".join(blocks)
    if f"def {entry_point}" in response and parses(response):
        return f"{provided}\n{response}" if provided else response
    return _completed(provided, response) if provided else response


def _blocks(text: str) -> list[str]:
    return [code for language, code in BLOCK.findall(text) if language.lower() in PYTHON]


def _completed(provided: str, continuation: str) -> str:
    """Return the code of a prompt with its continuation. Lines at the end that are not valid Python are cut.

    The first line may have lost its indentation when prompt and response were joined.
    """
    lines = continuation.splitlines()
    for kept in range(len(lines), max(0, len(lines) - MOST_CUTS), -1):
        text = "\n".join(lines[:kept])
        # the text as it is, then with the lost indentation of the first line
        for body in (text, INDENT + text.lstrip(" ")):
            if parses(f"{provided}{body}\n"):
                return f"{provided}{body}\n"
    return f"{provided}{continuation}\n"
