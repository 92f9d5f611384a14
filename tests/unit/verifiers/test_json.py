"""The JSON verifier: parsing, validity, and the position of the JSON in a response."""

from __future__ import annotations

import math

import pytest

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.rewards.verifiers.json import JsonVerifier, response_json
from rlhf_lab.rewards.verifiers.settings import Json

POINT = {
    "type": "object",
    "properties": {"x": {"type": "number", "minimum": 0}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}}},
    "required": ["x"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["a", "b"]}},
}
FACTS = {"schema": POINT}
VALID = ['{"x": 1}', ' {"x": 0.5, "tags": ["a", "b"]}\n', '{"x": 1e3}', '```json\n{"x": 1}\n```', '```\n{"x": 2}\n```']
INVALID = ['{"x": -1}', '{"y": 1}', '{"x": 1, "y": 2}', '{"x": "1"}', '{"x": 1, "tags": ["c"]}', "[]", "null", "3"]
NO_JSON = ["", "x", "{'x': 1}", '{"x": 1,}', '{"x": NaN}', '{"x": 1e999}', '{"x": 1} and more', "[" * 100_000]


@pytest.mark.parametrize("response", VALID)
def test_valid(response):
    verdict = JsonVerifier(Json()).verdict(FACTS, "p", response)
    assert (verdict.score, verdict.parts) == (1, {"parses": 1, "valid": 1})


@pytest.mark.parametrize("response", INVALID)
def test_json_that_is_not_valid(response):
    verdict = JsonVerifier(Json(parses=0.2)).verdict(FACTS, "p", response)
    assert verdict.parts == {"parses": 1, "valid": 0}
    assert verdict.score == 0.2
    assert JsonVerifier(Json()).verdict(FACTS, "p", response).score == 0


@pytest.mark.parametrize("response", NO_JSON, ids=lambda response: response[:20])
def test_no_json(response):
    verdict = JsonVerifier(Json(parses=0.2)).verdict(FACTS, "p", response)
    assert (verdict.score, verdict.parts) == (0, {"parses": 0, "valid": 0})


def test_where_the_json_is():
    block = 'Here:\n```json\n{"x": 1}\n```\nDone.'
    assert response_json(block, "allow") == response_json(block, "require") == '{"x": 1}'
    assert response_json(block, "refuse") == block
    assert response_json("{}", "allow") == "{}"
    assert response_json("{}", "require") == ""
    two = f"{block}\n{block}"  # ambiguous: two blocks
    assert response_json(two, "allow") == response_json(two, "require") == ""


def test_a_schema_as_text_one_for_all_rows_and_none():
    assert JsonVerifier(Json()).verdict({"schema": '{"type": "array"}'}, "p", "[]").score == 1
    general = JsonVerifier(Json(schema='{"type": "array"}'))
    assert (
        general.verdict({}, "p", "[]").score == general.verdict({"schema": None}, "p", "[]").score == 1
    )  # null in a table
    assert general.verdict(FACTS, "p", "[]").score == 0  # the row's own schema counts
    assert math.isnan(JsonVerifier(Json()).verdict({}, "p", "[]").score)
    assert JsonVerifier(Json(column="form")).verdict({"form": {"type": "array"}, "schema": POINT}, "p", "[]").score == 1
    assert JsonVerifier(Json()).verdict({"schema": {}}, "p", "null").score == 1  # {} accepts every value


@pytest.mark.parametrize(
    ("response", "score"), [("19.99", 1), ("1e2", 1), ("1" + "0" * 400, 1), ("19.999", 0), ('"x"', 1)]
)
def test_multiples_are_exact(response, score):
    assert JsonVerifier(Json()).verdict({"schema": {"multipleOf": 0.01}}, "p", response).score == score


@pytest.mark.parametrize("schema", [{"type": "obect"}, "{", {"properties": 3}])
def test_a_row_whose_schema_is_none(schema):
    with pytest.raises(DataError, match="not a JSON schema"):
        JsonVerifier(Json()).verdict({"schema": schema}, "p", "{}")


def test_nothing_is_fetched():
    with pytest.raises(DataError, match="refers to another document"):
        JsonVerifier(Json()).verdict({"schema": {"$ref": "https://example.invalid/schema.json"}}, "p", "{}")


@pytest.mark.parametrize("values", [{"parses": 1.0}, {"parses": -0.1}, {"schema": "[]"}, {"schema": "{"}])
def test_settings_that_make_no_verifier(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        Json(**values)
