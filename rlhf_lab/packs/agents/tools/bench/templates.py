"""Task templates with slots. Filled with hand-written values, a template is a task; with samples, one of its siblings.

A template of tasks/*.yml:

    - id: bell_cast
      question: What does the bell {bell} weigh, in kilograms?
      slots:
        bell: [name, Orsu]                    # kind, and the hand-written value
        stone: [12..40, 31]                   # an integer in this range
        keeper: [person, Anni Vorl]           # two names
        metal: [tin | lead, tin]              # one of these
        wrong: [misspelt bell, Osru]          # another slot's value with a letter swapped or left out
        kilograms: "= stone * 6"              # a formula of earlier slots
      facts: {"{bell}": {weight in stone: "{stone}"}}
      calls: ["search[{bell} ; weight in stone]", "calculate[{stone} * 6]"]
      answer: "{kilograms}"
      scorer: numeric

Names and numbers of one task are all different. In addition to the facts of the template, a base contains
`DISTRACTORS` sampled entities, so that naming an arbitrary value is rarely right. A call that starts with "? " is
optional. Names are invented, so that no model can know an answer from its training data.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import file_digest, fingerprint
from rlhf_lab.core.tools import Tool, call_tool
from rlhf_lab.core.yaml_files import read_yaml
from rlhf_lab.data.text_calls import ACTION, read_move
from rlhf_lab.environments.maths.expressions import format_decimal
from rlhf_lab.environments.splits import split_of
from rlhf_lab.packs.agents.tools.bench.fixtures import Fixture, fixture_tools
from rlhf_lab.packs.agents.tools.task_set import ExpectedCall, ToolTaskRow

Value = str | Fraction

TASKS = Path(__file__).resolve().parent / "tasks"
CATEGORIES = ("tool_use", "multi_step", "failure_recovery", "long_horizon", "flaky", "ambiguous", "conflicting")
"""Names of the files in `TASKS`, in the order of reports. The first three are the 36 tasks of AgentBench-Mini."""
SLOT = re.compile(r"\{(\w+)\}")  # {name} in a text of a template
RANGE = re.compile(r"(\d+)\.\.(\d+)")  # 10..99, a kind of slot
OPTIONAL = "? "  # prefix of a call that a solution may leave out
DISTRACTORS = 4  # entities of a knowledge base besides those of the question
MOST_TRIES = 200  # variants that repeat a question or give the answer away, before it is an error
FREE_TEXT = ("calculate", "sql", "retrieve")
"""Tools whose arguments can express the same request in many ways, so their calls are compared by their results."""

_ONSETS = "b br bl d dr f fr fl g gr gl h k kl kr l m n p pr qu r s sk sl sn st t th tr v w y z zw"
_VOWELS = "a e i o u ae ei ou ea oa"
_MIDDLES = "bb dd ff gg ld lf lk lm lv mb mm mp nd ndr nn nt pp rb rd rk rl rm rt rv ss sk st tt vr x zz"
_ENDINGS = "a ack ald an ard e eck el en er eth ic il in ir is o ock ol ond or oth um und une ur yr yx"
SOUNDS = tuple(sounds.split() for sounds in (_ONSETS, _VOWELS, _MIDDLES, _ENDINGS))
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
COMPARISONS = {ast.Gt: operator.gt, ast.Lt: operator.lt, ast.Eq: operator.eq}
FUNCTIONS = {"min": min, "max": max}


def files_digest(categories: Iterable[str]) -> str:
    """Return the SHA-256 digest of the task files of these categories."""
    return fingerprint({category: file_digest(TASKS / f"{category}.yml") for category in categories})


@dataclass(frozen=True)
class Template:
    """One entry of a task file; see the module docstring. Texts and fixture contain slots."""

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

    def canonical(self) -> ToolTaskRow:
        """Return the hand-written task."""
        values: dict[str, Value] = {}
        for name, slot in self.slots.items():
            if isinstance(slot, str):
                values[name] = compute(slot[1:], values)
            else:
                values[name] = _value(slot[1])
        return self._fill(self.id, values, Random(self.id), "test")

    def siblings(self, count: int, seed: int, split: str = "test") -> list[ToolTaskRow]:
        """Sample `count` tasks with different questions from this template. A larger `count` only appends tasks."""
        # No sibling repeats the hand-written question.
        seen_questions = {self.canonical()["question"]}
        siblings = []
        for index in range(count):
            metadata = self._sibling(index, split, seed, seen_questions)
            seen_questions.add(metadata["question"])
            siblings.append(metadata)
        return siblings

    def _sibling(self, index: int, split: str, seed: int, asked: set[str]) -> ToolTaskRow:
        for attempt in range(MOST_TRIES):
            # Each try has its own random numbers, so that sibling `index` does not depend on the other siblings.
            rng = Random(f"{self.id} {split} {seed} {index} {attempt}")
            values = self._draw(rng, split)
            metadata = self._fill(f"{self.id}/{index}", values, rng, split)
            if metadata["question"] not in asked and not is_leaked(metadata):
                return metadata
        raise DataError(
            f"task {self.id}: no variant {index} in {MOST_TRIES} tries, because every try repeated a "
            "question or contained its answer in the question; give the slots of the template wider ranges"
        )

    def _draw(self, rng: Random, split: str) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for name, slot in self.slots.items():
            if isinstance(slot, str):  # a formula, which follows from earlier slots
                values[name] = compute(slot[1:], values)
                continue
            kind = slot[0]
            value = draw_value(kind, rng, split, values)
            # Names and numbers are all different; a choice may repeat, because it has few values.
            while value in values.values() and "|" not in kind:
                value = draw_value(kind, rng, split, values)
            values[name] = value
        return values

    def _fill(self, id: str, values: Mapping[str, Value], rng: Random, split: str) -> ToolTaskRow:
        fixture: Fixture = _filled(self.fixture, values)
        if fixture.get("facts"):
            own_facts = _texts(fixture["facts"])
            fixture["facts"] = own_facts | self._distractors(rng, split, values)
        # No tool is busy here: the expected results are those of successful calls.
        tools = {tool.name: tool for tool in fixture_tools(fixture | {"busy": {}}, seed=0)}
        calls = [self._expected_call(fill_text(call, values), tools) for call in self.calls]
        metadata = ToolTaskRow(
            id=id,
            template=self.id,
            category=self.category,
            question=str(_filled(self.question, values)),
            answer=str(_filled(self.answer, values)),
            scorer=self.scorer,
            calls=calls,
            fixture=dict(fixture),
        )
        if self.any_order:
            metadata["any_order"] = True
        if self.scorer == "numeric":
            metadata["tolerance"] = self.tolerance
            metadata["unit"] = self.unit
        return metadata

    def _expected_call(self, text: str, tools: Mapping[str, Tool]) -> ExpectedCall:
        written = text.removeprefix(OPTIONAL)
        move = read_move(f"{ACTION} {written}", tools)
        if move.name not in tools or move.arguments is None:
            known = ", ".join(tools)
            raise DataError(f"task {self.id}: {text!r} is not a call of {known}; write tool[arguments]")
        expected = ExpectedCall(name=move.name, arguments=dict(move.arguments))
        if text.startswith(OPTIONAL):
            expected["optional"] = True
        call = call_tool(tools, move.name, move.arguments)
        if move.name in FREE_TEXT and not call.failed:
            expected["result"] = essential_result(move.name, call.result)
        return expected

    def _distractors(self, rng: Random, split: str, values: Mapping[str, Value]) -> dict[str, dict[str, str]]:
        """Sample distractors: entities with the relations of the template's entities and values of the same kinds."""
        relations: dict[str, Any] = {}
        for entry in self.fixture["facts"].values():
            relations |= entry
        entries = {}
        # Every distractor has all relations, so that a search for the relation alone does not find the answer.
        for _ in range(DISTRACTORS):
            entity = _unused_name(rng, split, values)
            entry = {
                fill_text(relation, values): self._like(value, rng, split, values)
                for relation, value in relations.items()
            }
            entries[entity] = entry
        return entries

    def _like(self, value: Any, rng: Random, split: str, values: Mapping[str, Value]) -> str:
        """Return a distractor's value in place of a template's value: a new sample if the value is a single slot, else
        the same value.
        """
        single = SLOT.fullmatch(str(value))
        slot = self.slots[single[1]] if single else None
        # Formulas and misspelt names depend on other slots, so a distractor cannot have its own.
        if slot is None or isinstance(slot, str) or slot[0].startswith("misspelt"):
            return fill_text(str(value), values)
        return text_of(draw_value(slot[0], rng, split, values))


