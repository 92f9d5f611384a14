"""Settings of the verifiers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt, Lt
from rlhf_lab.rewards.term import TermSettings


@dataclass(frozen=True)
class VerifierSettings(TermSettings):
    """Common to every verifier: the score is 0…1, and unscored where the row lacks what the check needs."""

    verifies: ClassVar[bool] = True


@register("reward", "math")
@dataclass(frozen=True)
class Math(VerifierSettings):
    """The final answer must be the row's, as mathematics: numbers, formulas, sets, intervals, matrices, words.

    The answer is read as `rewards/verifiers/stated.py` says, and compared as `rewards/verifiers/equivalence.py` says.
    Parts: `stated`, whether there is one; `undecided`, whether comparing it took too long, which counts as wrong.

    Args:
        column: the column that holds a row's answer.
        lenient: without a marked, boxed or announced answer, take the last number of the reply.
        equivalence: `symbolic` asks math-verify wherever numbers and texts do not tell (`pip install
            'rlhf_lab[math]'`); `exact` takes such answers for wrong and needs no library.
        answer_timeout_s: for one pair of answers, in a process that is ended then.
    """

    column: str = "answer"
    lenient: bool = False
    equivalence: Literal["symbolic", "exact"] = "symbolic"
    answer_timeout_s: Annotated[float, Gt(0)] = 5.0

    @property
    def outcome(self) -> bool:
        return True


@register("reward", "ifeval")
@dataclass(frozen=True)
class IFEval(VerifierSettings):
    """The reply must follow the verifiable instructions of its row, in the form of IFEval (arXiv:2311.07911):
    `instruction_id_list` and `kwargs`. The 25 ids: `rewards/verifiers/instructions.py`.

    Parts: `strict_all`, `loose_all`, whether all instructions are followed (the paper's prompt-level accuracies);
    `strict_followed`, `loose_followed`, how many are, and `instructions`, how many there are: the ratio of their means
    is the paper's instruction-level accuracy.

    Args:
        reading: `strict` checks the reply as it is; `loose` also without its first line, its last line or both, and
            each without asterisks, and an instruction counts as followed where one of these eight follows it.
        credit: `share` of the instructions that are followed, or 1 for `all` and else 0.
        languages: `abstain` leaves rows unscored that have an instruction about the language of the reply
            (language:response_language, change_case:english_capital, change_case:english_lowercase), whatever is
            installed; `langdetect` checks them with that library (`pip install 'rlhf_lab[ifeval]'`).
    """

    reading: Literal["strict", "loose"] = "strict"
    credit: Literal["share", "all"] = "share"
    languages: Literal["abstain", "langdetect"] = "abstain"


@register("reward", "json")
@dataclass(frozen=True)
class Json(VerifierSettings):
    """The reply must be JSON (RFC 8259) that is valid under a JSON schema: the row's, or one for all rows.

    Parts: `parses`, whether it is JSON, and `valid`. Rows without a schema are unscored. The schema's `format` is not
    checked, and a `$ref` to another document is an error: nothing is fetched.

    Args:
        column: the column that holds a row's schema, an object or its text.
        schema: the schema, as text, of rows that have none; "" leaves those unscored.
        fenced: `allow` takes what is inside the reply's only block of ```, or else the whole reply; `require` only
            such a block; `refuse` only the whole reply.
        parses: score of a reply that is JSON and not valid, in [0, 1).
    """

    column: str = "schema"
    schema: str = ""
    fenced: Literal["allow", "require", "refuse"] = "allow"
    parses: Annotated[float, Ge(0), Lt(1, hint="a valid reply scores 1")] = 0.0

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (_is_json_object(self.schema), f"schema={self.schema!r} is no JSON object; write a schema as JSON text"),
        )


def _is_json_object(text: str) -> bool:
    """Whether a text is a JSON object, or empty."""
    try:
        return not text or isinstance(json.loads(text), dict)
    except ValueError:
        return False
