"""Arguments of calls: what a model writes reaches a tool in the types that it declares, or not at all."""

from __future__ import annotations

import pytest

from rlhf_lab.core.tools import Tool, call_tool

PROPERTIES = {
    "name": {"type": "string"},
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "any": {},
    "some": {"type": ["string", "null"]},
}
TOOL = Tool("show", "Shows.", {"type": "object", "properties": PROPERTIES}, lambda **arguments: repr(arguments))


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"name": "Oslo"}, "{'name': 'Oslo'}"),
        ({"name": 3}, "{'name': '3'}"),
        ({"name": True}, "{'name': 'true'}"),
        ({"count": "3"}, "{'count': 3}"),
        ({"share": "0.5"}, "{'share': 0.5}"),
        ({"share": 2}, "{'share': 2}"),
        ({"some": None}, "{'some': None}"),
        ({"any": [1]}, "{'any': [1]}"),
    ],
)
def test_arguments_are_brought_to_the_declared_type(given, read):
    call = call_tool({"show": TOOL}, "show", given)
    assert (call.result, call.failed, call.arguments) == (read, False, given)


@pytest.mark.parametrize("given", [{"name": ["Oslo"]}, {"name": None}, {"count": "three"}, {"count": True}])
def test_what_cannot_be_is_told_to_the_model(given):
    call = call_tool({"show": TOOL}, "show", given)
    assert call.failed
    assert call.result.startswith(f"error: {next(iter(given))} of show is a JSON ")
