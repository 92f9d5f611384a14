"""Streaming reader of a JSON file: the items of a list, or single values, with one value in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_lab.core import bounded_files
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import parse_json_at
from rlhf_lab.data.lines import text_blocks

WHITESPACE = re.compile(r"[ \t\n\r]*")  # only these four characters are white space in JSON
LONGEST_WORD = 16
"""Number of characters. If a block ends inside a word such as -Infinity, the parser reports an error at most this
many characters before the end of the block."""


class JsonText:
    """Text of a file and the current position in it. Every method raises DataError that names line and column."""

    def __init__(self, file: Path):
        self.file = file
        self._blocks = text_blocks(file)
        self._text = ""
        self._at = 0
        self._is_complete = False
        self._lines_before = 0
        self._column_before = 0

    def peek(self) -> str:
        """Return the next character that is not white space; "" at the end of the file."""
        while True:
            match = WHITESPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                return ""

    def value(self) -> Any:
        """Parse the next value, which has up to `MAX_ROW_BYTES` characters."""
        self.peek()
        while True:
            broken: json.JSONDecodeError | None = None
            try:
                value, end = parse_json_at(self._text, self._at)
            except json.JSONDecodeError as error:
                broken = error
            except ValueError as error:
                raise DataError(f"{self.file}, {self._place(self._at)}: {error}") from error
            else:
                # a number at the end of the text may continue in the next block
                if end < len(self._text) or self._is_complete:
                    self._at = end
                    return value
            # the error is final, or more text may complete the value
            if broken and (self._is_complete or self._is_certain(broken)):
                raise self._broken(broken.msg, broken.pos) from broken
            if len(self._text) - self._at > bounded_files.MAX_ROW_BYTES:
                raise DataError(
                    f"{self.file}, {self._place(self._at)}: the object that starts here is longer than "
                    f"{bounded_files.size_text(bounded_files.MAX_ROW_BYTES)}, the maximum for one row; expected a list "
                    "of objects, or one object per line"
                )
            self._read_more()

    def items(self) -> Iterator[Any]:
        """Yield the items of a list, whose "[" is the next character, up to the end of the file."""
        self._at += 1
        if self.peek() == "]":
            self._at += 1
        else:
            while True:
                yield self.value()
                mark = self.peek()
                if mark not in (",", "]"):
                    raise self._broken("Expecting ',' delimiter", self._at)
                self._at += 1
                if mark == "]":
                    break
        if self.peek():
            raise self._broken("Extra data", self._at)

    def _is_certain(self, error: json.JSONDecodeError) -> bool:
        """Return True for an error that more text cannot fix."""
        # unterminated strings and words cut off at the end may be completed by the next block
        is_unterminated = error.msg.startswith("Unterminated")
        return not is_unterminated and error.pos + LONGEST_WORD < len(self._text)

    def _read_more(self) -> bool:
        """Drop the text before the position and read as much again as is left. Return False at the end of the file."""
        dropped = self._text[: self._at]
        newlines = dropped.count("\n")
        self._lines_before += newlines
        # without a newline in it, the dropped text continues the line before
        line_start = 0 if newlines else self._column_before
        self._column_before = len(dropped) - dropped.rfind("\n") - 1 + line_start
        blocks = [self._text[self._at :]]
        expected = 2 * len(blocks[0]) + 1  # doubling: a long value is then parsed only a logarithmic number of times
        while sum(map(len, blocks)) < expected and not self._is_complete:
            block = next(self._blocks, None)
            self._is_complete = block is None
            blocks.append(block or "")
        self._text = "".join(blocks)
        self._at = 0
        return len(self._text) > len(blocks[0])

    def _place(self, position: int) -> str:
        newline = self._text.rfind("\n", 0, position)
        line = self._lines_before + self._text.count("\n", 0, position) + 1
        column = position - newline if newline >= 0 else self._column_before + position + 1
        return f"line {line}, column {column}"

    def _broken(self, problem: str, position: int) -> DataError:
        return DataError(
            f"{self.file}: broken JSON in {self._place(position)} ({problem}); "
            "expected a list of objects, or one object per line"
        )
