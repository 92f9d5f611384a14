"""Responses with a grade per attribute, such as HelpSteer2's (arXiv:2406.08673), as pairs that keep their grades.

HelpSteer2 has one row per response, {prompt, response, helpfulness, correctness, coherence, complexity, verbosity},
with grades 0…4. The two responses to a prompt are on consecutive rows. A prompt of several turns reads
"first question\\n<extra_id_1>Assistant\\nreply\\n<extra_id_1>User\\nnext question". Not supported: its separate files
of preferences and of edits, and all pairs of three or more responses (only consecutive rows are paired, two by two).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from rlhf_lab.config.overrides import literal
from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import Corpus, Rubric
from rlhf_lab.data.file_settings import GradedData
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.roles import GRADE, columns_problem, missing_columns, role_of
from rlhf_lab.data.rows import MissingColumns, RowProblem, SourceRow, column, describe, metadata_of, text_column
from rlhf_lab.data.split_rows import SplitRow, check, read_prompt
from rlhf_lab.data.transcript import render_prompt

TURN_MARK = re.compile(r"\s*<extra_id_1>(Assistant|User)\n")  # start of a turn in HelpSteer2
ROLES = {"Assistant": "assistant", "User": "user"}

ALONE = "prompt with a single reply"
TIED = "both replies have the same grade"
UNGRADED = "a reply without grades"
NO_QUESTION = "prompt does not end with a user turn"
MEANING = {"prompt": "what was asked", "response": "the response that is graded"}


def build(settings: GradedData) -> Corpus:
    """Load graded responses as pairs. Raise DataError for unreadable rows; see `data.loading.load_corpus`."""
    parse = partial(parse_row, settings=settings)
    corpus = load_corpus("graded", settings, parse, partial(join_responses, prompt=settings.prompt))
    pairs = (*corpus.train, *corpus.test)
    # The fingerprint of a corpus covers only its texts, but here the grades are training data as well.
    # tuples, because streamed pairs have lists
    grades = [(tuple(pair.meta["grades_chosen"]), tuple(pair.meta["grades_rejected"])) for pair in pairs]
    return replace(
        corpus,
        fingerprint=sha256(f"{corpus.fingerprint} {settings.attributes} {grades}".encode()).hexdigest(),
        rubric=Rubric(settings.attributes, settings.low, settings.high),
    )


def join_responses(rows: Iterator[SourceRow], *, prompt: str) -> Iterator[SourceRow]:
    """Yield rows {"replies": [values of one or two rows]}: two consecutive rows with the same prompt are joined."""
    # the row before, until it is known if the next one belongs to the same prompt
    waiting: SourceRow | None = None
    for row in rows:
        # rows of different files are never joined, even with the same prompt
        if waiting and waiting.file == row.file and waiting.values.get(prompt) == row.values.get(prompt):
            yield SourceRow(waiting.file, waiting.number, {"replies": [waiting.values, row.values]})
            waiting = None
            continue
        if waiting:
            yield SourceRow(waiting.file, waiting.number, {"replies": [waiting.values]})
        waiting = row
    if waiting:
        yield SourceRow(waiting.file, waiting.number, {"replies": [waiting.values]})


def parse_row(values: Mapping[str, Any], settings: GradedData) -> SplitRow:
    """Return prompt, responses and grades of joined rows. Raise RowProblem if a column is missing or malformed."""
    rows = values["replies"]
    if any(row.get("unscored") for row in rows):  # grades.jsonl of algorithm=grade marks responses without grades
        return SplitRow("", "", "", drop=UNGRADED)
    for row in rows:
        check_columns(row, settings)
    texts = [text_column(row, settings.response) for row in rows]
    grades = [[_grade_column(row, name, settings) for name in settings.attributes] for row in rows]
    prompt = transcript_of(text_column(rows[0], settings.prompt))
    if prompt is None:
        return SplitRow("", "", "", drop=NO_QUESTION)
    if len(rows) == 1:
        return SplitRow(prompt, texts[0].strip(), "", drop=ALONE)
    # grades are in the order of the attributes
    rank_index = settings.attributes.index(settings.rank_by)
    first, second = (response_grades[rank_index] for response_grades in grades)
    best, worst = (1, 0) if second > first else (0, 1)
    # with equal grades the order is arbitrary, and the pair is dropped below
    split = check(prompt, texts[best], texts[worst])
    tied = first == second and split.drop is None
    meta = {"grades_chosen": tuple(grades[best]), "grades_rejected": tuple(grades[worst])}
    # columns that are equal in both rows belong to the prompt, the others to one response
    both = {name: value for name, value in rows[0].items() if rows[1].get(name) == value}
    columns = None
    if settings.fact_columns is not None:
        columns = [name for name in settings.fact_columns if name in both]
    metadata, _ = metadata_of(both, settings.text_columns(), columns)
    return replace(split, drop=TIED if tied else split.drop, meta=meta, metadata=metadata)


def check_columns(row: Mapping[str, Any], settings: GradedData) -> None:
    """Raise MissingColumns if a row lacks a column."""
    texts = {"prompt": settings.prompt, "response": settings.response}
    problems = [*filter(None, [columns_problem(row, texts, MEANING), grades_problem(row, settings.attributes)])]
    if problems:
        raise MissingColumns("; ".join(problems))


def grades_problem(row: Mapping[str, Any], attributes: Sequence[str]) -> str | None:
    """Return a message about missing grade columns that lists possible grade columns; None if no column is missing.

    The user has to choose which of several grades ranks the responses: on some of them the lowest may be the best.
    """
    missing = [name for name in attributes if name not in row]
    if not missing:
        return None
    candidates = [name for name in row if role_of(name) == GRADE or name in attributes]
    rank_by = literal(candidates[0]) if len(candidates) == 1 else "COLUMN"
    settings = [f"data.attributes={literal(candidates or ['COLUMN'])}", f"data.rank_by={rank_by}"]
    if candidates:  # without any, COLUMN has to be replaced by the user, so nothing is quoted
        settings = [shlex.quote(setting) for setting in settings]
    line = " ".join(settings)
    return (
        f"{missing_columns(missing, row)}; write the columns of grades as {line}, and their bounds as data.low= and "
        "data.high="
    )


def transcript_of(prompt: str) -> str | None:
    """Return a prompt as a transcript, split at the marks of turns; None if its last turn is the assistant's."""
    parts = TURN_MARK.split(prompt)  # the first user's body, then speaker, body, speaker, body, …
    if len(parts) == 1:
        return read_prompt(prompt)
    speakers, bodies = parts[1::2], parts[::2]
    roles = ["user", *(ROLES[speaker] for speaker in speakers)]
    turns = zip(roles, bodies, strict=True)
    messages: list[Message] = [{"role": role, "content": body.strip()} for role, body in turns]
    return render_prompt(messages) if roles[-1] == "user" else None


def _grade_column(row: Mapping[str, Any], name: str, settings: GradedData) -> float:
    value = column(row, name)
    if isinstance(value, str):  # fields of a .csv are text
        with suppress(ValueError):
            value = float(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)  # bool is an int in Python
    if not is_number or not settings.low <= value <= settings.high:
        raise RowProblem(
            f"column {name!r} is {describe(value)}; expected a grade {settings.low:g}…{settings.high:g} "
            "(data.low, data.high)"
        )
    return float(value)
