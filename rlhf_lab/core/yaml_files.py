"""YAML written by users, read within limits: one document of plain values, no Python objects, no expanding aliases.

Values are built from the parser's events in one pass without recursion. Depth, size, aliases and repeated keys are
checked before they use memory. Numbers follow the rules of Hydra's files: `1e-3` is a number, and a date is text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

from rlhf_lab.core.bounded_files import MIB, read_bounded, size_text
from rlhf_lab.core.errors import ConfigError, DataError

MAX_YAML_BYTES = MIB
MAX_DEPTH = 32
"""Maximum nesting depth of lists and mappings."""
MAX_VALUES = 100_000
"""Maximum number of values after aliases are expanded."""
TEXT_PER_VALUE = 100
"""Number of characters that count as one more value, so that aliases cannot multiply a long text."""
MAX_NUMBER_LENGTH = 400
"""Maximum characters of a number. Longer numbers are not settings, and converting one takes quadratic time."""

# The C parser is several times faster, but not every build of PyYAML has it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_FLOAT = re.compile(
    r"""^(?:
     [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)


def _implicit_tags() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Return first character of an unquoted scalar → (tag, pattern) pairs that it may match."""
    table = {}
    for first, tags in yaml.SafeLoader.yaml_implicit_resolvers.items():
        table[first] = [(tag, _FLOAT if tag == f"{_TAG}float" else pattern) for tag, pattern in tags]
        # Hydra has no timestamps: a date stays text.
        table[first] = [(tag, pattern) for tag, pattern in table[first] if tag != f"{_TAG}timestamp"]
    return table


_IMPLICIT_TAGS = _implicit_tags()
_CONSTRUCTOR = yaml.constructor.SafeConstructor()
_SCALARS = {
    f"{_TAG}str": lambda node: node.value,
    _MERGE: lambda node: node.value,
    f"{_TAG}value": lambda node: node.value,  # a single "="
    f"{_TAG}null": lambda _: None,
    f"{_TAG}bool": _CONSTRUCTOR.construct_yaml_bool,
    f"{_TAG}int": _CONSTRUCTOR.construct_yaml_int,
    f"{_TAG}float": _CONSTRUCTOR.construct_yaml_float,
}
_COLLECTIONS = {yaml.SequenceStartEvent: f"{_TAG}seq", yaml.MappingStartEvent: f"{_TAG}map"}
_NAMES = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", type(None): "empty"}


def read_mapping(path: Path, expected: str, setting: str = "") -> dict[str, Any]:
    """Return the mapping in a file; empty for an empty file.

    Args:
        expected: description of the expected content for the message: "the keys name and principles".
        setting: setting that names the file, for the message.

    Raises:
        ConfigError: the file cannot be read, is not YAML of plain values, or does not contain a mapping.
    """
    values = read_yaml(path, setting)
    if values is None:
        return {}
    if not isinstance(values, dict):
        name = _NAMES.get(type(values), "a number")
        raise ConfigError(f"{_label(path, setting)}: the file holds {name} at its top level; expected {expected}")
    return values


def read_yaml(path: Path, setting: str = "") -> Any:
    """Return the values of a file. Raise ConfigError naming the setting, the file and, if known, the line."""
    label = _label(path, setting)
    try:
        content = read_bounded(path, MAX_YAML_BYTES)
    except DataError as error:
        raise ConfigError(str(error).replace(str(path), label, 1)) from None
    except OSError as error:
        raise ConfigError(f"{label}: the file cannot be read ({error.strerror}); name a YAML file") from None
    return parse_yaml(content, label)


def _label(path: Path, setting: str) -> str:
    return f"{setting}={path}" if setting else str(path)


def parse_yaml(content: str | bytes, where: str) -> Any:
    """Return the values of a text, or None for an empty text. Raise ConfigError.

    Args:
        where: file or setting that the text comes from, for messages.
    """
    if len(content) > MAX_YAML_BYTES:
        raise ConfigError(f"{where}: has more than {size_text(MAX_YAML_BYTES)}; put data into a data file")
    text = _decoded(content, where) if isinstance(content, bytes) else content
    try:
        return _ValueBuilder(where).build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        reason = error.problem or error.context
        raise ConfigError(f"{position}: is not valid YAML ({reason}); correct the line") from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        reason = str(error).splitlines()[0]
        fix = "remove the character, or save the file as UTF-8"
        raise ConfigError(f"{where}: is not valid YAML ({reason}); {fix}") from None


def _decoded(content: bytes, where: str) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{where}: is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE")
    try:
        return content.decode("utf-8-sig")  # editors on Windows write a byte order mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{where}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None


class _Open:
    """List or mapping whose end has not been read yet.

    Attributes:
        values: items of a list, or alternating keys and values of a mapping.
        marks: event of each value, for the line numbers of messages.
        first: number of values counted before it.
        height: nesting depth of lists and mappings in it, including itself.
    """

    def __init__(self, event: Any, first: int):
        self.event = event
        self.values: list[Any] = []
        self.marks: list[Any] = []
        self.first = first
        self.height = 1


class _Merge(str):
    """Key `<<`, whose value is merged into the mapping."""


class _ValueBuilder:
    """Builder of values from the events of a parser."""

    def __init__(self, where: str):
        self.where = where
        self.count = 0
        self.anchored: dict[str, tuple[Any, int, int]] = {}
        """Anchor → (its value, number of values in it, nesting depth of its lists and mappings)."""
        self.stack: list[_Open] = []
        self.results: list[Any] = []

    def build(self, events: Iterator[Any]) -> Any:
        """Return the value of the only document, or None for an empty text. Raise ConfigError."""
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                first = self.count
                self._count(event, 1 + len(event.value) // TEXT_PER_VALUE)
                self._add(event, self._scalar(event), first, 0)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._start(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                closed = self.stack.pop()
                is_list = isinstance(closed.event, yaml.SequenceStartEvent)
                value = closed.values if is_list else self._mapping(closed)
                self._add(closed.event, value, closed.first, closed.height)
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.DocumentStartEvent) and self.results:
                raise self._error(event, "a second document starts here; keep one document in the file, without ---")
        return self.results[0] if self.results else None

    def _error(self, event: Any, problem: str) -> ConfigError:
        return ConfigError(f"{self.where}, line {event.start_mark.line + 1}: {problem}")

    def _count(self, event: Any, values: int) -> None:
        # Count before storing, so that a file that is too large never uses more memory than the limit.
        self.count += values
        if self.count > MAX_VALUES:
            raise self._error(
                event, f"has more than {MAX_VALUES} values, including expanded aliases (*name); write fewer values"
            )

    def _check_depth(self, event: Any, levels: int) -> None:
        """Raise ConfigError if `levels` more nested levels, inside the open lists and mappings, would be too deep."""
        if len(self.stack) + levels > MAX_DEPTH:
            raise self._error(event, f"is nested more than {MAX_DEPTH} levels deep; write it flatter")

    def _add(self, event: Any, value: Any, first: int, height: int) -> None:
        """Add a complete value to the innermost open list or mapping."""
        if event.anchor and not isinstance(event, yaml.AliasEvent):
            self.anchored[event.anchor] = (value, self.count - first, height)
        if self.stack:
            self.stack[-1].height = max(self.stack[-1].height, height + 1)
            self.stack[-1].values.append(value)
            self.stack[-1].marks.append(event)
        else:
            self.results.append(value)

    def _start(self, event: Any) -> None:
        if event.tag not in (None, "!", _COLLECTIONS[type(event)]):
            raise self._error(event, _tag_problem(event.tag))
        self._check_depth(event, 1)
        self.stack.append(_Open(event, self.count))
        self._count(event, 1)

    def _alias(self, event: Any) -> None:
        # An alias inside the value that it names would make the value contain itself.
        if any(opened.event.anchor == event.anchor for opened in self.stack):
            raise self._error(event, f"*{event.anchor} is inside the value that it names; write the value out")
        if event.anchor not in self.anchored:
            raise self._error(event, f"*{event.anchor} names no earlier value; write &{event.anchor} before one")
        # The value is shared, not copied. It still counts in full, because later code may copy it.
        value, count, height = self.anchored[event.anchor]
        self._count(event, count)
        self._check_depth(event, height)
        self._add(event, value, self.count, height)

    def _scalar(self, event: Any) -> Any:
        tag = event.tag
        is_plain = event.implicit[0] and not tag
        if is_plain:
            tag = _implicit_tag(event.value)
        elif tag in (None, "!"):
            return event.value
        if tag not in _SCALARS:
            raise self._error(event, _tag_problem(tag))
        is_number = tag in (f"{_TAG}int", f"{_TAG}float")
        if is_number and len(event.value) > MAX_NUMBER_LENGTH:
            raise self._error(
                event, f"a number has {len(event.value)} characters; expected at most {MAX_NUMBER_LENGTH}, or text"
            )
        if is_plain and tag == _MERGE:
            return _Merge(event.value)
        try:
            return _SCALARS[tag](yaml.ScalarNode(tag, event.value))
        except (ValueError, KeyError, IndexError, OverflowError):
            name = tag.removeprefix(_TAG)
            raise self._error(event, f"{event.value[:40]!r} is not of the type {name}; quote text") from None

    def _mapping(self, closed: _Open) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        pairs = zip(closed.values[::2], closed.values[1::2], closed.marks[::2], strict=True)
        for key, value, event in pairs:
            if isinstance(key, _Merge):
                parts = value if isinstance(value, list) else [value]
                if not all(isinstance(part, dict) for part in parts):
                    raise self._error(event, "<< needs a mapping or a list of mappings; give it an alias (*name)")
                for part in reversed(parts):  # the first mapping of the list wins, so it is merged last
                    merged.update(part)
            elif not isinstance(key, Hashable):
                raise self._error(event, "a list or mapping is used as a key; expected text, such as name: value")
            elif key in result:
                raise self._error(event, f"the key {str(key)[:40]!r} is repeated; remove one of the two")
            else:
                result[key] = value
        # Keys written in the mapping win over merged keys.
        return {**merged, **result} if merged else result


def _implicit_tag(value: str) -> str:
    """Return the tag of an unquoted scalar."""
    for tag, pattern in _IMPLICIT_TAGS.get(value[:1], ()):
        if pattern.match(value):
            return tag
    return f"{_TAG}str"


def _tag_problem(tag: str) -> str:
    name = tag.replace(_TAG, "!!")
    return f"the tag {name[:60]} is not supported; write a plain value, list or mapping without a tag"
