"""Replies that are to be judged: those of one policy of a run directory, or of a JSONL file; and how two are matched.

A row of a file has a prompt (`prompt`: text, a transcript or messages) and a reply (`response` or `completion`: text, a
message or messages); or `messages`, of which the last is the reply. Rows that all have an `id` (or `question_id`, as
MT-Bench's) are matched by it, else by prompt; the k-th reply to a prompt is matched with the k-th of the other source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core import seal
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import file_digest, parse_json, read_json, read_jsonl
from rlhf_lab.core.policies import in_training_order, own_policy
from rlhf_lab.data.lines import file_lines
from rlhf_lab.data.rows import describe
from rlhf_lab.data.transcript import as_prompt, render_prompt, reply_text

ROWS, RESULT = "evaluation.jsonl", "result.json"
IDS = ("question_id", "id")
REPLIES = ("response", "completion")
MESSAGES_FORM = '[{"role": "user", "content": "…"}, …]'


@dataclass(frozen=True)
class Answer:
    """One reply.

    Attributes:
        prompt: transcript that ends where the reply starts.
        row_id: what the row is called in its file; None where it has no name.
        facts: further columns of its row.
    """

    prompt: str
    response: str
    row_id: str | None
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """The replies of one side.

    Attributes:
        path: as it was named.
        policy: of a run directory; None of a file.
        digest: SHA-256 of the file that they were read from.
    """

    path: Path
    policy: str | None
    answers: Sequence[Answer]
    digest: str

    def summary(self) -> dict[str, Any]:
        """As it is recorded with a result."""
        return {"path": str(self.path), "policy": self.policy, "replies": len(self.answers), "sha256": self.digest}


@dataclass(frozen=True)
class Matched:
    """Replies of two sources to the same prompts.

    Attributes:
        pairs: (of A, of B), in A's order.
        unmatched: replies of A and of B without a counterpart.
        other_prompt: rows with the same id whose prompts differ; they are not compared.
    """

    pairs: list[tuple[Answer, Answer]]
    unmatched: tuple[int, int]
    other_prompt: int = 0


def read_source(path: Path, policy: str | None = None) -> Source:
    """The replies of a run directory, or of a JSONL file. Raises DataError when there are none.

    Args:
        policy: of a run directory; None takes the run's own. A file has none.
    """
    if path.is_dir():
        return _read_run(path, policy)
    if not path.is_file():
        raise DataError(f"{path} does not exist; name a run directory, or a .jsonl file of prompts and responses")
    answers = []
    problems = []
    for number, line in file_lines(path):
        if not line.strip():
            continue
        try:
            answers.append(_read_answer(parse_json(line)))
        except ValueError as error:
            message = f"is no JSON ({error.msg})" if isinstance(error, json.JSONDecodeError) else str(error)
            problems.append(f"{path}, row {number}: {message}")
    if problems:
        more = f"\n… and {len(problems) - 20} more rows" if len(problems) > 20 else ""
        raise DataError("\n".join(problems[:20]) + more)
    if not answers:
        raise DataError(f"{path} has no rows; expected one per reply, with the columns prompt and response")
    return Source(path, None, answers, file_digest(path))


def _read_run(folder: Path, policy: str | None) -> Source:
    seal.check(folder, rebuilt=False, say=console.print)
    rows = read_jsonl(folder / ROWS)
    if not rows:
        raise DataError(
            f"{folder} has no {ROWS} with replies; name the run directory of an evaluation, or a .jsonl file"
        )
    stored = (read_json(folder / RESULT) or {}).get("policies") or []
    names = in_training_order([each["name"] for each in stored], [row["policy"] for row in rows])
    policy = policy or own_policy(names)
    if policy not in names:
        raise DataError(f"policy={policy}: {folder} evaluated {', '.join(names)}")
    rows = [row for row in rows if row["policy"] == policy]
    if not rows:
        raise DataError(f"{folder / ROWS} has no replies of {policy}; name another policy: policy='{names[0]}'")
    if any(row.get("turns", 1) > 1 for row in rows):
        raise DataError(
            f"{folder}: replies of {policy} are episodes of several turns, whose last replies have no prompt in "
            "common; judge single replies"
        )
    answers = [Answer(row["prompt"], row["response"], None, {}) for row in rows]
    return Source(folder, policy, answers, file_digest(folder / ROWS))


def _read_answer(row: Any) -> Answer:
    """A row of a file. Raises ValueError naming the column, what was found and what is expected."""
    if not isinstance(row, Mapping):
        raise ValueError(f'is {describe(row)}; expected an object like {{"prompt": …, "response": …}}')
    reply_column = next((name for name in REPLIES if name in row), None)
    if "messages" in row and reply_column is None:
        messages = _messages(row["messages"], "messages")
        if len(messages) < 2 or messages[-1]["role"] != "assistant":
            raise ValueError("column 'messages' does not end with the assistant's reply to a message of the user")
        prompt, response = render_prompt(messages[:-1]), reply_text(messages[-1])
    elif "prompt" in row and reply_column is not None:
        prompt = _prompt(row["prompt"])
        response = _response(row[reply_column], reply_column)
    else:
        listed = ", ".join(map(repr, row)) or "none"
        raise ValueError(
            f"the columns 'prompt' and 'response' (or 'completion'), or 'messages', are missing; the row has {listed}; "
            "rename the columns that hold them"
        )
    row_id = next((str(row[name]) for name in IDS if row.get(name) is not None), None)
    used = ("prompt", "messages", *REPLIES)
    return Answer(prompt, response, row_id, {name: value for name, value in row.items() if name not in used})


def _prompt(value: Any) -> str:
    if isinstance(value, str):
        return as_prompt(value)
    if isinstance(value, list):
        return render_prompt(_messages(value, "prompt"))
    raise ValueError(f"column 'prompt' is {describe(value)}; expected text or messages {MESSAGES_FORM}")


def _response(value: Any, column: str) -> str:
    if isinstance(value, str):
        return value
    messages = [value] if isinstance(value, Mapping) else value
    if isinstance(messages, list) and messages:
        return reply_text(_messages(messages, column)[-1])
    raise ValueError(f"column {column!r} is {describe(value)}; expected text or messages {MESSAGES_FORM}")


def _messages(values: Any, column: str) -> list[Any]:
    for value in values if isinstance(values, list) else [values]:
        is_message = isinstance(value, Mapping) and isinstance(value.get("content"), (str, type(None)))
        if not is_message or value.get("role") not in ("system", "user", "assistant", "tool"):
            raise ValueError(f"column {column!r} has {describe(value)}; expected messages {MESSAGES_FORM}")
    return list(values) if isinstance(values, list) else []


def match(a: Source, b: Source) -> Matched:
    """Pair the replies of two sources. Raises DataError when nothing matches."""
    by_id = all(answer.row_id is not None for source in (a, b) for answer in source.answers)
    of_a, of_b = _keyed(a.answers, by_id), _keyed(b.answers, by_id)
    shared = [key for key in of_a if key in of_b]
    pairs = [(of_a[key], of_b[key]) for key in shared]
    same_prompt = [pair for pair in pairs if pair[0].prompt == pair[1].prompt]
    if not same_prompt:
        raise DataError(
            f"{a.path} and {b.path} have no prompt in common ({len(of_a)} and {len(of_b)} replies, matched by "
            f"{'id' if by_id else 'prompt'}); sample both on the same prompts"
        )
    unmatched = (len(of_a) - len(shared), len(of_b) - len(shared))
    return Matched(same_prompt, unmatched, len(pairs) - len(same_prompt))


def _keyed(answers: Sequence[Answer], by_id: bool) -> dict[tuple[str, int], Answer]:
    """(id or prompt, how many-th reply to it) → reply."""
    counts: Counter[str] = Counter()
    keyed = {}
    for answer in answers:
        key = str(answer.row_id) if by_id else answer.prompt
        keyed[key, counts[key]] = answer
        counts[key] += 1
    return keyed