def draw_value(kind: str, rng: Random, split: str, values: Mapping[str, Value]) -> Value:
    """Sample a value for a kind of slot. Raise DataError if the kind does not exist."""
    numbers = RANGE.fullmatch(kind)
    if numbers:
        low, high = int(numbers[1]), int(numbers[2])
        return Fraction(rng.randint(low, high))
    if kind.startswith("misspelt "):
        correct = values[kind.removeprefix("misspelt ")]
        return misspell(str(correct), rng)
    if "|" in kind:
        choices = [choice.strip() for choice in kind.split("|")]
        return rng.choice(choices)
    if kind == "name":
        return draw_name(rng, split)
    if kind == "person":
        return f"{draw_name(rng, split)} {draw_name(rng, split)}"
    raise DataError(f"unknown kind of slot {kind!r}; use name, person, 10..99, misspelt SLOT, or one | another")


def is_leaked(metadata: ToolTaskRow) -> bool:
    """Return True if the question contains the answer as words. Return False for a task that requires a refusal, whose
    question names the missing thing on purpose.
    """
    if metadata["scorer"] == "refusal":
        return False
    answer = re.escape(metadata["answer"].casefold())
    question = metadata["question"].casefold()
    return re.search(rf"(?<!\w){answer}(?!\w)", question) is not None


