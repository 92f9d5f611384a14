"""environments/code: what is fixed passes its hidden tests, what is not fixed or fixed wrongly fails them."""

from __future__ import annotations

import pytest
from wrong_repairs import WRONG_REPAIRS

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.code.debugging.debugging import DebuggingTasks, read_tier
from rlhf_lab.packs.code.rewards.code_tests import CodeVerifier
from rlhf_lab.packs.code.rewards.settings import CodeTests
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

TASKS = {task.metadata["id"]: task for task in DebuggingTasks().tasks("test")}
NEVER_END = ("climb", "build_order")
RAISES = {
    "count_words": "KeyError",
    "read_prices": "ValueError",
    "tree_depth": "ValueError",
    "moving_average": "IndexError",
}


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(Sandboxing(timeout_s=30))


@pytest.fixture(scope="module")
def verifier(sandbox) -> CodeVerifier:
    return CodeVerifier(CodeTests(), sandbox)


def statuses(verifier: CodeVerifier, programs: list[tuple[str, str]]) -> list[str]:
    """The grade of each (task, program)."""
    responses = [(TASKS[name].metadata, TASKS[name].prompt, program) for name, program in programs]
    grades = verifier.grades(responses)
    return ["none" if grade is None else grade.status for grade in grades]


def test_three_tiers_of_four():
    assert [len(read_tier(tier)) for tier in (1, 2, 3)] == [4, 4, 4]
    assert len(TASKS) == 12 and DebuggingTasks().tasks("train") == []
    assert {task.metadata["category"] for task in DebuggingTasks((2,)).tasks("test")} == {"tier_2"}
    with pytest.raises(ConfigError, match=r"tiers=\[4\] must be one or more of 1, 2, 3"):
        DebuggingTasks((4,))


def test_the_prompt_shows_program_and_example_and_no_hidden_test():
    for task in TASKS.values():
        metadata = task.metadata
        assert metadata["program"] in task.prompt and metadata["example_code"].splitlines()[0] in task.prompt
        assert not [test for test in metadata["tests"] if test.strip() in task.prompt]
        assert metadata["solution"] not in task.prompt


@pytest.mark.slow
def test_solutions_pass_and_programs_with_bugs_fail(verifier):
    solved = statuses(verifier, [(name, task.metadata["solution"]) for name, task in TASKS.items()])
    assert solved == ["passed"] * 12
    end = [(name, task.metadata["program"]) for name, task in TASKS.items() if name not in NEVER_END]
    assert statuses(verifier, end) == ["failed"] * 10
    impatient = CodeVerifier(CodeTests(), Sandbox(Sandboxing(timeout_s=1.0)))
    assert statuses(impatient, [(name, TASKS[name].metadata["program"]) for name in NEVER_END]) == ["timeout"] * 2


@pytest.mark.slow
def test_wrong_repairs_fail(verifier):
    assert WRONG_REPAIRS.keys() == TASKS.keys()
    programs = []
    for name, repairs in WRONG_REPAIRS.items():
        assert len(repairs) >= 2
        for repair in repairs:
            text = TASKS[name].metadata[repair.of]
            assert repair.old in text, (name, repair.old)
            programs.append((name, text.replace(repair.old, repair.new)))
    graded = zip(programs, statuses(verifier, programs), strict=True)
    assert not [(name, program, status) for (name, program), status in graded if status != "failed"]


def test_what_the_example_shows_is_what_the_tier_says(sandbox):
    """The traceback of tier 1 names the line; the example of tier 2 passes; half of tier 3 hides its bugs."""
    failed = set()
    for name, task in TASKS.items():
        metadata = task.metadata
        assert sandbox.run(metadata["solution"] + "\n" + metadata["example_code"]).stdout == "The example passes.\n"
        outcome = sandbox.run(metadata["program"] + "\n" + metadata["example_code"])
        if outcome.status != "ok":
            failed.add(name)
        if metadata["category"] == "tier_1":
            assert RAISES[name] in outcome.stderr.splitlines()[-1]
            program_lines = metadata["program"].count("\n")
            lines = [line for line in outcome.stderr.splitlines() if "main.py" in line and "line " in line]
            assert int(lines[-1].partition("line ")[2].partition(",")[0]) <= program_lines
    assert failed == {*RAISES, "evaluate", "run_cache"}
