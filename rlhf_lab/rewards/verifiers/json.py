"""Whether a reply is JSON, and valid under a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jsonschema import validators
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from rlhf_lab.core.errors import DataError
from rlhf_lab.rewards.verifiers.settings import Json
from rlhf_lab.rewards.verifiers.verifier import ABSTAINS, Verdict, VerifierReward, verifier_of
from rlhf_lab.training.run import Run

BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)\n?[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
NO_VALUE = object()
"""What is read of a text that is no JSON; None is the value of `null`."""


class JsonVerifier:
    """Checks replies against the schema of their row."""

    def __init__(self, settings: Json):
        self.settings = settings

    def score(self, facts: Mapping[str, Any], prompt: str, response: str) -> float:
        return self.verdict(facts, prompt, response).score

    def verdict(self, facts: Mapping[str, Any], prompt: str, response: str) -> Verdict:
        """Raises DataError for a row whose schema is none."""
        settings = self.settings
        schema = facts.get(settings.column, settings.schema)
        if schema is None or schema == "":
            return ABSTAINS
        validator = _validator(schema if isinstance(schema, str) else json.dumps(schema))
        value = read_json(reply_json(response, settings.fenced))
        if value is NO_VALUE:
            return Verdict(0.0, {"parses": 0.0, "valid": 0.0})
        valid = _is_valid(validator, value)
        return Verdict(1.0 if valid else settings.parses, {"parses": 1.0, "valid": float(valid)})


def reply_json(response: str, fenced: str) -> str:
    """The text of a reply that should be JSON; "" where the required block is missing or one of several."""
    if fenced == "refuse":
        return response
    blocks = BLOCK.findall(response)
    if len(blocks) == 1:
        return str(blocks[0])
    return response if fenced == "allow" and not blocks else ""


def read_json(text: str) -> Any:
    """The value of a JSON text; NO_VALUE where it is none. NaN and infinities, which Python takes, are no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):  # nested too deeply to be read
        return NO_VALUE


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):  # 1e999 is JSON, and no number that a schema could compare
        raise ValueError(f"{number} is too large")
    return value


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Validator:
    """The validator of a schema's text. Raises DataError where the text is no schema."""
    try:
        document = json.loads(schema)
        cls = validators.validator_for(document, default=validators.Draft202012Validator)
        cls.check_schema(document)
    except (ValueError, SchemaError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"column schema is no JSON schema ({reason}): {schema[:80]}; correct the row") from error
    # an empty registry resolves references within the schema and fetches nothing
    return cls(document, registry=Registry())


def _is_valid(validator: Validator, value: Any) -> bool:
    """Raises DataError for a schema that refers to another document."""
    try:
        return bool(validator.is_valid(value))
    except RecursionError:
        return False
    except Exception as error:
        if not isinstance(error.__cause__ or error, Unresolvable):
            raise
        raise DataError(
            f"column schema refers to another document ({error}), which is not fetched; put its definitions into the "
            "schema"
        ) from error


def make(settings: Json) -> JsonVerifier:
    return JsonVerifier(settings)


def build(settings: Json, run: Run) -> VerifierReward:
    return VerifierReward(verifier_of(settings, settings.runs_in(run.config)))
