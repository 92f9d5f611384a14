"""code_executor: rounds of code, its output, its files; scripted_code: known programs through the same rounds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from agent_support import FakeModel, last, ran, run, script

from rlhf_lab.core.episodes import Task
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.code_executor import code_executor, read_code, shortened
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.scripted_code import build
from rlhf_lab.packs.agents.harness.settings import ScriptedCode
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox

TASK = Assignment(Task("\n\nHuman: How many rows has data.csv?\n\nAssistant:", {"files": {"data.csv": "a\nb\n"}}), ())


def block(code: str) -> str:
    return f"Let us see.\n```python\n{code}\n```"


class Machine:
    """Runs nothing: each program has an outcome of its own, and every run writes a file."""

    def __init__(self, **outcomes):
        self.outcomes = outcomes
        self.files = []

    def __call__(self, code, files):
        self.files.append(dict(files))
        status, stdout, stderr = self.outcomes.get(code.strip(), ("ok", "2\n", ""))
        return ran(status, stdout, stderr, {**files, f"{len(self.files)}": b""})


def program(machine, *, code=False, rounds=6, limit=1000):
    return partial(code_executor, run_code=machine, rounds=rounds, answer_is_code=code, output_chars=limit)


def test_code_is_run_its_error_read_and_revised():
    machine = Machine(bad=("error", "half\n", "Traceback\nNameError: bad\n"))
    model = FakeModel(script(block("bad"), block("print(2)"), "Answer: 2"))
    (trajectory,) = run(program(machine), model, TASK)
    assert (trajectory.answer, trajectory.stop) == ("2", "answered")
    assert last(model.asked[1]) == "The run failed:\n<result>\nhalf\nTraceback\nNameError: bad\n</result>"
    assert last(model.asked[2]) == "The run printed:\n<result>\n2\n</result>"
    assert [call.failed for call in trajectory.calls] == [True, False]
    assert "data.csv" in model.asked[0].system


def test_the_example_of_a_task_runs_behind_every_program():
    run_codes = []

    def machine(code, files):
        run_codes.append(code)
        return ran()

    task = Assignment(Task("\n\nHuman: Repair it.\n\nAssistant:", {"example_code": "assert double(2) == 4\n"}), ())
    model = FakeModel(script(block("first"), block("second"), "Answer: done"))
    (trajectory,) = run(program(machine, code=True), model, task)
    assert run_codes == ["first\n\nassert double(2) == 4\n", "second\n\nassert double(2) == 4\n"]
    assert [call.arguments["code"] for call in trajectory.calls] == ["first\n", "second\n"]
    assert trajectory.answer == "second\n"


def test_files_of_task_and_assignment_are_there_and_stay_between_rounds():
    machine = Machine()
    model = FakeModel(script(block("1"), block("2"), "Answer: 2"))
    run(program(machine), model, replace(TASK, files={"more.bin": b"\xff"}))
    first = {"data.csv": b"a\nb\n", "more.bin": b"\xff"}
    assert machine.files == [first, {**first, "1": b""}]
    assert "more.bin" in model.asked[0].system


@pytest.mark.parametrize(("code", "answer"), [(False, None), (True, "again\n")])
@pytest.mark.parametrize(
    ("rounds", "limits", "stop", "runs"),
    [
        (2, {}, "call_limit", 2),
        (6, {"max_calls": 1}, "call_limit", 1),  # a run is a call
        (6, {"max_turns": 2}, "turn_limit", 2),
    ],
)
def test_the_last_program_is_the_answer_when_rounds_calls_or_turns_run_out(code, answer, rounds, limits, stop, runs):
    machine, model = Machine(), FakeModel(lambda request: block("again"))
    (trajectory,) = run(program(machine, code=code, rounds=rounds), model, TASK, **limits)
    assert (trajectory.answer, trajectory.stop, len(machine.files)) == (answer, stop, runs)


def test_the_answer_may_be_the_code():
    model = FakeModel(script("Answer: done", block("x = 1"), "Answer: done"))
    (trajectory,) = run(program(Machine(), code=True), model, TASK)
    assert (trajectory.answer, trajectory.stop) == ("x = 1\n", "answered")
    assert "there is no program" in last(model.asked[1])


def test_a_limit_is_named_and_long_output_is_cut_in_the_middle():
    machine = Machine(slow=("timeout", "a" * 500 + "z" * 500, ""))
    model = FakeModel(script(block("slow"), "Answer: x"))
    run(program(machine, limit=100), model, TASK)
    shown = last(model.asked[1])
    assert "… 917 characters left out …" in shown
    assert shown.endswith("zz\nstopped: timeout\n</result>")
    assert shortened("abc", 3) == "abc"


@pytest.mark.parametrize(
    "closing",
    [
        "It printed:\n```text\n42\n```\nAnswer: 42",
        "```json\n{}\n```\nAnswer: 42",
        "It printed\n```\n42\n```\n**Answer:** 42",
    ],
)
def test_quoted_output_is_no_program(closing):
    """The end of a block in another language does not begin a program, and neither does output beside an answer."""
    assert read_code(closing) is None
    for code, answer in ((False, "42"), (True, "print(42)\n")):
        model = FakeModel(script(block("print(42)"), closing))
        (trajectory,) = run(program(Machine(), code=code), model, TASK)
        assert (trajectory.answer, len(trajectory.calls)) == (answer, 1)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```\nor\n```py\nb\n```", "b\n"),
        ("```\nc", "c"),
        ("no code", None),
        ("```python\nx = 1\n```\nwhich should print\n```\n1\n```", "x = 1\n"),
        ("```python3\nx = 1\n```\nThis sets x.", "x = 1\n"),
        ("```Python\nx = 1\n```", "x = 1\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
    ],
)
def test_the_program_is_the_last_block_of_python(text, code):
    assert read_code(text) == code


def test_it_runs_in_the_sandbox():
    count = "rows = open('data.csv').read().split()\nopen('n', 'w').write(str(len(rows)))\nprint(rows[9])"
    sandbox, model = Sandbox(), FakeModel(script(block(count), block("print(open('n').read())"), "Answer: 2"))
    machine = lambda code, files: sandbox.run(code, files=files, keep=True)  # noqa: E731
    (trajectory,) = run(program(machine), model, TASK)
    assert "IndexError" in trajectory.calls[0].result
    assert trajectory.calls[1].result == "2"


FACTS = {"program": "broken\n", "solution": "repaired\n"}
BROKEN = Assignment(Task("\n\nHuman: Repair it.\n\nAssistant:", FACTS), ())


def written_programs(behaviour: str, failing: tuple[str, ...], rounds: int = 6) -> list[str]:
    """The programs that an agent wrote of which these fail."""

    def run_code(code, files):
        return ran("error" if code in failing else "ok", stderr="E")

    def no_model():
        raise AssertionError("it asks no model")

    agent = build(ScriptedCode(behaviour, rounds), AgentResources(no_model, lambda: run_code, {}))
    (trajectory,) = agent.run_many([BROKEN], lambda position, trajectory: None)
    assert trajectory.answer == [call.arguments["code"] for call in trajectory.calls][-1]
    return [call.arguments["code"] for call in trajectory.calls]


@pytest.mark.parametrize(
    ("behaviour", "failing", "written"),
    [
        ("solves", ("broken\n",), ["repaired\n"]),
        ("unchanged", ("broken\n",), ["broken\n"]),
        ("reads_errors", ("broken\n",), ["broken\n", "repaired\n"]),
        ("reads_errors", (), ["broken\n"]),  # nothing has failed: there is nothing to read
        ("reads_errors", ("broken\n", "repaired\n"), ["broken\n", "repaired\n"]),
    ],
)
def test_what_is_written(behaviour, failing, written):
    assert written_programs(behaviour, failing) == written
