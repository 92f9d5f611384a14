"""Check of whether a response is JSON and valid under a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jsonschema import validators
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from rlhf_lab.core.errors import DataError
from rlhf_lab.rewards.verifiers.settings import Json
from rlhf_lab.rewards.verifiers.verifier import ABSTAINS, VerifierVerdict, term_reward

BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)\n?[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
NO_VALUE = object()
"""Value returned for a text that is not JSON. None cannot be used for this, because it is the value of `null`."""


class JsonVerifier:
    """Verifier of responses against the JSON schema of their row."""

    def __init__(self, settings: Json):
        self.settings = settings

    def verdict(self, metadata: Mapping[str, Any], prompt: str, response: str) -> VerifierVerdict:
        """Return the score with its parts. Raise DataError for a row whose schema is invalid."""
        settings = self.settings
        schema = metadata.get(settings.column)
        # a table has null, or an empty cell, in rows without a schema
        schema = settings.schema if schema is None or schema == "" else schema
        if schema == "":
            return ABSTAINS
        validator = _validator(schema if isinstance(schema, str) else json.dumps(schema))
        value = read_json(response_json(response, settings.fenced))
        if value is NO_VALUE:
            return VerifierVerdict(0.0, {"parses": 0.0, "valid": 0.0})
        valid = _is_valid(validator, value)
        return VerifierVerdict(1.0 if valid else settings.parses, {"parses": 1.0, "valid": float(valid)})


def response_json(response: str, fenced: str) -> str:
    """Return the text of a response that should be JSON; "" if the required block is missing or not unique."""
    if fenced == "refuse":
        return response
    # With several blocks it is unclear which one is the answer, so none is read.
    blocks = BLOCK.findall(response)
    if len(blocks) == 1:
        return str(blocks[0])
    return response if fenced == "allow" and not blocks else ""


def read_json(text: str) -> Any:
    """Return the value of a JSON text, or NO_VALUE. NaN and infinity, which Python accepts, are not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        return NO_VALUE


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):  # 1e999 is valid JSON, but no schema can compare it
        raise ValueError(f"{number} is too large")
    return value


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Validator:
    """Return the validator of a schema given as text. Raise DataError if the text is not a valid schema."""
    try:
        document = json.loads(schema)
        cls = validators.validator_for(document, default=validators.Draft202012Validator)
        cls.check_schema(document)
    except (ValueError, SchemaError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"column schema is not a JSON schema ({reason}): {schema[:80]}; correct the row") from error
    cls = validators.extend(cls, {"multipleOf": _multiple_of})
    # An empty registry resolves references inside the schema and fetches nothing from the network.
    return cls(document, registry=Registry())


def _multiple_of(validator: Validator, step: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    """Check numbers as they are written. As floats, 19.99 is no multiple of 0.01, and large integers overflow."""
    del schema
    if validator.is_type(value, "number") and Fraction(str(value)) % Fraction(str(step)):
        yield ValidationError(f"{value} is not a multiple of {step}")


def _is_valid(validator: Validator, value: Any) -> bool:
    """Return True if a value is valid. Raise DataError for a schema that refers to another document."""
    try:
        return bool(validator.is_valid(value))
    except RecursionError:  # the value or the schema is nested too deeply
        return False
    except Exception as error:
        # jsonschema wraps the error of its registry.
        if not isinstance(error.__cause__ or error, Unresolvable):
            raise
        raise DataError(
            f"column schema refers to another document ({error}), which is not fetched; put its definitions into the "
            "schema"
        ) from error


make = JsonVerifier
build = term_reward
