"""The embedded tool world as a corpus (`data=tools`). Needs no download; see `packs/agents/tools/`.

A training row is what one demonstration says in one role: a conversation with the tools (act), or a prompt and a reply.
`Pair.meta` has `role`, `category`, `answer` and `correct_chosen`: whether the demonstration ends with the right answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.data.loading import fingerprint
from rlhf_lab.data.text_calls import ANSWER
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.packs.agents.tools.bases import BaseSize
from rlhf_lab.packs.agents.tools.demonstrations import NONE, Demonstration, Habits
from rlhf_lab.packs.agents.tools.kinds import Compute, DrawnTask
from rlhf_lab.packs.agents.tools.roles import Role, prompt_of, spaced_call
from rlhf_lab.packs.agents.tools.settings import Tools
from rlhf_lab.packs.agents.tools.world import VERSION, ToolWorld, ToolWorldSize, is_right


def build(settings: Tools) -> Corpus:
    """Draw the corpus of a tool world. `environment` is the `ToolWorld` itself."""
    world = world_of(settings)
    habits = Habits(**vars(settings.habits))
    splits: dict[str, list[Pair]] = {}
    reports: dict[str, LoadReport] = {}
    for split in ("train", "test"):
        splits[split] = [row for task in world.tasks(split) for row in _rows(world, task, settings.roles, habits)]
        count = len(splits[split])
        reports[split] = LoadReport(rows=count, kept=count, statistics=statistics(splits[split]))
    content = f"tool world {VERSION} {settings!r} {fingerprint(splits['train'], splits['test'])}"
    return Corpus(
        name="tools",
        train=splits["train"],
        test=splits["test"],
        fingerprint=sha256(content.encode()).hexdigest(),
        preferences=False,
        report=reports,
        environment=world,
    )


def world_of(settings: Tools) -> ToolWorld:
    """The world that these settings describe."""
    size = ToolWorldSize(
        kinds=settings.kinds,
        base=BaseSize(settings.entities, settings.relations, settings.redirect),
        busy=settings.busy,
        train_tasks=settings.train_tasks,
        test_tasks=settings.test_tasks,
        test_kinds=settings.test_kinds or (),
    )
    return ToolWorld(size, *settings.split_seeds())


def statistics(pairs: Sequence[Pair]) -> dict[str, float]:
    """Of the rows of a split."""
    acting = [pair.meta for pair in pairs if pair.meta["role"] == "act"]
    if not acting:
        return {}
    return {
        "share of demonstrations with the right answer": float(np.mean([meta["correct_chosen"] for meta in acting])),
        "calls per demonstration": float(np.mean([meta["calls"] for meta in acting])),
    }


def _rows(world: ToolWorld, task: Task, roles: Mapping[str, float], habits: Habits) -> Iterator[Pair]:
    """The rows of a task, all of one role: a conversation, or what is said when it is asked for piece by piece."""
    rng = world.random("role", task)
    role: Role = rng.choices(list(roles), list(roles.values()))[0]  # type: ignore[assignment]
    demonstration = world.demonstrate(task, habits if role == "act" else NONE)
    correct = int(is_right(task.facts, demonstration.answer))
    meta = {"role": role, "category": task.facts["category"], "answer": task.facts["answer"], "correct_chosen": correct}
    if role == "act":
        yield _conversation(task, demonstration, meta)
        return
    drawn = world.draw(task.facts["split"], task.facts["number"])
    for prompt, reply in ROLE_ROWS[role](drawn, demonstration):
        yield Pair(render_prompt([{"role": "user", "content": prompt}]), reply, "", meta)


def _conversation(task: Task, demonstration: Demonstration, meta: Mapping[str, Any]) -> Pair:
    """A whole conversation, every turn of which is learned."""
    *said, last = demonstration.messages()
    messages: list[Message] = [{"role": "user", "content": task.facts["question"]}, *said]
    calls = len(demonstration.turns) - 1
    return Pair(render_prompt(messages), last["content"], "", {**meta, "calls": calls, "learn_from": 1})


Written = list[tuple[str, str]]
"""Prompts of a role, and the replies to them."""


def _answer(task: DrawnTask, demonstration: Demonstration) -> Written:
    return [(prompt_of("answer", task.question), f"{ANSWER} {demonstration.answer}")]


def _plan(task: DrawnTask, demonstration: Demonstration) -> Written:
    """The steps as calls, as they look before anything was looked up: redirects are not known."""
    lines = []
    for number, step in enumerate(task.steps, start=1):
        if isinstance(step, Compute):
            call = spaced_call("calculate", [f"#1 {step.sign} #2"])
        else:
            subject = step.subject if isinstance(step.subject, str) else f"#{step.subject + 1}"
            call = spaced_call(step.tool, [subject] if step.tool == "retrieve" else [subject, step.relation])
        lines.append(f"{number}. {call}")
    return [(prompt_of("plan", task.question), "\n".join(lines))]


def _split(task: DrawnTask, demonstration: Demonstration) -> Written:
    return [(prompt_of("split", task.question), json.dumps(list(task.parts or (task.question,))))]


def _step(task: DrawnTask, demonstration: Demonstration) -> Written:
    return [(prompt_of("step", task.question, notes=turn.notes), turn.text) for turn in demonstration.turns]


def _note(task: DrawnTask, demonstration: Demonstration) -> Written:
    rows = []
    for turn, after in pairwise(demonstration.turns):
        assert turn.call is not None
        call = spaced_call(turn.call.name, list(turn.call.arguments.values()))
        prompt = prompt_of("note", task.question, notes=turn.notes, call=call, result=turn.call.result)
        rows.append((prompt, after.notes))
    return rows


def _combine(task: DrawnTask, demonstration: Demonstration) -> Written:
    """From all values that the steps of a plan gave, and from the answers of the parts alone."""
    values = demonstration.values
    if not values:  # a step failed
        return []
    answer = f"{ANSWER} {demonstration.answer}"
    rows = [(prompt_of("combine", task.question, found=values), answer)]
    found = values[: len(task.parts)] if task.parts else values[-1:]
    if len(found) < len(values):
        computed = [turn.text for turn in demonstration.turns if turn.call and turn.call.name == "calculate"]
        rows.append((prompt_of("combine", task.question, found=found), computed[0] if computed else answer))
    return rows


ROLE_ROWS: Mapping[str, Callable[[DrawnTask, Demonstration], Written]] = {
    "answer": _answer,
    "plan": _plan,
    "split": _split,
    "step": _step,
    "note": _note,
    "combine": _combine,
}
