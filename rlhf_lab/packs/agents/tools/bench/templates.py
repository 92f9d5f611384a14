"""A task with slots: filled by hand it is a task of the benchmark, filled by chance one of its siblings.

A template of tasks/*.yml:

    - id: bell_cast
      question: What does the bell {bell} weigh, in kilograms?
      slots:
        bell: [name, Orsu]                    # kind, and the value that was written by hand
        stone: [12..40, 31]                   # a whole number of this range
        keeper: [person, Anni Vorl]           # two names
        metal: [tin | lead, tin]              # one of these
        wrong: [misspelt bell, Osru]          # another slot's value with a letter swapped or left out
        kilograms: "= stone * 6"              # a formula of earlier slots
      facts: {"{bell}": {weight in stone: "{stone}"}}
      calls: ["search[{bell} ; weight in stone]", "calculate[{stone} * 6]"]
      answer: "{kilograms}"
      scorer: numeric

Names and numbers of one task are all different. Besides the facts of the template a base holds `DISTRACTORS` entities
that are drawn: what is found by naming any value is rarely right. A call that begins with "? " is optional.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import file_digest, fingerprint
from rlhf_lab.core.tools import Tool, call_tool
from rlhf_lab.data.text_calls import ACTION, read_move
from rlhf_lab.environments.maths.expressions import written
from rlhf_lab.packs.agents.tools.bench.fixtures import Fixture, fixture_tools
from rlhf_lab.packs.agents.tools.bench.formulas import Value, compute
from rlhf_lab.packs.agents.tools.bench.names import draw_name, draw_person, misspell
from rlhf_lab.packs.agents.tools.task_set import ExpectedCall, ToolTaskFacts

TASKS = Path(__file__).resolve().parent / "tasks"
CATEGORIES = (
    "tool_use",
    "multi_step",
    "failure_recovery",
    "long_horizon",
    "flaky",
    "ambiguous",
    "conflicting",
)
"""Each a file of `TASKS`, in the order of reports. The first three are AgentBench-Mini's 36 tasks."""
SLOT = re.compile(r"\{(\w+)\}")
RANGE = re.compile(r"(\d+)\.\.(\d+)")
OPTIONAL = "? "
DISTRACTORS = 4
MOST_TRIES = 200
FREE_TEXT = ("calculate", "sql", "retrieve")
"""Tools whose arguments can say the same in many ways: their calls are compared by what they give."""


def files_digest(categories: Iterable[str]) -> str:
    """SHA-256 of the task files of these categories."""
    return fingerprint({category: file_digest(TASKS / f"{category}.yml") for category in categories})


@dataclass(frozen=True)
class Template:
    """One entry of a task file; see the module. Texts and fixture have slots."""

    id: str
    category: str
    question: str
    slots: Mapping[str, list[Any] | str]
    calls: tuple[str, ...]
    answer: str
    scorer: str
    fixture: Mapping[str, Any]
    any_order: bool = False
    tolerance: float = 0.0
    unit: str = ""

    def canonical(self) -> ToolTaskFacts:
        """The task as it was written by hand."""
        values: dict[str, Value] = {}
        for name, slot in self.slots.items():
            values[name] = compute(slot[1:], values) if isinstance(slot, str) else _value(slot[1])
        return self._fill(self.id, values, Random(self.id), "test")

    def siblings(self, count: int, seed: int, split: str = "test") -> list[ToolTaskFacts]:
        """Siblings with different questions; the first ones are the same however many are drawn."""
        asked = {self.canonical()["question"]}
        siblings = []
        for index in range(count):
            facts = self._sibling(index, split, seed, asked)
            asked.add(facts["question"])
            siblings.append(facts)
        return siblings

    def _sibling(self, index: int, split: str, seed: int, asked: set[str]) -> ToolTaskFacts:
        for attempt in range(MOST_TRIES):
            rng = Random(f"{self.id} {split} {seed} {index} {attempt}")
            facts = self._fill(f"{self.id}/{index}", self._draw(rng, split), rng, split)
            if facts["question"] not in asked and not is_given_away(facts):
                return facts
        raise DataError(
            f"task {self.id}: no sibling {index} in {MOST_TRIES} tries, all had been asked or had their answer in the "
            "question; give its slots wider ranges"
        )

    def _draw(self, rng: Random, split: str) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for name, slot in self.slots.items():
            if isinstance(slot, str):
                values[name] = compute(slot[1:], values)
                continue
            value = draw_value(slot[0], rng, split, values)
            while value in values.values() and "|" not in slot[0]:
                value = draw_value(slot[0], rng, split, values)
            values[name] = value
        return values

    def _fill(self, id: str, values: Mapping[str, Value], rng: Random, split: str) -> ToolTaskFacts:
        fixture: Fixture = _filled(self.fixture, values)
        if fixture.get("facts"):
            fixture["facts"] = _texts(fixture["facts"]) | self._distractors(rng, split, values)
        tools = {tool.name: tool for tool in fixture_tools(fixture | {"busy": {}}, seed=0)}
        facts = ToolTaskFacts(
            id=id,
            template=self.id,
            category=self.category,
            question=str(_filled(self.question, values)),
            answer=str(_filled(self.answer, values)),
            scorer=self.scorer,
            calls=[self._expected_call(fill_text(call, values), tools) for call in self.calls],
            fixture=dict(fixture),
        )
        if self.any_order:
            facts["any_order"] = True
        if self.scorer == "numeric":
            facts["tolerance"] = self.tolerance
            facts["unit"] = self.unit
        return facts

    def _expected_call(self, text: str, tools: Mapping[str, Tool]) -> ExpectedCall:
        move = read_move(f"{ACTION} {text.removeprefix(OPTIONAL)}", tools)
        if move.name not in tools or move.arguments is None:
            raise DataError(f"task {self.id}: {text!r} is no call of {', '.join(tools)}; write tool[arguments]")
        expected = ExpectedCall(name=move.name, arguments=dict(move.arguments))
        if text.startswith(OPTIONAL):
            expected["optional"] = True
        call = call_tool(tools, move.name, move.arguments)
        if move.name in FREE_TEXT and not call.failed:
            expected["result"] = essence(move.name, call.result)
        return expected

    def _distractors(self, rng: Random, split: str, values: Mapping[str, Value]) -> dict[str, dict[str, str]]:
        """Entities with the relations of the template's entities, and values of the same kinds."""
        relations = {relation: value for entry in self.fixture["facts"].values() for relation, value in entry.items()}
        entries = {}
        for _ in range(DISTRACTORS):
            entity = _unused_name(rng, split, values)
            entry = {}
            for relation, value in relations.items():
                entry[fill_text(relation, values)] = self._like(value, rng, split, values)
            entries[entity] = entry
        return entries

    def _like(self, value: Any, rng: Random, split: str, values: Mapping[str, Value]) -> str:
        """Another value of the kind of this one; the same where it is no single slot."""
        single = SLOT.fullmatch(str(value))
        slot = self.slots[single[1]] if single else None
        if slot is None or isinstance(slot, str) or slot[0].startswith("misspelt"):
            return fill_text(str(value), values)
        return text_of(draw_value(slot[0], rng, split, values))


