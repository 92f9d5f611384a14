"""A machine on which programs of a model cannot be isolated refuses stages that run them.

The problem comes from rlhf_lab.packs.code.sandbox.preflight.
"""

from __future__ import annotations

import json

import pytest
from support import planned

from rlhf_lab.packs.code.sandbox import sandbox
from rlhf_lab.stages import preflight


def problems(recipe: str, *overrides: str) -> str:
    return "\n".join(preflight.problems(planned(recipe, *overrides)))


@pytest.mark.parametrize(
    ("recipe", "overrides", "runs_code"),
    [
        ("grpo", ["data=humaneval", "data.test_fraction=0.1", "reward=code_tests"], True),
        ("grpo", ["reward=gold"], False),
    ],
)
def test_a_machine_without_a_sandbox(monkeypatch, tmp_path, recipe, overrides, runs_code):
    if "data=humaneval" in overrides:
        row = {"task_id": "0", "prompt": "def f(x):\n", "entry_point": "f", "test": "assert f(1)"}
        row["canonical_solution"] = ""
        (tmp_path / "rows.jsonl").write_text(20 * f"{json.dumps(row)}\n")
        overrides = [*overrides, f"data.path={tmp_path / 'rows.jsonl'}", "needs.reward=null"]
    monkeypatch.setattr(sandbox, "why_not", lambda level, image="": "user namespaces are not allowed")
    found = problems(recipe, *overrides, f"outputs={tmp_path / 'outputs'}")
    with pytest.raises(sandbox.SandboxUnavailable) as raised:
        sandbox.choose_level(sandbox.Sandboxing())
    assert (str(raised.value) in found) == runs_code, found
    monkeypatch.setattr(sandbox, "why_not", lambda level, image="": "")
    assert "sandbox.level" not in problems(recipe, *overrides, f"outputs={tmp_path / 'outputs'}")
