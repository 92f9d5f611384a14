"""TRL's dataset types, each read and written, in the standard (text) and conversational (messages) form.

    name                  standard row                       source: TRL documentation, "Dataset formats and types"
    language_modeling     {text}                             conversational: {messages}
    prompt_only           {prompt}
    prompt_completion     {prompt, completion}
    preference            {prompt, chosen, rejected}         explicit prompt
    implicit_preference   {chosen, rejected}                 each side is the full conversation
    unpaired_preference   {prompt, completion, label}
    stepwise_supervision  {prompt, completions, labels}      standard only

A row is read into an `Example`, and an example is written as any type for which it has the data. Preference, implicit
preference and (two adjacent rows) unpaired preference represent a full `Pair`. In standard rows the space between
prompt and response belongs to the completion, so that prompt + completion is the transcript, quoted as transcripts are.
Tools are the column `tools` of a conversational row and the first turn of a transcript. Other columns are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import Pair
from rlhf_lab.data.messages import FORM, read_messages
from rlhf_lab.data.rows import RowProblem, label_of
from rlhf_lab.data.transcript import (
    REPLY,
    SAID,
    as_prompt,
    normalise,
    parse,
    render,
    response_message,
    response_text,
    to_conversation,
)

Row = Mapping[str, Any]
TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class Example:
    """Content of a row of any type. All text is standard text, unstripped.

    Attributes:
        prompt: text before the completions; "" if a text has no turn boundary.
        labels: label of each completion: True for liked, False for disliked, None for unknown.
        steps: (text, True if it is correct) of each step of a stepwise row, else empty.
    """

    prompt: str
    completions: tuple[str, ...] = ()
    labels: tuple[bool | None, ...] = ()
    steps: tuple[tuple[str, bool], ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)


class RowType(NamedTuple):
    """A TRL type: its name, and True if its text columns are messages."""

    name: str
    conversational: bool


# Ordered from the most to the least specific: a row has the first type all of whose columns it has.
COLUMNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "stepwise_supervision": (("prompt", "completions", "labels"),),
    "unpaired_preference": (("prompt", "completion", "label"),),
    "preference": (("prompt", "chosen", "rejected"),),
    "implicit_preference": (("chosen", "rejected"),),
    "prompt_completion": (("prompt", "completion"),),
    "language_modeling": (("messages",), ("text",)),
    "prompt_only": (("prompt",),),
}
TEXT_COLUMNS = ("prompt", "completion", "chosen", "rejected", "messages", "text")
WHOLE_CONVERSATIONS = ("language_modeling", "implicit_preference")
"""Types whose text columns contain the prompt as well as the response."""


def detect(row: Row) -> RowType:
    """Return the type of a row by its columns. Raise DataError if no type fits or if text and messages are mixed."""
    for name, variants in COLUMNS.items():
        columns = _first_variant(row, variants)
        if columns is None:
            continue
        forms = {column: _is_messages(row[column]) for column in columns if column in TEXT_COLUMNS}
        is_mixed = len(set(forms.values())) > 1
        # steps are lists of texts, so their prompt must be text as well
        if is_mixed or (name == "stepwise_supervision" and forms["prompt"]):
            listed = ", ".join(f"{column}: {'messages' if form else 'text'}" for column, form in forms.items())
            raise DataError(f"a {name} row mixes text and messages ({listed}); use one form in all columns")
        return RowType(name, any(forms.values()))
    types = [f"{name}: {' or '.join(map(', '.join, variants))}" for name, variants in COLUMNS.items()]
    listed = ", ".join(map(repr, row))
    raise DataError(f"a row with the columns {listed} is of no known type; the types are {'; '.join(types)}")


def _first_variant(row: Row, variants: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the first list of columns that a row has completely; None if it has none. A null is no value."""
    return next((columns for columns in variants if all(row.get(column) is not None for column in columns)), None)