def draw_value(kind: str, rng: Random, split: str, values: Mapping[str, Value]) -> Value:
    """A value of a kind of slot. Raises DataError for a kind that does not exist."""
    numbers = RANGE.fullmatch(kind)
    if numbers:
        return Fraction(rng.randint(int(numbers[1]), int(numbers[2])))
    if kind.startswith("misspelt "):
        return misspell(str(values[kind.removeprefix("misspelt ")]), rng)
    if "|" in kind:
        return rng.choice([choice.strip() for choice in kind.split("|")])
    if kind == "name":
        return draw_name(rng, split)
    if kind == "person":
        return draw_person(rng, split)
    raise DataError(f"a slot of kind {kind!r}; kinds: name, person, 10..99, misspelt SLOT, one | another")


def is_given_away(facts: ToolTaskFacts) -> bool:
    """Whether the question has the answer in it, as whole words. What is missing is named there on purpose."""
    if facts["scorer"] == "refusal":
        return False
    answer = re.escape(facts["answer"].casefold())
    return re.search(rf"(?<!\w){answer}(?!\w)", facts["question"].casefold()) is not None


def essence(tool: str, result: str) -> str:
    """What counts of a result: of passages the title of the best, of a table its rows without their heading."""
    if tool == "retrieve":
        return result.partition(":")[0]
    return result.partition("\n")[2] if tool == "sql" and "\n" in result else result


def text_of(value: Value) -> str:
    return value if isinstance(value, str) else written(value)


def fill_text(text: str, values: Mapping[str, Value]) -> str:
    return SLOT.sub(lambda slot: text_of(values[slot[1]]), text)


def _value(given: Any) -> Value:
    """A value as the file has it."""
    return Fraction(str(given)) if isinstance(given, int | float) else str(given)


def _filled(value: Any, values: Mapping[str, Value]) -> Any:
    """A text, list or mapping with its slots filled. A text that is one slot with a whole number becomes a number."""
    if isinstance(value, str):
        single = SLOT.fullmatch(value)
        number = values[single[1]] if single else None
        return int(number) if isinstance(number, Fraction) and number.denominator == 1 else fill_text(value, values)
    if isinstance(value, Mapping):
        return {fill_text(str(key), values): _filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    return value


def _texts(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    return {entity: {key: str(value) for key, value in relations.items()} for entity, relations in facts.items()}


def _unused_name(rng: Random, split: str, values: Mapping[str, Value]) -> str:
    used = {word for value in values.values() if isinstance(value, str) for word in value.split()}
    name = draw_name(rng, split)
    while name in used:
        name = draw_name(rng, split)
    return name


FIXTURE_KEYS = ("facts", "moved", "passages", "tables", "busy", "unavailable")
KEYS = ("id", "question", "slots", "calls", "answer", "scorer", "any_order", "tolerance", "unit", *FIXTURE_KEYS)


def read_templates(category: str) -> list[Template]:
    """The templates of a file. Raises DataError with the file, the task and the key that is wrong."""
    path = TASKS / f"{category}.yml"
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [_read_template(entry, category, f"{path.name}, task {number}") for number, entry in enumerate(entries, 1)]


def _read_template(entry: Mapping[str, Any], category: str, where: str) -> Template:
    unknown = sorted(set(entry) - set(KEYS))
    missing = [key for key in ("id", "question", "slots", "calls", "answer", "scorer") if key not in entry]
    if unknown or missing:
        raise DataError(f"{where}: unknown keys {unknown}, missing keys {missing}; keys are {', '.join(KEYS)}")
    return Template(
        id=entry["id"],
        category=category,
        question=" ".join(entry["question"].split()),
        slots=entry["slots"],
        calls=tuple(entry["calls"]),
        answer=str(entry["answer"]),
        scorer=entry["scorer"],
        fixture={key: entry[key] for key in FIXTURE_KEYS if key in entry},
        any_order=entry.get("any_order", False),
        tolerance=float(entry.get("tolerance", 0.0)),
        unit=entry.get("unit", ""),
    )


@cache
def all_templates() -> tuple[Template, ...]:
    """Every template, category by category."""
    return tuple(template for category in CATEGORIES for template in read_templates(category))
