"""Environments of one's own, and those of other libraries, as a corpus of tasks (`data=environment`).

There is nothing to imitate: both replies of every `Pair` are empty. What the environment says at the start of an
episode belongs to the prompt, so every task is begun once while the data are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from rlhf_lab.core.episodes import Environment, Task
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.core.user_code import load_from_file
from rlhf_lab.data import prompts
from rlhf_lab.data.adapters import openenv, tool_methods, verifiers
from rlhf_lab.data.adapters.sessions import OPENING, Session, SessionEnvironment
from rlhf_lab.data.environment_settings import ForeignEnvironment
from rlhf_lab.data.facts import with_facts
from rlhf_lab.data.loading import fingerprint, held_out, load_corpus
from rlhf_lab.data.transcript import render_prompt, to_conversation

OpenSession = Callable[[Task, int], Session]


def build(settings: ForeignEnvironment) -> Corpus:
    """Raises ConfigError where the environment cannot be made, DataError where it has no tasks."""
    environment = _environment(settings)
    tasks = {split: list(environment.tasks(split)) for split in ("train", "test")}
    for split, listed in tasks.items():
        if not listed:
            raise DataError(f"data.environment={settings.environment} has no tasks of the split {split}")
    train, test = ([Pair(task.prompt, "", "") for task in tasks[split]] for split in ("train", "test"))
    facts = {task.prompt: dict(task.facts) for listed in tasks.values() for task in listed if task.facts}
    content = (
        f"{settings.style} {settings.environment} {settings.version} {with_facts(fingerprint(train, test), facts)}"
    )
    return Corpus(
        name="environment",
        train=train,
        test=test,
        fingerprint=sha256(content.encode("utf-8", "surrogatepass")).hexdigest(),
        preferences=False,
        facts=facts,
        environment=environment,
    )


def _environment(settings: ForeignEnvironment) -> Environment:
    where = f"data.environment={settings.environment}"
    if settings.style == "lab":
        environment = load_from_file(where, settings.environment)(**settings.arguments)
        if not isinstance(environment, Environment):
            raise ConfigError(f"{where} lacks one of the methods of rlhf_lab.Environment: tasks, reset, step, grade")
        return environment
    if settings.style == "verifiers":
        return _verifiers_environment(settings)
    tools: Sequence[Mapping[str, Any]] = ()
    if settings.style == "trl":
        factory = load_from_file(where, settings.environment)
        open_session: OpenSession = tool_methods.opener(factory, settings.arguments)
        tools = [tool.definition for tool in tool_methods.tools_of(factory(**settings.arguments)).values()]
    else:
        open_session = openenv.opener(settings.environment, settings.arguments, settings.action, settings.observation)
    corpus = load_corpus("environment", settings, partial(prompts.parse_row, settings=settings))
    tasks = {
        split: [_begun(corpus.task(prompt), open_session) for prompt in corpus.prompts(split)]
        for split in ("train", "test")
    }
    return SessionEnvironment(tasks, open_session, max_turns=settings.max_turns, tools=tools)


def _begun(task: Task, open_session: OpenSession) -> Task:
    """A task whose prompt ends with what its session says at the start."""
    session = open_session(task, 0)
    opening = session.start()
    session.close()
    if not opening:
        return task
    messages, tools = to_conversation(task.prompt)
    last = messages[-1]
    if last["role"] != "user":
        raise DataError(f"the environment begins with {opening[:40]!r}, and the prompt does not end with a user's turn")
    messages = [*messages[:-1], {**last, "content": f"{last['content']}\n{opening}".strip()}]
    return Task(render_prompt(messages, tools), {**task.facts, OPENING: opening})


def _verifiers_environment(settings: ForeignEnvironment) -> Environment:
    library = verifiers.load(settings.environment, settings.arguments)
    rows = verifiers.rows_of(library)
    tasks = {split: [_task_of_row(row) for row in listed] for split, listed in rows.items()}
    if not tasks["test"]:  # held out as rows of files are
        is_test = {task.prompt: held_out(task.prompt, settings.test_fraction) for task in tasks["train"]}
        tasks = {
            split: [task for task in tasks["train"] if is_test[task.prompt] == (split == "test")]
            for split in ("train", "test")
        }
    open_session = verifiers.opener(library, settings.timeout_s)
    return SessionEnvironment(tasks, open_session, max_turns=settings.max_turns)


def _task_of_row(row: Mapping[str, Any]) -> Task:
    messages: Sequence[Any] = row["prompt"]
    plain = [{"role": str(message["role"]), "content": str(message["content"])} for message in messages]
    return Task(render_prompt(plain), {**row, "prompt": plain})  # type: ignore[arg-type]