def _is_messages(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


# Standard ↔ conversational


def completion_messages(text: str) -> list[Message]:
    """Return a completion of standard text as messages, without the space that joins it to its prompt."""
    return parse(REPLY + text).messages


def completion_text(messages: Sequence[Message]) -> str:
    """Invert `completion_messages`. Raise DataError unless the assistant speaks first."""
    if not messages or messages[0]["role"] != "assistant":
        raise DataError(f"a completion must start with an assistant message, but it starts with {list(messages)[:1]}")
    return render(messages).removeprefix(REPLY)


def to_conversational(row: Row) -> dict[str, Any]:
    """Return a standard row with its text parsed into messages and tools. A conversational row is returned unchanged.

    A prompt that is not a transcript becomes one user message. Raises DataError for stepwise supervision, which TRL
    defines for standard rows only.
    """
    name, conversational = detect(row)
    if conversational:
        return dict(row)
    if name == "stepwise_supervision":
        raise DataError("stepwise_supervision has no conversational form; keep the row standard")
    converted: dict[str, Any] = {}
    tools: list[dict[str, Any]] = []
    for column, value in row.items():
        if value is None:
            converted[column] = value
        elif column == "prompt":
            converted[column], tools = to_conversation(value)
        elif column == "text":  # TRL calls this column messages in conversational rows
            converted["messages"], tools = parse(value)
        elif column in TEXT_COLUMNS and name in WHOLE_CONVERSATIONS:
            converted[column], tools = parse(value)
        elif column in TEXT_COLUMNS:
            converted[column] = completion_messages(value)
        else:
            converted[column] = value
    if tools:
        converted[TOOLS] = tools
    return converted


def to_standard(row: Row) -> dict[str, Any]:
    """Return a conversational row with its messages and tools rendered as transcripts; a standard row unchanged."""
    name, conversational = detect(row)
    if not conversational:
        return dict(row)
    tools = row.get(TOOLS) or []
    if isinstance(tools, str):  # tables often hold the JSON of the list
        tools = parse_json(tools)
    try:
        texts = {
            name: read_messages(list(row[name]), name, FORM) for name in TEXT_COLUMNS if _is_messages(row.get(name))
        }
    except RowProblem as problem:
        raise DataError(str(problem)) from None
    converted = {}
    for column, value in row.items():
        if column == "prompt":
            converted[column] = render(texts[column], tools) + REPLY
        elif column in texts and (column == "messages" or name in WHOLE_CONVERSATIONS):
            converted["text" if column == "messages" else column] = render(texts[column], tools)
        elif column != TOOLS:
            converted[column] = completion_text(texts[column]) if column in texts else value
    return converted


# Rows → examples


def _split_at_response(text: str) -> tuple[str, str]:
    """Return (prompt, completion) split at the last response boundary, unstripped; ("", text) if there is none."""
    head, boundary, completion = normalise(text).rpartition(REPLY)
    if not boundary or SAID.search(completion):
        return "", text
    return head + boundary, completion


def _read_language_modeling(row: Row) -> Example:
    prompt, completion = _split_at_response(row["text"])
    return Example(prompt, (completion,), (None,))


def _read_implicit_preference(row: Row) -> Example:
    prompt, chosen = _split_at_response(row["chosen"])
    rejected_prompt, rejected = _split_at_response(row["rejected"])
    if prompt != rejected_prompt:  # different histories: there is no shared prompt, so both sides stay unsplit
        return Example("", (row["chosen"], row["rejected"]), (True, False))
    return Example(prompt, (chosen, rejected), (True, False))


def _read_stepwise_supervision(row: Row) -> Example:
    if len(row["completions"]) != len(row["labels"]):
        raise DataError(
            f"a stepwise_supervision row has {len(row['completions'])} completions but {len(row['labels'])} labels; "
            "write one label for each"
        )
    steps = tuple(zip(row["completions"], map(_label, row["labels"]), strict=True))
    completion = "".join(text for text, _ in steps)
    all_correct = all(correct for _, correct in steps)
    return Example(row["prompt"], (completion,), (all_correct,), steps)


def _label(value: object) -> bool:
    label = label_of(value)
    if label is None:
        raise DataError(f"a label is {value!r}; expected true or false, or 1 or 0")
    return label


READERS: dict[str, Callable[[Row], Example]] = {
    "language_modeling": _read_language_modeling,
    "prompt_only": lambda row: Example(row["prompt"]),
    "prompt_completion": lambda row: Example(row["prompt"], (row["completion"],), (None,)),
    "preference": lambda row: Example(row["prompt"], (row["chosen"], row["rejected"]), (True, False)),
    "implicit_preference": _read_implicit_preference,
    "unpaired_preference": lambda row: Example(row["prompt"], (row["completion"],), (_label(row["label"]),)),
    "stepwise_supervision": _read_stepwise_supervision,
}


# Examples → rows


def _prompt_of(example: Example) -> str:
    if example.prompt:
        return example.prompt
    raise DataError(
        'the prompt of the row is unknown, because its texts share no history that ends with a "\\n\\nAssistant:" turn'
    )


def _liked_completion(example: Example) -> str:
    for completion, label in zip(example.completions, example.labels, strict=True):
        if label is not False:  # an unlabelled completion (None) counts as liked
            return completion
    raise DataError(
        "the row has no completion that is liked or unlabelled; convert it to unpaired_preference or prompt_only"
    )


def _chosen_and_rejected(example: Example) -> tuple[str, str]:
    if example.labels != (True, False):
        raise DataError(
            f"a preference needs one liked and one disliked completion, but the labels are {list(example.labels)}"
        )
    return example.completions[0], example.completions[1]


def _write_preference(example: Example) -> list[dict[str, Any]]:
    chosen, rejected = _chosen_and_rejected(example)
    return [{"prompt": _prompt_of(example), "chosen": chosen, "rejected": rejected}]


def _write_implicit_preference(example: Example) -> list[dict[str, Any]]:
    chosen, rejected = _chosen_and_rejected(example)
    return [{"chosen": example.prompt + chosen, "rejected": example.prompt + rejected}]


def _write_unpaired_preference(example: Example) -> list[dict[str, Any]]:
    if not example.labels or None in example.labels:
        raise DataError("unpaired_preference needs a label for each completion, but the row has none")
    return [
        {"prompt": _prompt_of(example), "completion": completion, "label": label}
        for completion, label in zip(example.completions, example.labels, strict=True)
    ]


def _write_stepwise_supervision(example: Example) -> list[dict[str, Any]]:
    if not example.steps:
        raise DataError("stepwise_supervision needs labelled steps; only a stepwise_supervision row has them")
    texts, labels = zip(*example.steps, strict=True)
    return [{"prompt": _prompt_of(example), "completions": list(texts), "labels": list(labels)}]


def read_example(row: Row) -> Example:
    """Read a row of any type, standard or conversational. Raise DataError if no type fits."""
    standard = to_standard(row)
    name = detect(standard).name
    own_columns = _first_variant(standard, COLUMNS[name]) or ()
    others = {column: value for column, value in standard.items() if column not in own_columns}
    return replace(READERS[name](standard), columns=others)


WRITERS: dict[str, Callable[[Example], list[dict[str, Any]]]] = {
    "language_modeling": lambda example: [{"text": example.prompt + _liked_completion(example)}],
    "prompt_only": lambda example: [{"prompt": _prompt_of(example)}],
    "prompt_completion": lambda example: [{"prompt": _prompt_of(example), "completion": _liked_completion(example)}],
    "preference": _write_preference,
    "implicit_preference": _write_implicit_preference,
    "unpaired_preference": _write_unpaired_preference,
    "stepwise_supervision": _write_stepwise_supervision,
}


def _join_unpaired(examples: Iterable[Example]) -> Iterator[Example]:
    """Join adjacent examples with the same prompt, one liked and one disliked, in either order."""
    waiting: Example | None = None
    for example in examples:
        is_pair = waiting is not None and waiting.prompt == example.prompt
        if waiting and is_pair and {*waiting.labels, *example.labels} == {True, False}:
            liked, disliked = (waiting, example) if waiting.labels[0] else (example, waiting)
            # A column with different values in the two rows describes one response, not the pair.
            columns = {name: value for name, value in liked.columns.items() if disliked.columns.get(name) == value}
            yield Example(example.prompt, liked.completions + disliked.completions, (True, False), columns=columns)
            waiting = None
        elif len(example.completions) == 1 and example.labels != (None,):
            if waiting:
                yield waiting
            waiting = example
        else:
            if waiting:
                yield waiting
            waiting = None
            yield example
    if waiting:
        yield waiting


# The public conversions


def convert(rows: Iterable[Row], to: str, *, conversational: bool = False) -> Iterator[dict[str, Any]]:
    """Convert rows of any type into rows of type `to`. Raise DataError if a row lacks data that `to` needs.

    Unpaired rows become preferences if a liked and a disliked completion of the same prompt are adjacent.
    """
    if to not in WRITERS:
        raise DataError(f"{to!r} is not a dataset type; use one of {', '.join(WRITERS)}")
    examples: Iterator[Example] = map(read_example, rows)
    if to in ("preference", "implicit_preference"):
        examples = _join_unpaired(examples)
    for example in examples:
        for row in WRITERS[to](example):
            others = {name: value for name, value in example.columns.items() if name not in row}
            written = {**row, **others}
            yield to_conversational(written) if conversational else written


def from_pair(pair: Pair, to: str, *, conversational: bool = False) -> list[dict[str, Any]]:
    """Return a pair as rows of type `to`: two for unpaired preference, else one. The pair's `meta` is not copied."""
    chosen = completion_text([response_message(pair.chosen)])
    rejected = completion_text([response_message(pair.rejected)])
    row = {"prompt": pair.prompt, "chosen": chosen, "rejected": rejected}
    return list(convert([row], to, conversational=conversational))


def to_pairs(rows: Iterable[Row]) -> Iterator[Pair]:
    """Convert preference, implicit preference or adjacent unpaired rows into pairs. Raise DataError for other types.

    A completion of several messages is kept as the text that a transcript of it would have.
    """
    for row in convert(rows, "preference"):
        yield Pair(as_prompt(row["prompt"]), response_of(row["chosen"]), response_of(row["rejected"]))


def response_of(completion: str) -> str:
    """Return the response of a standard-text completion, without the space after the prompt and trailing space."""
    messages = completion_messages(completion)
    if len(messages) == 1:
        return response_text(messages[0]).rstrip()
    return completion.removeprefix(" ").rstrip()