def essential_result(tool: str, result: str) -> str:
    """Return the relevant part of a result: the title of the best passage, or the rows of a table without heading."""
    if tool == "retrieve":
        return result.partition(":")[0]
    if tool == "sql" and "\n" in result:
        return result.partition("\n")[2]
    return result


def text_of(value: Value) -> str:
    return value if isinstance(value, str) else format_decimal(value)


def fill_text(text: str, values: Mapping[str, Value]) -> str:
    return SLOT.sub(lambda slot: text_of(values[slot[1]]), text)


def _value(provided: Any) -> Value:
    """Convert a hand-written value of a task file: a number to an exact fraction, anything else to text."""
    if isinstance(provided, int | float):
        return Fraction(str(provided))  # by its decimal text, so that 0.1 is exactly 1/10
    return str(provided)


def _filled(value: Any, values: Mapping[str, Value]) -> Any:
    """Fill the slots in a text, list or mapping. A text that is a single slot with an integer becomes an integer."""
    if isinstance(value, str):
        single = SLOT.fullmatch(value)
        number = values[single[1]] if single else None
        if isinstance(number, Fraction) and number.denominator == 1:
            return int(number)
        return fill_text(value, values)
    if isinstance(value, Mapping):
        return {fill_text(str(key), values): _filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    return value


def _texts(metadata: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    return {entity: {key: str(value) for key, value in relations.items()} for entity, relations in metadata.items()}


def _unused_name(rng: Random, split: str, values: Mapping[str, Value]) -> str:
    # The words of a person's name count one by one, as a distractor has a name of one word.
    used: set[str] = set()
    for value in values.values():
        if isinstance(value, str):
            used.update(value.split())
    name = draw_name(rng, split)
    while name in used:
        name = draw_name(rng, split)
    return name


FIXTURE_KEYS = ("facts", "moved", "passages", "tables", "busy", "unavailable")
REQUIRED_KEYS = ("id", "question", "slots", "calls", "answer", "scorer")
KEYS = (*REQUIRED_KEYS, "any_order", "tolerance", "unit", *FIXTURE_KEYS)


def read_templates(category: str) -> list[Template]:
    """Read the templates of a file. Raise DataError, which names the file, the task and the key, if one is wrong."""
    path = TASKS / f"{category}.yml"
    return [
        _read_template(entry, category, f"{path.name}, task {number}")
        for number, entry in enumerate(read_yaml(path), start=1)
    ]


def _read_template(entry: Mapping[str, Any], category: str, where: str) -> Template:
    unknown = sorted(set(entry) - set(KEYS))
    missing = [key for key in REQUIRED_KEYS if key not in entry]
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
    return tuple(template for category in CATEGORIES for template in read_templates(category))


def draw_name(rng: Random, split: str) -> str:
    """Sample one word such as "Brennol" out of about 300,000; the names of `train` and `test` are disjoint."""
    for _ in range(MOST_TRIES):
        letters = [rng.choice(sounds) for sounds in SOUNDS]
        name = "".join(letters).capitalize()
        if split_of(name) == split:
            return name
    raise ValueError(f"no name of the split {split!r} in {MOST_TRIES} tries; use the split train or test")


def misspell(name: str, rng: Random) -> str:
    """Swap two neighbouring letters of a name, or leave one out; the first letter stays."""
    # A position is followed by another letter of the same word, so that a swap does not move a space.
    inner = range(1, len(name) - 1)
    positions = [at for at in inner if name[at : at + 2].isalpha()]
    for _ in range(MOST_TRIES):
        at = rng.choice(positions)
        before, after = name[:at], name[at + 2 :]
        first, second = name[at], name[at + 1]
        swapped = before + second + first + after
        shortened = before + second + after
        wrong = rng.choice((swapped, shortened))
        # Swapping two equal letters changes nothing, so it is tried again.
        if wrong != name:
            return wrong
    raise ValueError(f"{name!r} has no two different neighbouring letters to swap; use a longer name")


def compute(formula: str, values: Mapping[str, Value]) -> Value:
    """Return the exact value of a formula such as "first if n > m else second". Raise ValueError if it has none.

    The supported subset of Python's expressions is evaluated on the syntax tree. It contains nothing that could call or
    access other code.
    """
    try:
        tree = ast.parse(formula.strip(), mode="eval")
        return _evaluated(tree.body, values)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{formula!r} is not a valid formula of {', '.join(values)}: {error}") from None


def _evaluated(node: ast.expr, values: Mapping[str, Value]) -> Value:
    match node:
        case ast.Name():
            return values[node.id]
        # Fraction, because the answers of tasks have to be exact
        case ast.Constant(value=int() as index):
            return Fraction(index)
        case ast.Constant(value=str() as text):
            return text
        case ast.BinOp():
            left, right = _evaluated(node.left, values), _evaluated(node.right, values)
            apply = OPERATORS[type(node.op)]
            return apply(left, right)
        case ast.IfExp():
            branch = node.body if _holds(node.test, values) else node.orelse
            return _evaluated(branch, values)
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            function = FUNCTIONS[name]
            return function(_evaluated(argument, values) for argument in node.args)
    raise TypeError(f"{ast.unparse(node)} is not allowed")


def _holds(node: ast.expr, values: Mapping[str, Value]) -> bool:
    match node:
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            compare = COMPARISONS[type(comparison)]
            return bool(compare(_evaluated(left, values), _evaluated(right, values)))
    raise TypeError(f"{ast.unparse(node)} is not a comparison of two values")
