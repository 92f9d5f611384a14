"""Additions of the code pack to the core: its references, and its problems of a machine that can isolate no programs.

The problems come from rlhf_lab.packs.code.sandbox.checks.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support import planned

from rlhf_lab.core.packs import load, packs
from rlhf_lab.packs.code import PACK
from rlhf_lab.packs.code.sandbox import checks, sandbox
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


def test_it_is_found_and_what_it_names_is_there():
    assert PACK in packs()
    references = [*PACK.commands.values(), *PACK.answers.values(), *PACK.preflight, *PACK.code_files, *PACK.doctor]
    assert {"rlhf_lab.packs.code.commands:sandbox_command"} <= {*references}
    for reference in references:
        assert load(reference) is not None, reference


def test_other_commands_start_without_the_sandbox():
    script = (
        "import sys; from rlhf_lab.cli import table; print([name for name in sys.modules if '.code.sandbox' in name])"
    )
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout == b"[]\n"


def test_the_check_of_the_sandbox_names_the_level_that_works_or_why_none_does(monkeypatch):
    monkeypatch.setattr(checks, "why_not", lambda level: "")
    assert checks.CHECK.ask(None).measured == f"{checks.AUTOMATIC[0]} works"
    monkeypatch.setattr(checks, "why_not", lambda level: "no user namespaces")
    conclusion = checks.CHECK.ask(None)
    assert conclusion.status == "skip" and conclusion.measured == "no isolation works: no user namespaces"
