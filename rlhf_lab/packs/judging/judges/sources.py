"""Responses to judge, from one policy of a run directory or from a file, and the matching of two sources.

A file is JSONL or one JSON list. A row has a prompt (`prompt`: text, a transcript or messages) and a response
(`response` or `completion`: text, a message or messages), or `messages` whose last one is the response, or the columns
of AlpacaEval's model_outputs.json: `instruction`, `output` and `generator`, the name of the policy. An `input` that
belongs to the instruction, as in Alpaca's data, follows it after an empty line. If all rows have an `id` (or
`question_id`, as in MT-Bench), the sources are matched by it, otherwise by prompt. The k-th response to a prompt is
matched with the k-th one of the other source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_lab.core import checksums as seal
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.files import file_digest, parse_json, read_jsonl, read_object
from rlhf_lab.core.policies import in_training_order, own_policy
from rlhf_lab.core.text import well_formed_value
from rlhf_lab.data.rows import describe
from rlhf_lab.data.text_files import file_lines, is_json_list, read_json_file
from rlhf_lab.data.transcript import REPLY, TURN, as_prompt, render_prompt, response_text

ROWS, RESULT = "evaluation.jsonl", "result.json"
IDS = ("question_id", "id")
"""Names of the id column, in order of precedence."""
PROMPTS = ("prompt", "instruction")
"""Names of the prompt column, in order of precedence."""
REPLIES = ("response", "completion", "output")
"""Names of the response column, in order of precedence."""
OTHER_PROMPT = ("red_team_prompt", "push_back", "ask_again", "extraction")
"""Parts of a safety run whose responses do not answer the conversation in the column `prompt`, but a disguise of it, a
second turn, or a request for a code. The column `prompt` is only the cluster of such rows."""
MESSAGES_FORM = '[{"role": "user", "content": "…"}, …]'
"""Expected form of messages, for errors."""


@dataclass(frozen=True)
class SourcedResponse:
    """A response with its prompt.

    Attributes:
        prompt: transcript that ends where the response starts.
        row_id: id of the row in its file; None if the row has no id.
        metadata: the other columns of the row.
    """

    prompt: str
    response: str
    row_id: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class ResponseSource:
    """All responses of one side.

    Attributes:
        path: path as given on the command line.
        policy: policy of a run directory; None for a file.
        digest: SHA-256 of the file they were read from.
    """

    path: Path
    policy: str | None
    answers: Sequence[SourcedResponse]
    digest: str

    @property
    def author(self) -> str:
        """Name of who wrote the responses: the policy, the column `generator` if it is the same for all rows, or the
        name of the file."""
        generators = {answer.metadata.get("generator") for answer in self.answers}
        generator = next(iter(generators)) if len(generators) == 1 else None
        return self.policy or (generator if isinstance(generator, str) else "") or self.path.stem

    def summary(self) -> dict[str, Any]:
        """Return the source as it is recorded with a result."""
        return {"path": str(self.path), "policy": self.policy, "replies": len(self.answers), "sha256": self.digest}


@dataclass(frozen=True)
class Matched:
    """Responses of two sources to the same prompts.

    Attributes:
        pairs: (response of A, response of B) in A's order.
        unmatched: number of responses of A and of B without a counterpart.
        other_prompt: number of rows with the same id but different prompts; they are not compared.
    """

    pairs: list[tuple[SourcedResponse, SourcedResponse]]
    unmatched: tuple[int, int]
    other_prompt: int = 0


def read_source(path: Path, policy: str | None = None) -> ResponseSource:
    """Read the responses of a run directory or of a JSONL file. Raises DataError if there are none.

    Args:
        policy: policy of a run directory; None selects the run's own. Ignored for a file.
    """
    if path.is_dir():
        return _read_run(path, policy)
    if not path.is_file():
        raise DataError(f"{path} does not exist; name a run directory, or a .jsonl file of prompts and responses")
    answers = []
    problems = []
    for number, read in _rows(path):
        try:
            answers.append(_read_answer(read()))
        except ValueError as error:
            message = f"is not JSON ({error.msg})" if isinstance(error, json.JSONDecodeError) else str(error)
            problems.append(f"{path}, row {number}: {message}")
    if problems:
        more = f"\n… and {len(problems) - 20} more rows" if len(problems) > 20 else ""
        raise DataError("\n".join(problems[:20]) + more)
    if not answers:
        raise DataError(f"{path} has no rows; expected one per response, with the columns prompt and response")
    return ResponseSource(path, None, answers, file_digest(path))


def _rows(path: Path) -> Iterator[tuple[int, Callable[[], Any]]]:
    # functions, so that the caller can report a row that cannot be parsed with its number
    if is_json_list(path):
        for number, item in enumerate(read_json_file(path), start=1):
            yield number, partial(well_formed_value, item)
    else:
        for number, line in file_lines(path):
            if line.strip():
                yield number, partial(parse_json, line)


def _read_run(directory: Path, policy: str | None) -> ResponseSource:
    # raises if files of the run are missing or were changed after the run
    seal.check(directory, rebuilt=False, say=console.print)
    rows = read_jsonl(directory / ROWS)
    if not rows:
        raise DataError(
            f"{directory} has no {ROWS} with responses; name the run directory of an evaluation, or a .jsonl file"
        )
    stored = [each["name"] for each in read_object(directory / RESULT).get("policies") or []]
    names = in_training_order(stored, [row["policy"] for row in rows])
    policy = policy or own_policy(names)
    if policy not in names:
        raise DataError(f"policy={policy}: {directory} evaluated {', '.join(names)}; name one of these")
    rows = [row for row in rows if row["policy"] == policy and row.get("part") not in OTHER_PROMPT]
    if not rows:
        raise DataError(f"{directory / ROWS} has no responses of {policy}; name another policy: policy='{names[0]}'")
    # only the last response of an episode is stored as `response`
    if any(row.get("turns", 1) > 1 for row in rows):
        raise DataError(
            f"{directory}: {policy} has episodes of several turns, and the last responses of two policies answer "
            "different conversations; judge runs with single responses"
        )
    answers = [SourcedResponse(row["prompt"], row["response"], None, {}) for row in rows]
    return ResponseSource(directory, policy, answers, file_digest(directory / ROWS))


def _read_answer(row: Any) -> SourcedResponse:
    """Parse a row of a file. Raises ValueError with the column, its content and the expected form."""
    if not isinstance(row, Mapping):
        raise ValueError(f'is {describe(row)}; expected an object like {{"prompt": …, "response": …}}')
    prompt_column = next((name for name in PROMPTS if name in row), None)
    response_column = next((name for name in REPLIES if name in row), None)
    if "messages" in row and response_column is None:
        messages = _messages(row["messages"], "messages")
        if len(messages) < 2 or messages[-1]["role"] != "assistant":
            raise ValueError("column 'messages' must end with the assistant's response to a message of the user")
        prompt, response = _prompt(messages[:-1], "messages"), response_text(messages[-1])
    elif prompt_column is not None and response_column is not None:
        asked = row[prompt_column]
        if prompt_column == "instruction" and isinstance(asked, str) and isinstance(row.get("input"), str):
            asked = f"{asked}\n\n{row['input']}"
        prompt = _prompt(asked, prompt_column)
        response = _response(row[response_column], response_column)
    else:
        listed = ", ".join(map(repr, row)) or "none"
        raise ValueError(
            f"the row has the columns {listed}; expected 'prompt' and 'response' (or 'completion'), 'messages', or "
            "'instruction' and 'output'. Rename the columns"
        )
    row_id = next((str(row[name]) for name in IDS if row.get(name) is not None), None)
    metadata = {name: value for name, value in row.items() if name not in ("messages", *PROMPTS, *REPLIES)}
    return SourcedResponse(prompt, response, row_id, metadata)


def _prompt(value: Any, column: str) -> str:
    if isinstance(value, str):
        prompt = as_prompt(value)
    elif isinstance(value, list):
        prompt = render_prompt(_messages(value, column))
    else:
        raise ValueError(f"column {column!r} is {describe(value)}; expected text or messages {MESSAGES_FORM}")
    # A response may replace, repeat or continue such a turn; only a final "\n\nAssistant:" says that it is another one.
    opens_response = isinstance(value, str) and value.rstrip().endswith(REPLY)
    if not opens_response and TURN.findall(prompt)[-2:-1] in (["Assistant"], ["Calls"]):
        raise ValueError(
            f"column {column!r} has a turn of the assistant directly before the response; leave the turn out, or move "
            "it to the beginning of the response if the response continues it"
        )
    return prompt


def _response(value: Any, column: str) -> str:
    if isinstance(value, str):
        return value
    messages = [value] if isinstance(value, Mapping) else value
    if isinstance(messages, list) and messages:
        last = _messages(messages, column)[-1]
        if last["role"] != "assistant":
            raise ValueError(
                f"column {column!r} ends with a message of the role {last['role']}; expected the assistant's"
            )
        return response_text(last)
    raise ValueError(f"column {column!r} is {describe(value)}; expected text or messages {MESSAGES_FORM}")


def _messages(values: Any, column: str) -> list[Any]:
    messages = values if isinstance(values, list) else [values]  # anything else is reported as an invalid message
    for message in messages:
        # a message that only calls tools may have no content
        is_message = isinstance(message, Mapping) and isinstance(message.get("content"), (str, type(None)))
        if not is_message or message.get("role") not in ("system", "user", "assistant", "tool"):
            raise ValueError(f"column {column!r} has {describe(message)}; expected messages {MESSAGES_FORM}")
    return list(messages)


def match(a: ResponseSource, b: ResponseSource) -> Matched:
    """Pair the responses of two sources. Raises DataError if no pair has the same prompt."""
    by_id = all(answer.row_id is not None for answer in (*a.answers, *b.answers))
    of_a, of_b = _keyed(a.answers, by_id), _keyed(b.answers, by_id)
    shared = [key for key in of_a if key in of_b]
    pairs = [(of_a[key], of_b[key]) for key in shared]
    same_prompt = [pair for pair in pairs if pair[0].prompt == pair[1].prompt]
    if not same_prompt:
        method = "id" if by_id else "prompt"
        raise DataError(
            f"{a.path} and {b.path} have no prompt in common ({len(of_a)} and {len(of_b)} responses, matched by "
            f"{method}); sample both on the same prompts"
        )
    unmatched = (len(of_a) - len(shared), len(of_b) - len(shared))
    return Matched(same_prompt, unmatched, len(pairs) - len(same_prompt))


def _keyed(answers: Sequence[SourcedResponse], by_id: bool) -> dict[tuple[str, int], SourcedResponse]:
    """Return (id or prompt, index among the responses to it) → response."""
    counts: Counter[str] = Counter()
    keyed = {}
    for answer in answers:
        key = str(answer.row_id) if by_id else answer.prompt
        keyed[key, counts[key]] = answer
        counts[key] += 1
    return keyed
