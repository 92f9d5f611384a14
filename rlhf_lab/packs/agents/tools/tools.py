"""Corpus of the built-in tool world (`data=tools`). It needs no download; see `packs/agents/tools/`.

A training row is a demonstration in one role: a conversation with the tools (act), or a prompt and a response.
`Pair.meta` has `role`, `category`, `answer` and `correct_chosen`: 1 if the demonstration ends with the right answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.data.loading import world_corpus
from rlhf_lab.data.text_calls import ANSWER
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.packs.agents.tools.demonstrations import (
    NONE,
    DemonstratedTurn,
    ToolDemonstration,
    can_be_led,
    is_chain,
    led_turns,
    messages_of,
)
from rlhf_lab.packs.agents.tools.kinds import Compute, Lookup, SampledTask, find
from rlhf_lab.packs.agents.tools.roles import Role, prompt_of, spaced_call
from rlhf_lab.packs.agents.tools.settings import Tools
from rlhf_lab.packs.agents.tools.world import VERSION, ToolWorld, is_right


def build(settings: Tools) -> Corpus:
    """Sample the corpus of a tool world. Its `environment` is the `ToolWorld`."""
    world = ToolWorld(settings)
    splits: dict[str, list[Pair]] = {}
    reports: dict[str, LoadReport] = {}
    for split in ("train", "test"):
        rows: list[Pair] = []
        for task in world.tasks(split):
            rows += _rows(world, task, settings)
        splits[split] = rows
        reports[split] = LoadReport(rows=len(rows), kept=len(rows), statistics=statistics(rows))
    described = f"tool world {VERSION}"
    return world_corpus("tools", described, settings, splits, reports, preferences=False, environment=world)


def statistics(pairs: Sequence[Pair]) -> dict[str, float]:
    acting = [pair.meta for pair in pairs if pair.meta["role"] == "act"]
    if not acting:
        return {}
    right = [meta["correct_chosen"] for meta in acting]
    calls = [meta["calls"] for meta in acting]
    return {
        "share of demonstrations with the right answer": float(np.mean(right)),
        "calls per demonstration": float(np.mean(calls)),
    }


def _rows(world: ToolWorld, task: Task, settings: Tools) -> Iterator[Pair]:
    """Yield the rows of a task, all of one role: a conversation, or single prompts with their responses."""
    rng = world.random("role", task)
    role: Role = rng.choices(list(settings.roles), list(settings.roles.values()))[0]  # type: ignore[assignment]
    # `habits` are mistakes of the role act; the other roles are taught without mistakes.
    demonstration = world.demonstrate(task, settings.habits if role == "act" else NONE)
    correct = int(is_right(task.metadata, demonstration.answer))
    meta = {
        "role": role,
        "category": task.metadata["category"],
        "answer": task.metadata["answer"],
        "correct_chosen": correct,
    }
    if role == "act":
        yield _conversation(task.metadata["question"], demonstration.turns, meta)
        return
    selected = world.draw(task.metadata["split"], task.metadata["number"])
    if role == "lead":
        if can_be_led(selected):
            turns = led_turns(selected, demonstration.values, demonstration.answer)
            yield _conversation(prompt_of("lead", selected.question), turns, meta)
        return
    for prompt, response in ROLE_ROWS[role](selected, demonstration):
        message: Message = {"role": "user", "content": prompt}
        yield Pair(render_prompt([message]), response, "", meta)


def _conversation(question: str, turns: Sequence[DemonstratedTurn], meta: Mapping[str, Any]) -> Pair:
    """Return a conversation in which all assistant turns are trained on."""
    *earlier, last = messages_of(turns)
    messages: list[Message] = [{"role": "user", "content": question}, *earlier]
    columns = {
        **meta,
        "calls": len(turns) - 1,  # the last turn answers
        "learn_from": 1,  # index of the first message after the question
    }
    return Pair(render_prompt(messages), last["content"], "", columns)


Written = list[tuple[str, str]]
"""(prompt, response) for each row of a role."""


def _plan(task: SampledTask, demonstration: ToolDemonstration) -> Written:
    """Return the steps as calls. They do not follow redirects, because a planner has not looked anything up yet."""
    lines = []
    for number, step in enumerate(task.steps, start=1):
        if isinstance(step, Compute):
            call = spaced_call("calculate", [f"#1 {step.sign} #2"])
        else:
            subject = step.subject if isinstance(step.subject, str) else f"#{step.subject + 1}"
            # `retrieve` returns all facts of an entity, so it has no argument for the relation.
            arguments = [subject] if step.tool == "retrieve" else [subject, step.relation]
            call = spaced_call(step.tool, arguments)
        lines.append(f"{number}. {call}")
    prompt = prompt_of("plan", task.question)
    return [(prompt, "\n".join(lines))]


def queries_of(task: SampledTask) -> list[str]:
    """Return the queries of a planner: the parts of a task, the hops of a chain, or the question itself."""
    if task.parts:
        return list(task.parts)
    if not (is_chain(task) and can_be_led(task)):
        return [task.question]
    queries = []
    for step in task.steps:
        assert isinstance(step, Lookup)
        entity = step.subject if isinstance(step.subject, str) else f"#{step.subject + 1}"
        queries.append(find(step.relation, entity))
    return queries


def _led(task: SampledTask, demonstration: ToolDemonstration) -> list[DemonstratedTurn]:
    """Return the turns of a scripted coordinator; empty if the task has a step that is not a search."""
    if not can_be_led(task):
        return []
    return led_turns(task, demonstration.values, demonstration.answer)


def _steps(role: Role, task: SampledTask, turns: Sequence[DemonstratedTurn]) -> Written:
    """Return one row per turn: the prompt has the notes before the turn, and the response is the turn."""
    return [(prompt_of(role, task.question, notes=turn.notes), turn.text) for turn in turns]


def _notes(role: Role, task: SampledTask, turns: Sequence[DemonstratedTurn]) -> Written:
    """Return one row per call. It trains a model to write new notes from the old notes, a call and its result."""
    rows = []
    for turn, after in pairwise(turns):
        call = turn.call
        assert call is not None, "every turn before the last one has a call"
        arguments = call.arguments
        prompt = prompt_of(
            role,
            task.question,
            notes=turn.notes,
            call=spaced_call(call.name, list(arguments.values())),
            result=call.result,
        )
        rows.append((prompt, after.notes))
    return rows


def _combine(task: SampledTask, demonstration: ToolDemonstration) -> Written:
    """Return rows for combining all values of a plan's steps, and for combining the answers to a planner's queries."""
    values = demonstration.values
    if not values:  # a step failed, so there is nothing to combine
        return []
    answer = f"{ANSWER} {demonstration.answer}"
    rows = [(prompt_of("combine", task.question, found=values), answer)]
    queries = queries_of(task)
    # The last value is the answer of a task that cannot be split.
    found = values[: len(queries)] if len(queries) > 1 else values[-1:]
    if len(found) < len(values):
        # The parts' answers lack the result of the calculation, so the response is the call that computes it.
        computing = [turn.text for turn in demonstration.turns if turn.call and turn.call.name == "calculate"]
        response = computing[0] if computing else answer
        rows.append((prompt_of("combine", task.question, found=found), response))
    return rows


ROLE_ROWS: Mapping[str, Callable[[SampledTask, ToolDemonstration], Written]] = {
    "answer": lambda task, shown: [(prompt_of("answer", task.question), f"{ANSWER} {shown.answer}")],
    "plan": _plan,
    "split": lambda task, shown: [(prompt_of("split", task.question), json.dumps(queries_of(task)))],
    "step": lambda task, shown: _steps("step", task, shown.turns),
    "note": lambda task, shown: _notes("note", task, shown.turns),
    "combine": _combine,
    "lead_step": lambda task, shown: _steps("lead_step", task, _led(task, shown)),
    "lead_note": lambda task, shown: _notes("lead_note", task, _led(task, shown)),
}
"""Role of single prompts → function that returns its rows."""
