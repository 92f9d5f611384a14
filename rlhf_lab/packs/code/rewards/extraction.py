"""Extraction of the program from a response: a fenced block, a full program, or a continuation of the prompt's code."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence

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
    for code in (question, *(code for _, code in _blocks(question))):
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
        defining = [code for _, code in blocks if entry_point and f"def {entry_point}" in code]
        if defining:  # the last definition counts, as it would in one file
            return f"{provided}\n{defining[-1]}" if provided else defining[-1]
        if provided:
            labelled = [code for language, code in blocks if language]
            return _completed(provided, labelled[-1] if labelled else blocks[-1][1])
        return _joined(code_blocks(response))
    if f"def {entry_point}" in response and parses(response):
        return f"{provided}\n{response}" if provided else response
    return _completed(provided, response) if provided else response


def code_blocks(text: str) -> list[str]:
    """Return the fenced blocks with Python code.

    A block without a language may be output or a command of a shell. It counts if it is valid Python with a statement
    that is more than an expression. If no block counts, all blocks that may be Python are returned.
    """
    return certain_blocks(text) or [code for _, code in _blocks(text)]


def certain_blocks(text: str) -> list[str]:
    """Return the blocks that count in `code_blocks`; none if there are only blocks that may be output."""
    return [code for language, code in _blocks(text) if language or _has_statement(code)]


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, code) of the blocks that may be Python; the language is "" if a block names none."""
    return [(language, code) for language, code in BLOCK.findall(text) if language.lower() in PYTHON]


def _has_statement(code: str) -> bool:
    tree = parsed(code)
    return tree is not None and not all(isinstance(statement, ast.Expr) for statement in tree.body)


def _joined(blocks: Sequence[str]) -> str:
    """Return one program of all blocks, without those that are not valid Python if they make the program invalid."""
    code = "\n".join(blocks)
    if parses(code):
        return code
    return "\n".join([block for block in blocks if parses(block)] or blocks)


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
