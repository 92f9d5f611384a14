"""User-defined environments, and those of other libraries, as a corpus of tasks (`data=environment`).

There is nothing to imitate, so both responses of every `Pair` are empty. The environment's opening text belongs to the
prompt, so every task is started once while the data are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from rlhf_lab.core.episodes import Environment, Task
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.text import is_well_formed, well_formed_value
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.core.user_code import load_from_file
from rlhf_lab.data import prompts
from rlhf_lab.data.adapters import openenv, tool_methods, verifiers
from rlhf_lab.data.adapters.sessions import OPENING, EpisodeSession, SessionEnvironment
from rlhf_lab.data.file_settings import ForeignEnvironment
from rlhf_lab.data.loading import SourceReport, fingerprint, heldout, load_corpus
from rlhf_lab.data.rows import OTHER_FACTS, fingerprint_with_metadata
from rlhf_lab.data.transcript import render_prompt, to_conversation

OpenSession = Callable[[Task, int], EpisodeSession]


def build(settings: ForeignEnvironment) -> Corpus:
    """Load the tasks. Raise ConfigError if the environment cannot be created, DataError if it has no tasks."""
    environment = _environment(settings)
    tasks: dict[str, list[Task]] = {}
    for split in ("train", "test"):
        tasks[split] = [_well_formed(task) for task in environment.tasks(split)]
        if not tasks[split]:
            raise DataError(
                f"data.environment={settings.environment} has no tasks in the split {split}; add at least one"
            )
    train = [Pair(task.prompt, "", "") for task in tasks["train"]]
    test = [Pair(task.prompt, "", "") for task in tasks["test"]]
    metadata = {task.prompt: dict(task.metadata) for split in tasks.values() for task in split if task.metadata}
    # the environment's answers are not part of the rows, so its name and version identify them
    rows = fingerprint_with_metadata(fingerprint(train, test), metadata)
    content = f"{settings.style} {settings.environment} {settings.version} {rows}"
    return Corpus(
        name="environment",
        train=train,
        test=test,
        fingerprint=sha256(content.encode("utf-8", "surrogatepass")).hexdigest(),
        preferences=False,
        metadata=metadata,
        environment=environment,
    )


def _well_formed(task: Task) -> Task:
    """Return a task with well-formed texts. Environments are user code and may produce lone surrogates."""
    parts = [task.prompt, task.metadata]
    return task if is_well_formed(parts) else Task(*well_formed_value(parts))


def _environment(settings: ForeignEnvironment) -> Environment:
    where = f"data.environment={settings.environment}"
    if settings.style == "lab":
        environment = load_from_file(where, settings.environment)(**settings.arguments)
        # a protocol: any object with its methods qualifies
        if not isinstance(environment, Environment):
            raise ConfigError(
                f"{where} is no rlhf_lab.Environment; implement all of its methods: tasks, reset, step and grade"
            )
        return environment
    if settings.style == "verifiers":
        return _verifiers_environment(settings)
    tools: Sequence[Mapping[str, Any]] = ()
    if settings.style == "trl":
        factory = load_from_file(where, settings.environment)
        open_session: OpenSession = tool_methods.opener(factory, settings.arguments)
        # an instance only to describe its tools; every session creates its own
        tools = [tool.definition for tool in tool_methods.tools_of(factory(**settings.arguments)).values()]
    else:
        open_session = openenv.opener(settings.environment, settings.arguments, settings.action, settings.observation)
    corpus = load_corpus("environment", settings, partial(prompts.parse_row, settings=settings))
    _check_columns(corpus.report["all"])
    tasks = {
        split: [_task_with_greeting(corpus.task(prompt), open_session) for prompt in corpus.prompts(split)]
        for split in ("train", "test")
    }
    return SessionEnvironment(tasks, open_session, max_turns=settings.max_turns, tools=tools)


def _check_columns(report: LoadReport) -> None:
    """Raise DataError if rows with the same prompt differ in other columns: episodes would receive only one row's."""
    assert isinstance(report, SourceReport), "the report of rows of files"
    count = report.noted.get(OTHER_FACTS, 0)
    if count:
        raise DataError(
            f"data.path: {count} rows have the prompt of an earlier row but other columns, such as row "
            f"{report.examples[OTHER_FACTS]}. An episode receives the columns of its prompt, so it would never receive "
            "theirs; write another prompt in each row, or name the columns that do not differ with data.columns=[…]"
        )


def _task_with_greeting(task: Task, open_session: OpenSession) -> Task:
    """Return a task whose prompt ends with the opening text of its session."""
    # this session only yields the opening text, and episodes open new ones
    session = open_session(task, 0)
    opening = session.start()
    session.close()
    if not opening:
        return task
    messages, tools = to_conversation(task.prompt)
    last = messages[-1]
    if last["role"] != "user":
        raise DataError(
            f"the environment starts with the text {opening[:40]!r}, which is appended to the last message; end the "
            "prompt with a user message"
        )
    content = f"{last['content']}\n{opening}".strip()
    messages = [*messages[:-1], {**last, "content": content}]
    return Task(render_prompt(messages, tools), {**task.metadata, OPENING: opening})


def _verifiers_environment(settings: ForeignEnvironment) -> Environment:
    library = verifiers.load(settings.environment, settings.arguments)
    tasks = {split: [_task_of_row(row) for row in listed] for split, listed in verifiers.rows_of(library).items()}
    if not tasks["test"]:  # hold out tasks by a hash of their prompt, as for rows of files
        held_out = {task.prompt for task in tasks["train"] if heldout(task.prompt, settings.test_fraction)}
        tasks["test"] = [task for task in tasks["train"] if task.prompt in held_out]
        tasks["train"] = [task for task in tasks["train"] if task.prompt not in held_out]
    return SessionEnvironment(tasks, verifiers.opener(library, settings.timeout_s), max_turns=settings.max_turns)


def _task_of_row(row: Mapping[str, Any]) -> Task:
    simple = [{"role": str(message["role"]), "content": str(message["content"])} for message in row["prompt"]]
    return Task(render_prompt(simple), {**row, "prompt": simple})  # type: ignore[arg-type]
