"""Questions of two turns, with reference answers: MT-Bench's own file, or pairs of prompts of an embedded world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows, describe, is_text_list
from rlhf_lab.data.transcript import to_conversation

TURNS = 2  # messages of the user in a question
REFERENCE_CATEGORIES = ("math", "reasoning", "coding")
"""Categories whose questions are graded with a reference answer, as FastChat's `NEED_REF_CATS`."""
WORLD = "world"
"""Category of questions that are made of prompts of an embedded world."""


@dataclass(frozen=True)
class TwoTurnQuestion:
    """A question of two turns.

    Attributes:
        identifier: MT-Bench's `question_id` as text.
        category: category, such as writing or math.
        turns: the two messages of the user.
        references: reference answer to each turn; "" for a turn without one.
    """

    identifier: str
    category: str
    turns: tuple[str, str]
    references: tuple[str, str] = ("", "")

    def reference(self, turn: int) -> str | None:
        """Return the reference for grading turn 0 or 1; None if it has none or the category is graded without one.

        The reference of the second turn contains that of the first, as in FastChat.
        """
        if self.category not in REFERENCE_CATEGORIES or not self.references[turn]:
            return None
        if turn == 0 or not self.references[0]:
            return self.references[turn]
        return f"First question: {self.references[0]}\n\nSecond question: {self.references[1]}"


def questions_of(corpus: Corpus, limit: int, references: str = "") -> list[TwoTurnQuestion]:
    """Return at most `limit` questions of a corpus.

    Data with a column `turns` are read as MT-Bench: all rows of both splits, because nothing is trained. In an embedded
    world, question k consists of two successive single-turn prompts of the test split.

    Args:
        references: file of reference answers; see `read_references`.

    Raises:
        DataError: the rows are no questions of two turns, or a file of reference answers is invalid or does not belong
            to the questions.
    """
    prompts = list(dict.fromkeys([*corpus.prompts("train"), *corpus.prompts("test")]))
    rows = [corpus.metadata.get(prompt, {}) for prompt in prompts]
    if corpus.oracle is not None and not any("turns" in row for row in rows):
        if references:
            raise DataError(
                f"algorithm.references={references}: prompts of the world data={corpus.name} have no question_id; use "
                "data=mt_bench data.path=FILE"
            )
        return _world_questions(corpus)[:limit]
    questions = [_read_question(row, corpus.name) for row in rows]
    if references:
        questions = _with_references(questions, read_references(references), references)
    return balanced(questions, limit)


def _read_question(row: Mapping[str, Any], name: str) -> TwoTurnQuestion:
    where = f"data={name}, question {row.get('question_id', 'without question_id')}"
    turns = row.get("turns")
    if not _is_two_texts(turns) or not all(turn.strip() for turn in turns):
        raise DataError(
            f"{where}: turns is {describe(turns)}; expected a list of two messages of the user, as in MT-Bench: "
            "data=mt_bench data.path=question.jsonl"
        )
    references = row.get("reference") or ["", ""]
    if not _is_two_texts(references):
        raise DataError(
            f'{where}: reference is {describe(references)}; expected a list of two texts, with "" for a turn without a '
            "reference answer"
        )
    return TwoTurnQuestion(
        str(row.get("question_id", "")),
        str(row.get("category") or "all"),
        (turns[0], turns[1]),
        (references[0], references[1]),
    )


def _is_two_texts(value: Any) -> TypeGuard[list[str]]:
    return is_text_list(value) and len(value) == TURNS


def _world_questions(corpus: Corpus) -> list[TwoTurnQuestion]:
    texts = []
    for prompt in corpus.prompts("test"):
        messages, _ = to_conversation(prompt)
        if len(messages) == 1:  # the second turn of a longer prompt refers to its first
            texts.append(str(messages[0]["content"]))
    pairs = zip(texts[::2], texts[1::2], strict=False)  # the last prompt of an odd number is left out
    return [TwoTurnQuestion(str(index), WORLD, pair) for index, pair in enumerate(pairs)]


def read_references(path: str) -> dict[str, tuple[str, str]]:
    """Read reference answers in FastChat's format: `question_id`, and the two texts in `choices[0].turns`.

    Raises DataError with file, row and column if a row is invalid.
    """
    bad = BadRows(path)
    found = {}
    for row in read_rows(path, bad):
        choices = row.values.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        turns = first.get("turns") if isinstance(first, Mapping) else None
        identifier = row.values.get("question_id")
        if identifier is None or not _is_two_texts(turns):
            raise DataError(
                f"{row.file}, row {row.number}: question_id is {describe(identifier)} and choices is "
                f'{describe(choices)}; expected {{"question_id": 101, "choices": [{{"turns": ["…", "…"]}}]}}'
            )
        found[str(identifier)] = (turns[0], turns[1])
    bad.finish()
    return found


def _with_references(
    questions: Sequence[TwoTurnQuestion], references: Mapping[str, tuple[str, str]], path: str
) -> list[TwoTurnQuestion]:
    if not any(question.identifier in references for question in questions):
        raise DataError(f"algorithm.references={path}: no question_id of it is in the data; use the file of these data")
    return [
        replace(question, references=references.get(question.identifier, question.references)) for question in questions
    ]


def balanced(questions: Sequence[TwoTurnQuestion], limit: int) -> list[TwoTurnQuestion]:
    """Return at most `limit` questions in their order, with equally many of each category as far as possible."""
    earlier: Counter[str] = Counter()  # number of earlier questions of a category
    ranks = []
    for index, question in enumerate(questions):
        ranks.append((earlier[question.category], index))
        earlier[question.category] += 1
    selected = sorted(index for _, index in sorted(ranks)[:limit])
    return [questions[index] for index in selected]
