"""Agent that writes Python, reads the output of running it, and revises until it is done.

Programs run in the sandbox, each in a new process. Files that a program writes are available to the next one. A task
provides its own files in the metadata `files` (name → content, as bytes or text) or with its assignment. The metadata
`example_code` is code that runs after each program, such as a public example.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from rlhf_lab.core.text import well_formed
from rlhf_lab.core.tools import Call
from rlhf_lab.packs.agents.harness.program import AgentAttempt, AttemptFinished, ProgramAgent, Steps
from rlhf_lab.packs.agents.harness.resources import AgentResources, CodeRunner
from rlhf_lab.packs.agents.harness.settings import CodeExecutor
from rlhf_lab.packs.agents.harness.tool_use import ANSWER_LINE, Act, read_answer
from rlhf_lab.packs.code.rewards.extraction import certain_blocks, code_blocks
from rlhf_lab.packs.code.sandbox.outcome import ProgramOutcome

LEFT_OUT = "\n… {} characters left out …\n"
NO_PROGRAM = "error: there is no program; write one between ```python and ```"
TOOL = "python"
"""Name of the tool under which a trajectory records runs of programs."""


def code_executor(
    attempt: AgentAttempt, *, run_code: CodeRunner, rounds: int, answer_is_code: bool, output_chars: int
) -> Steps[str | None]:
    """Write code, run it, and read its output, until the model writes a turn without code."""
    prompts = attempt.model.prompts
    files = _files(attempt)
    example = attempt.task.metadata.get("example_code", "")
    system = prompts.code(answer_is_code=answer_is_code, files=list(files))
    messages = list(attempt.messages)
    code = None
    runs = 0
    while True:
        (model_output,) = yield [attempt.ask(messages, system=system)]
        program = read_code(model_output.text)
        # A turn without a program finishes the attempt, except before the first program if the answer has to be code.
        if program is None and answer_is_code and code is None:
            messages += [model_output.message, prompts.problem(NO_PROGRAM)]
            continue
        if program is None:
            if answer_is_code:
                return code
            return Act(model_output, answer=read_answer(model_output.text)).final_answer
        code = program
        if answer_is_code:
            attempt.draft = code  # at a limit, the last program is the answer, although it has not been run
        if runs == rounds:
            raise AttemptFinished("call_limit", attempt.draft)
        attempt.count_call()
        runs += 1
        # The example comes after the program, so that line numbers of tracebacks match the program.
        source = f"{program}\n{example}" if example else program
        ran = run_code(source, files)
        files = ran.next_files(files)
        failed = ran.status != "ok"
        output = output_of(ran, output_chars)
        call = Call(TOOL, {"code": program}, output, failed=failed)
        attempt.record(model_output, call)
        messages += [model_output.message, prompts.output(output, failed=failed)]


def _files(attempt: AgentAttempt) -> dict[str, bytes]:
    """Return the files of the task as bytes; files of the assignment override those of the metadata."""
    of_task = attempt.task.metadata.get("files") or {}
    files: Mapping[str, bytes | str] = {**of_task, **attempt.files}
    contents = {}
    for name, content in files.items():
        # Texts of tasks may contain lone surrogates, which cannot be encoded.
        contents[name] = well_formed(content).encode() if isinstance(content, str) else content
    return contents


def read_code(text: str) -> str | None:
    """Return the program of a turn: its last block of Python, or None if it has none.

    In a turn that also answers, a block that may be quoted output does not count as a program. A block without a
    closing fence was cut off; the text up to the cut counts as the program.
    """
    blocks = certain_blocks(text) if ANSWER_LINE.search(text) else code_blocks(text)
    return blocks[-1] if blocks else None


def output_of(ran: ProgramOutcome, max_chars: int) -> str:
    """Format the output of a program, and the kind of failure, in about `max_chars` characters."""
    parts = [ran.stdout.rstrip()]
    if ran.status != "ok":
        # If a program hit a limit, the limit explains more than the error output, so it comes last.
        limit = "" if ran.status == "error" else f"stopped: {ran.status}"
        parts += [ran.stderr.rstrip(), limit]
    text = "\n".join(filter(None, parts))
    return shortened(text or "(nothing)", max_chars)


def shortened(text: str, limit: int) -> str:
    """Shorten a text to about `limit` characters by leaving out its middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = LEFT_OUT.format(len(text) - 2 * half)
    return text[:half] + left_out + text[-half:]


def build(settings: CodeExecutor, resources: AgentResources) -> ProgramAgent:
    program = partial(
        code_executor,
        run_code=lambda code, files: resources.run_code(code, files),  # the first program opens the sandbox
        rounds=settings.rounds,
        answer_is_code=settings.answer == "code",
        output_chars=settings.output_chars,
    )
    identity = {**settings.identity(), "sandbox": dict(resources.limits)}
    return ProgramAgent("code_executor", program, resources.model, identity)
