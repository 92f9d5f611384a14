"""Every function that ran while a stage was built stands among the definitions that its key was made of."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from sizes import overrides
from support import command_inside

from rlhf_lab.stages import code_digest, execute

pytestmark = [pytest.mark.slow, pytest.mark.end_to_end]
HARMLESS = {
    "rlhf_lab/core/ranks.py",
    "rlhf_lab/core/text.py",  # `core/files.py`, which decides no number, asks it whether JSON is well-formed
    "rlhf_lab/training/peak_memory.py",
    "rlhf_lab/training/checkpoint.py",
    "rlhf_lab/statistics/estimates.py:as_estimate",  # checks of a finished run read its numbers with it
}
"""Files and definitions that a stage also runs and that have no say in its numbers: measuring, saving, checking."""


def definition(code: CodeType) -> str | None:
    """Return the digest's name for the top-level definition of a code object, or None outside rlhf_lab."""
    path = Path(code.co_filename)
    if code_digest.PACKAGE not in path.parents:
        return None
    module = ".".join(path.relative_to(code_digest.PACKAGE.parent).with_suffix("").parts)
    name = code.co_qualname.partition(".")[0]
    if code_digest._is_neutral(module) or name.startswith("<") or path.name.endswith("settings.py"):
        return None
    return f"{path.relative_to(code_digest.PACKAGE.parent).as_posix()}:{name}"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Stage directory → definitions that ran while it was built."""
    executed: dict[str, set[str]] = {}
    build = execute.execute

    def profiled(stage: Any, **options: Any) -> Any:
        codes: set[CodeType] = set()

        def record(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # not the body of a class on import
                codes.add(frame.f_code)

        sys.setprofile(record)
        try:
            return build(stage, **options)
        finally:
            sys.setprofile(None)
            executed[str(stage.directory)] = {name for code in codes if (name := definition(code))}

    monkeypatch.setattr(execute, "execute", profiled)
    return executed


@pytest.mark.parametrize("recipe", ["dpo_iterative", "ppo", "grpo_math", "step_report"])
def test_what_ran_is_in_the_digest(recipe: str, ran: dict[str, set[str]], tmp_path: Path) -> None:
    status, printed = command_inside(tmp_path, f"+recipe={recipe}", *overrides(recipe))
    assert status == 0, printed
    assert ran
    for directory, definitions in ran.items():
        digested = json.loads((tmp_path / directory / "code.json").read_text())["definitions"]
        unseen = {each for each in definitions - digested.keys() if not {each, each.partition(":")[0]} & HARMLESS}
        assert not unseen, f"{directory}: {sorted(unseen)}"
        assert len(definitions) > 50
