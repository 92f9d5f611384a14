"""Extraction of the program from a response: a fenced block, a full program, or a continuation of the prompt's code."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

BLOCK = re.compile(r"```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
INLINE = re.compile(r"(?<!`)```[^`\n]+```(?!`|\w+\n)")
"""Code within a line between three backticks, which begins no block."""
PYTHON = ("", "py", "python", "python3")
INDENT = "    "
FUTURE = re.compile(r"^from __future__ import .*", re.MULTILINE)
STARTS_CODE = re.compile(r"(?:from|import|def|async|class|@|#)")
MOST_CUTS = 200
"""Maximum number of lines that may be cut at the end of a continuation until the rest is valid Python."""


def parsed(code: str, flags: int = ast.PyCF_ONLY_AST) -> Any:
    """Compile the code, by default to its syntax tree (`ast.Module`); None if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in a response must not print warnings
            return compile(code, "", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parses(code: str) -> bool:
    """Return True if the text is valid Python. The grammar alone also allows `return` outside a function."""
    return parsed(code, flags=0) is not None


@lru_cache(maxsize=1024)
def prompt_code(question: str, entry_point: str) -> str:
    """Return the code in a question that defines the entry point; else empty.

    The code is the full text, a fenced block, or lines with words before or after them.
    """
    for code in (question, *(code for _, code in _blocks(question))):
        if _defines(code, entry_point) and parses(code):
            return code
    return _code_among_words(question, entry_point)


def _code_among_words(text: str, entry_point: str) -> str:
    """Return the longest lines of a text that are valid Python and end with the definition of the entry point."""
    lines = text.splitlines()
    defining = [i for i, line in enumerate(lines) if _defines(line, entry_point)]
    if not defining:
        return ""
    for start in range(defining[-1] + 1):
        if not STARTS_CODE.match(lines[start]):
            continue
        for end in range(len(lines), defining[-1], -1):
            tree = parsed("\n".join(lines[start:end]))
            # a word after the definition may be a valid expression
            if tree is not None and getattr(tree.body[-1], "name", "") == entry_point:
                return "\n".join(lines[start:end]) + "\n"
    return ""


def program_of(response: str, provided: str, entry_point: str) -> str:
    """Return the program of a response.

    Args:
        provided: code of the prompt, which the response may continue; empty if there is none. It runs before the code
            of the response, so that a response need not repeat imports.
        entry_point: name that the tests call; empty if unknown.
    """
    given = [provided] if provided else []
    blocks = _blocks(response)
    if blocks:
        codes = [code for _, code in blocks]
        defining = [i for i, code in enumerate(codes) if _defines(code, entry_point)]
        if defining:  # the last definition counts, as it would in one file
            program = _in_one_file([*given, *_with_helpers(codes, defining[-1])])
            if provided or parses(program):
                return program
        if provided:
            labelled = [code for language, code in blocks if language]
            return _completed(provided, labelled[-1] if labelled else codes[-1])
        return _joined(code_blocks(response))
    if _defines(response, entry_point) and parses(response):
        return _in_one_file([*given, response])
    return _completed(provided, response) if provided else response


def _defines(code: str, entry_point: str) -> bool:
    """Return True if the code has a definition of the entry point; False without an entry point."""
    return bool(entry_point) and re.search(rf"\bdef\s+{re.escape(entry_point)}\b", code) is not None


def _with_helpers(codes: Sequence[str], main: int) -> list[str]:
    """Return the block at index `main`, preceded by the blocks that define names it uses, directly or indirectly."""
    names = [_names(code) for code in codes]
    kept = {main}
    while True:
        read, defined = (set[str]().union(*(names[i][side] for i in kept)) for side in (0, 1))
        needed = _missing(read, defined)
        helpers = {i for i, (_, defined) in enumerate(names) if defined & needed}
        if not helpers:
            return [*(codes[i] for i in sorted(kept - {main})), codes[main]]
        kept |= helpers


@lru_cache(maxsize=1024)
def needed_name(code: str) -> str:
    """Return the name that code reads and does not define; empty if there is not exactly one."""
    needed = _missing(*_names(code))
    return needed.pop() if len(needed) == 1 else ""


def _missing(read: set[str], defined: set[str]) -> set[str]:
    return read - defined - set(dir(builtins))


def _names(code: str) -> tuple[set[str], set[str]]:
    """Return the names that code reads, and those that it defines, in any scope; none if it is not valid Python."""
    read: set[str] = set()
    defined: set[str] = set()
    for node in ast.walk(parsed(code) or ast.Module([], [])):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
    return read, defined


def code_blocks(text: str) -> list[str]:
    """Return the fenced blocks with Python code.

    A block without a language may be output or a command of a shell. It counts if it is valid Python with a statement
    that is more than an expression. If no block counts, all blocks that may be Python are returned.
    """
    return certain_blocks(text) or [code for _, code in _blocks(text)]


def certain_blocks(text: str) -> list[str]:
    """Return the blocks that are surely Python: labelled as Python, or with a statement other than an expression."""
    return [code for language, code in _blocks(text) if language or _has_statement(code)]


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, code) of the blocks that may be Python; the language is "" if a block names none.

    The code of a block inside a list item is indented like the item; this indentation is removed.
    """
    blocks = [(language, code) for language, code in BLOCK.findall(INLINE.sub("", text)) if language.lower() in PYTHON]
    return [(language, _unindented(code)) for language, code in blocks]


def _unindented(code: str) -> str:
    moved = textwrap.dedent(code)
    # a continuation of the prompt's code is indented too, and is not valid Python without it
    return moved if parses(moved) and not parses(code) else code


def _has_statement(code: str) -> bool:
    tree = parsed(code)
    return tree is not None and not all(isinstance(statement, ast.Expr) for statement in tree.body)


def _joined(blocks: Sequence[str]) -> str:
    """Join all blocks into one program. If it is not valid Python, leave out blocks that are invalid on their own."""
    code = _in_one_file(blocks)
    if parses(code):
        return code
    return _in_one_file([block for block in blocks if parses(block)] or blocks)


def _in_one_file(codes: Sequence[str]) -> str:
    """Return the codes one after the other, with imports from `__future__` first, where Python requires them."""
    code = "\n".join(codes)
    return "\n".join([*FUTURE.findall(code), FUTURE.sub("", code)])


def _completed(provided: str, continuation: str) -> str:
    """Return the code of a prompt with its continuation. Lines at the end that are not valid Python are cut.

    Lost indentation is restored: of the first line if prompt and response were joined, or of all lines if they were in
    a fenced block.
    """
    lines = continuation.splitlines()
    for kept in range(len(lines), max(0, len(lines) - MOST_CUTS), -1):
        text = "\n".join(lines[:kept])
        for body in (text, INDENT + text.lstrip(" "), textwrap.indent(text, INDENT)):
            if parses(f"{provided}{body}\n"):
                return f"{provided}{body}\n"
    return f"{provided}{continuation}\n"
