"""Serialisation of values to JSON and back: None, booleans, numbers, text, bytes, lists, tuples, sets, dictionaries.

The result always has built-in types, even if the input had subclasses. Therefore a test compares with the `==` of
Python, never with an `__eq__` of the candidate.
"""

import json
from collections.abc import Callable
from typing import Any

LARGEST_PLAIN_INT = 2**63
"""Limit for integers in decimal form; larger ones are written in hexadecimal."""


class NotJsonValue(Exception):
    """A value contains an unsupported type. The message is the name of the type."""


def dumps(value: object) -> str:
    """Serialise a value to one line of JSON. Raises NotJsonValue for an unsupported type."""
    try:
        return json.dumps(_encode(value))
    except RecursionError:
        raise NotJsonValue(f"{type(value).__name__} that contains itself or is nested too deeply") from None


def loads(text: str) -> object:
    """Parse a value from a line of JSON. Raises ValueError for invalid text."""
    try:
        return _decode(json.loads(text))
    except (RecursionError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"not a message: {type(error).__name__}") from None


def _encode(value: object) -> object:
    # methods of the built-in classes are called directly, because a subclass could override them
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        # Python does not convert integers of more than 4,300 decimal digits to text
        return number if abs(number) < LARGEST_PLAIN_INT else {"int": hex(number)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {type(value).__name__: bytes(value).hex()}
    if isinstance(value, dict):
        return {"dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    # containers without a JSON form are tagged with their type
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [_encode(item) for item in value]}
    raise NotJsonValue(type(value).__name__)


def _decode(value: object) -> object:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise KeyError("one type")
    kind, content = next(iter(value.items()))
    return DECODERS[kind](content)


DECODERS: dict[str, Callable[[Any], object]] = {
    "int": lambda content: int(content, 16),
    "complex": lambda content: complex(*content),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "dict": lambda content: {_decode(key): _decode(item) for key, item in content},
    "tuple": lambda content: tuple(_decode(item) for item in content),
    "set": lambda content: {_decode(item) for item in content},
    "frozenset": lambda content: frozenset(_decode(item) for item in content),
}
