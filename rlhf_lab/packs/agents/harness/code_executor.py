"""Writes Python, reads what running it gave, and revises, until it is done.

Programs run in the sandbox, each from its first line; the files that one leaves are there for the next. A task brings
files of its own as the fact `files` (name → content, as bytes or text) or with its assignment, and code that runs after
each program, such as a public example, as the fact `example_code`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from rlhf_lab.core.tools import Call
from rlhf_lab.packs.agents.harness.program import Attempt, Ended, ProgramAgent, Steps
from rlhf_lab.packs.agents.harness.settings import CodeExecutor
from rlhf_lab.packs.agents.harness.surroundings import CodeRunner, Ran, Surroundings
from rlhf_lab.packs.agents.harness.tool_use import Act, read_answer

BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
LEFT_OUT = "\n… {} characters left out …\n"
NO_PROGRAM = "error: there is no program; write one between ```python and ```"
TOOL = "python"
"""Name under which runs stand among the calls of a trajectory."""


def code_executor(
    attempt: Attempt, *, run_code: CodeRunner, rounds: int, answer_is_code: bool, output_chars: int
) -> Steps[str | None]:
    """Write code, run it, read what came of it."""
    prompts = attempt.model.prompts
    files = _files(attempt)
    example = attempt.task.facts.get("example_code", "")
    system = prompts.code(answer_is_code=answer_is_code, files=list(files))
    messages = list(attempt.messages)
    code = None
    runs = 0
    while True:
        (said,) = yield [attempt.ask(messages, system=system)]
        program = read_code(said.text)
        if program is None and answer_is_code and code is None:
            messages += [said.message, prompts.problem(NO_PROGRAM)]
            continue
        if program is None:
            return code if answer_is_code else Act(said, answer=read_answer(said.text)).final_answer
        code = program
        if answer_is_code:
            attempt.draft = code  # the last program is the answer at a limit, although nobody has seen it run
        if runs == rounds:
            raise Ended("call_limit", attempt.draft)
        attempt.count_call()
        runs += 1
        # behind the program, so that the line numbers of a traceback are the program's own
        ran = run_code(f"{program}\n{example}" if example else program, files)
        files = {**files, **ran.files}
        failed = ran.status != "ok"
        output = output_of(ran, output_chars)
        attempt.record(said, Call(TOOL, {"code": program}, output, failed=failed))
        messages += [said.message, prompts.output(output, failed=failed)]


def _files(attempt: Attempt) -> dict[str, bytes]:
    """The files of the task."""
    files: Mapping[str, bytes | str] = {**(attempt.task.facts.get("files") or {}), **attempt.files}
    return {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}


def read_code(text: str) -> str | None:
    """The program of a turn: its last block; None where it has none."""
    blocks = BLOCK.findall(text)
    return blocks[-1] if blocks else None


def output_of(ran: Ran, most_chars: int) -> str:
    """What a program printed, and where it failed how, in about so many characters."""
    parts = [ran.stdout.rstrip()]
    if ran.status != "ok":
        # of a program that ran into a limit, the limit says more than what it wrote
        parts += [ran.stderr.rstrip(), "" if ran.status == "error" else f"stopped: {ran.status}"]
    return shortened("\n".join(filter(None, parts)) or "(nothing)", most_chars)


def shortened(text: str, most: int) -> str:
    """A text of at most about `most` characters: the middle of a longer one is left out."""
    if len(text) <= most:
        return text
    half = most // 2
    return text[:half] + LEFT_OUT.format(len(text) - 2 * half) + text[-half:]


def build(settings: CodeExecutor, surroundings: Surroundings) -> ProgramAgent:
    def run_code(code: str, files: Mapping[str, bytes]) -> Ran:
        return surroundings.run_code(code, files)  # the sandbox is opened when the first program is run

    program = partial(
        code_executor,
        run_code=run_code,
        rounds=settings.rounds,
        answer_is_code=settings.answer == "code",
        output_chars=settings.output_chars,
    )
    identity = {**settings.identity(), "sandbox": dict(surroundings.limits)}
    return ProgramAgent("code_executor", program, surroundings.model, identity)
