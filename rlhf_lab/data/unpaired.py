"""Single responses that were liked or disliked (KTO, arXiv:2402.01306): prompt, completion, label.

A liked response is the `chosen` of its `Pair`, a disliked one the `rejected`; the other side is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.file_settings import Unpaired
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.messages import read_tools, text_or_messages
from rlhf_lab.data.pairs import SEVERAL_MESSAGES, strip_prompt
from rlhf_lab.data.roles import require_columns
from rlhf_lab.data.rows import RowProblem, column, describe, label_of
from rlhf_lab.data.split_rows import SplitRow, prompt_oddities, prompt_of

EMPTY_REPLY = "empty reply"
MEANING = {"prompt": "what was asked", "completion": "the response", "label": "true if the response was liked"}


def build(settings: Unpaired) -> Corpus:
    """Load unpaired responses. Raise DataError for unreadable rows, or if all are liked or all disliked."""
    corpus = load_corpus("unpaired", settings, partial(parse_row, settings=settings))
    liked = sum(bool(pair.chosen) for pair in corpus.train)
    # the KTO loss compares both kinds, so it needs both
    if corpus.train and liked in (0, len(corpus.train)):
        raise DataError(
            f"{settings.path}: all {len(corpus.train)} responses for training are {'liked' if liked else 'disliked'}, "
            "but unpaired data need both kinds; check the column data.label, or use data=sft for liked responses only"
        )
    return corpus


def parse_row(values: Mapping[str, Any], settings: Unpaired) -> SplitRow:
    """Return prompt and response of one row, on the side of its label. Raise RowProblem if a column is malformed."""
    check_columns(values, settings)
    tools = read_tools(values, settings.tools)
    provided = text_or_messages(values, settings.prompt)
    prompt = prompt_of(provided, tools)
    side = strip_prompt(prompt_of(provided), text_or_messages(values, settings.completion))
    if side is None:
        return SplitRow(prompt, "", "", drop=SEVERAL_MESSAGES)
    response = side[0].rstrip()
    liked = _label(column(values, settings.label), settings.label)
    drop = None if response.strip() else EMPTY_REPLY
    chosen, rejected = (response, "") if liked else ("", response)
    return SplitRow(prompt, chosen, rejected, drop=drop, notes=prompt_oddities(prompt))


def _label(value: object, name: str) -> bool:
    label = label_of(value)
    if label is None:
        raise RowProblem(f"column {name!r} is {describe(value)}; expected true or false, or 1 or 0")
    return label


def check_columns(values: Mapping[str, Any], settings: Unpaired) -> None:
    """Raise MissingColumns if a row lacks a column."""
    require_columns(values, {role: getattr(settings, role) for role in MEANING}, MEANING)
