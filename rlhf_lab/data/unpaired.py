"""Single replies that were liked or disliked (KTO, arXiv:2402.01306): prompt, completion, label.

A liked reply is the `chosen` of its `Pair`, a disliked one the `rejected`; the other side is empty.
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
from rlhf_lab.data.replies import Split, prompt_oddities, read_prompt
from rlhf_lab.data.roles import columns_problem
from rlhf_lab.data.rows import MissingColumns, RowProblem, column, describe
from rlhf_lab.data.transcript import render_prompt

EMPTY_REPLY = "empty reply"
MEANING = {
    "prompt": "what was asked",
    "completion": "the reply",
    "label": "whether the reply was liked",
}
LABELS = {"true": True, "1": True, "false": False, "0": False}


def build(settings: Unpaired) -> Corpus:
    """Load unpaired replies. Raises DataError; see `rlhf_lab.data.loading.load_corpus`."""
    corpus = load_corpus("unpaired", settings, partial(parse_row, settings=settings))
    liked = sum(bool(pair.chosen) for pair in corpus.train)
    if liked in (0, len(corpus.train)):
        raise DataError(
            f"{settings.path}: all {len(corpus.train)} replies for training are {'liked' if liked else 'disliked'}; "
            "unpaired data need both kinds: check the column data.label, or use data=sft for liked replies alone"
        )
    return corpus


def parse_row(values: Mapping[str, Any], settings: Unpaired) -> Split:
    """One row → prompt and a reply on its side. Raises RowProblem when a column is missing or has another form."""
    problem = column_problem(values, settings)
    if problem:
        raise MissingColumns(problem)
    tools = read_tools(values, settings.tools)
    given = text_or_messages(values, settings.prompt)
    prompt = read_prompt(given) if isinstance(given, str) else render_prompt(given, tools)
    side = strip_prompt(prompt, text_or_messages(values, settings.completion), tools)
    if side is None:
        return Split(prompt, "", "", drop=SEVERAL_MESSAGES)
    reply = side[0].rstrip()
    liked = _label(column(values, settings.label), settings.label)
    drop = None if reply.strip() else EMPTY_REPLY
    chosen, rejected = (reply, "") if liked else ("", reply)
    return Split(prompt, chosen, rejected, drop=drop, notes=prompt_oddities(prompt))


def _label(value: object, name: str) -> bool:
    label = LABELS.get(str(value).strip().lower()) if isinstance(value, (bool, int, str)) else None
    if label is None:
        raise RowProblem(f"column {name!r} is {describe(value)}; expected true or false, or 1 or 0")
    return label


def column_problem(values: Mapping[str, Any], settings: Unpaired) -> str | None:
    """What to say of a row that lacks columns; None for one that has them."""
    return columns_problem(values, {role: getattr(settings, role) for role in MEANING}, MEANING)
