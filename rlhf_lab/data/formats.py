"""TRL's dataset types, each read and written, standard (text) and conversational (messages).

    name                  standard row                       source: TRL documentation, "Dataset formats and types"
    language_modeling     {text}                             conversational: {messages}
    prompt_only           {prompt}
    prompt_completion     {prompt, completion}
    preference            {prompt, chosen, rejected}         explicit prompt
    implicit_preference   {chosen, rejected}                 each side holds the whole conversation
    unpaired_preference   {prompt, completion, label}
    stepwise_supervision  {prompt, completions, labels}      standard only

A row is read into an `Example`, and an example is written as any type it has enough for. Preference, implicit
preference and (two adjacent rows) unpaired preference hold a whole `Pair`. In standard rows the space between prompt
and reply opens the completion, so that prompt + completion is the transcript. Extra columns are not carried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Pair
from rlhf_lab.data.transcript import (
    REPLY,
    after_colon,
    as_prompt,
    parse,
    render,
    render_prompt,
    split_reply,
    to_messages,
)

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """What a row says, whatever its type. All text is standard text, unstripped.

    Attributes:
        prompt: text before the completions; "" when a text has no turn boundary.
        completions, labels: alternatives, each with its label: True liked, False not, None unknown.
        steps: (text, whether it is correct) of a stepwise row, else empty.
    """

    prompt: str
    completions: tuple[str, ...] = ()
    labels: tuple[bool | None, ...] = ()
    steps: tuple[tuple[str, bool], ...] = ()


class RowType(NamedTuple):
    """A TRL type by name, and whether its text columns hold messages."""

    name: str
    conversational: bool


# From the most to the least specific: the first whose columns are all there is the type.
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
"""Types whose text columns hold the prompt as well as the reply."""


def detect(row: Row) -> RowType:
    """The type of a row, by its columns. Raises DataError when no type fits or text and messages are mixed."""
    for name, variants in COLUMNS.items():
        columns = next((columns for columns in variants if all(column in row for column in columns)), None)
        if columns is None:
            continue
        forms = {column: _is_messages(row[column]) for column in columns if column in TEXT_COLUMNS}
        if len(set(forms.values())) > 1 or (name == "stepwise_supervision" and forms["prompt"]):
            listed = ", ".join(f"{column}: {'messages' if form else 'text'}" for column, form in forms.items())
            raise DataError(f"a {name} row mixes text and messages ({listed}); expected one form in all columns")
        return RowType(name, any(forms.values()))
    types = []
    for name, variants in COLUMNS.items():
        alternatives = " or ".join(", ".join(columns) for columns in variants)
        types.append(f"{name}: {alternatives}")
    listed = ", ".join(map(repr, row))
    raise DataError(f"a row with the columns {listed} is of no known type; the types are {'; '.join(types)}")


def _is_messages(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


# Standard ↔ conversational


def _completion_messages(text: str) -> list[dict[str, str]]:
    return parse(REPLY + text)


def _completion_text(messages: Sequence[Mapping[str, str]]) -> str:
    if not messages or messages[0]["role"] != "assistant":
        raise DataError(f"a completion starts with an assistant message; found {list(messages)[:1]}")
    return render(messages).removeprefix(REPLY)


def to_conversational(row: Row) -> dict[str, Any]:
    """A standard row with its text parsed into messages; contents are stripped. A conversational row stays as it is.

    A prompt that is not a transcript becomes one user message. Raises DataError for stepwise supervision, which TRL
    defines for standard rows only.
    """
    name, conversational = detect(row)
    if conversational:
        return dict(row)
    if name == "stepwise_supervision":
        raise DataError("stepwise_supervision has no conversational form; keep the row standard")
    reply_parser = parse if name in WHOLE_CONVERSATIONS else _completion_messages
    converters: dict[str, Callable[[Any], Any]] = {"prompt": to_messages, "text": parse}
    converters |= dict.fromkeys(("completion", "chosen", "rejected"), reply_parser)
    return _converted(row, converters, {"text": "messages"})


def to_standard(row: Row) -> dict[str, Any]:
    """A conversational row with its messages rendered as transcripts. A standard row stays as it is."""
    name, conversational = detect(row)
    if not conversational:
        return dict(row)
    reply_renderer = render if name in WHOLE_CONVERSATIONS else _completion_text
    converters: dict[str, Callable[[Any], Any]] = {"prompt": render_prompt, "messages": render}
    converters |= dict.fromkeys(("completion", "chosen", "rejected"), reply_renderer)
    return _converted(row, converters, {"messages": "text"})


def _converted(
    row: Row, converters: Mapping[str, Callable[[Any], Any]], new_names: Mapping[str, str]
) -> dict[str, Any]:
    """A row with some columns converted and renamed, in the same order; the others stay as they are."""
    converted = {}
    for column, value in row.items():
        new_column = new_names.get(column, column)
        converted[new_column] = converters[column](value) if column in converters else value
    return converted


# Rows → examples


def _split_at_reply(text: str) -> tuple[str, str]:
    """(prompt, completion) at the last reply boundary, nothing stripped; ("", text) when there is none."""
    if split_reply(text) is None:
        return "", text
    head, boundary, completion = text.rpartition(REPLY)
    return head + boundary, completion


def _read_language_modeling(row: Row) -> Example:
    prompt, completion = _split_at_reply(row["text"])
    return Example(prompt, (completion,), (None,))


def _read_implicit_preference(row: Row) -> Example:
    prompt, chosen = _split_at_reply(row["chosen"])
    rejected_prompt, rejected = _split_at_reply(row["rejected"])
    if prompt != rejected_prompt:  # different histories: there is no shared prompt, the sides stay whole
        return Example("", (row["chosen"], row["rejected"]), (True, False))
    return Example(prompt, (chosen, rejected), (True, False))


def _read_stepwise_supervision(row: Row) -> Example:
    steps = tuple(zip(row["completions"], map(bool, row["labels"]), strict=True))
    completion = "".join(text for text, _ in steps)
    all_correct = all(correct for _, correct in steps)
    return Example(row["prompt"], (completion,), (all_correct,), steps)


READERS: dict[str, Callable[[Row], Example]] = {
    "language_modeling": _read_language_modeling,
    "prompt_only": lambda row: Example(row["prompt"]),
    "prompt_completion": lambda row: Example(row["prompt"], (row["completion"],), (None,)),
    "preference": lambda row: Example(row["prompt"], (row["chosen"], row["rejected"]), (True, False)),
    "implicit_preference": _read_implicit_preference,
    "unpaired_preference": lambda row: Example(row["prompt"], (row["completion"],), (bool(row["label"]),)),
    "stepwise_supervision": _read_stepwise_supervision,
}


# Examples → rows


def _prompt_of(example: Example) -> str:
    if example.prompt:
        return example.prompt
    raise DataError(
        'the prompt of the row is unknown: no "\\n\\nAssistant:" turn ends a history that all its texts share'
    )


def _liked_completion(example: Example) -> str:
    for completion, label in zip(example.completions, example.labels, strict=True):
        if label is not False:
            return completion
    raise DataError(
        "the row has no completion that is liked or unlabelled; write it as unpaired_preference or prompt_only"
    )


def _chosen_and_rejected(example: Example) -> tuple[str, str]:
    if example.labels != (True, False):
        raise DataError(
            f"a preference needs a liked and a disliked completion; the row has the labels {list(example.labels)}"
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
        raise DataError("unpaired_preference needs a label per completion, and the row has none")
    return [
        {"prompt": _prompt_of(example), "completion": completion, "label": label}
        for completion, label in zip(example.completions, example.labels, strict=True)
    ]


def _write_stepwise_supervision(example: Example) -> list[dict[str, Any]]:
    if not example.steps:
        raise DataError("stepwise_supervision needs labelled steps; only a stepwise_supervision row has them")
    texts, labels = zip(*example.steps, strict=True)
    return [{"prompt": _prompt_of(example), "completions": list(texts), "labels": list(labels)}]


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
    """Join each liked and disliked completion of the same prompt that stand next to each other, in either order."""
    waiting: Example | None = None
    for example in examples:
        if waiting and waiting.prompt == example.prompt and {*waiting.labels, *example.labels} == {True, False}:
            liked, disliked = (waiting, example) if waiting.labels[0] else (example, waiting)
            yield Example(example.prompt, liked.completions + disliked.completions, (True, False))
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
    """Rows of any type → rows of type `to`. Raises DataError when a row lacks what `to` needs.

    Unpaired rows become preferences when a liked and a disliked completion of one prompt are adjacent.
    """
    if to not in WRITERS:
        raise DataError(f"{to!r} is not a dataset type; use one of {', '.join(WRITERS)}")
    examples: Iterator[Example] = (READERS[detect(row).name](to_standard(row)) for row in rows)
    if to in ("preference", "implicit_preference"):
        examples = _join_unpaired(examples)
    for example in examples:
        for row in WRITERS[to](example):
            yield to_conversational(row) if conversational else row


def from_pair(pair: Pair, to: str, *, conversational: bool = False) -> list[dict[str, Any]]:
    """A pair as rows of type `to`: two for unpaired preference, one otherwise. The pair's `meta` is not carried."""
    row = {"prompt": pair.prompt, "chosen": after_colon(pair.chosen), "rejected": after_colon(pair.rejected)}
    return list(convert([row], to, conversational=conversational))


def to_pairs(rows: Iterable[Row]) -> Iterator[Pair]:
    """Preference, implicit preference or adjacent unpaired rows → pairs. Raises DataError for rows of other types."""
    for row in convert(rows, "preference"):
        yield Pair(as_prompt(row["prompt"]), row["chosen"].strip(), row["rejected"].strip())
