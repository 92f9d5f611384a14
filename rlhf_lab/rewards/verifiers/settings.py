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
    """Base class of verifier settings. The score is 0…1, and unscored if the row lacks what the check needs."""

    verifies: ClassVar[bool] = True


@register("reward", "math")
@dataclass(frozen=True)
class Math(VerifierSettings):
    """Comparison of the final answer with the row's, as mathematics: numbers, formulas, sets, matrices, words.

    `rewards/verifiers/stated.py` reads the answer, `rewards/verifiers/equivalence.py` compares it. Parts: `stated` is 1
    if the response states an answer; `undecided` is 1 if the comparison took too long, which counts as wrong.

    Args:
        column: column with a row's answer.
        lenient: True to use the last number of the response if there is no marked, boxed or announced answer.
        equivalence: `symbolic` uses math-verify if numbers and texts do not decide (`pip install
            'rlhf_lab[math]'`). `exact` counts such answers as wrong and needs no library.
        answer_timeout_s: time limit in seconds for comparing one pair of answers; then the process is killed.
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
    """Check of the row's verifiable instructions, in the format of IFEval (arXiv:2311.07911).

    The row has the columns `instruction_id_list` and `kwargs`. `rewards/verifiers/instructions.py` lists the 25 ids.

    Parts: `strict_all` and `loose_all` are 1 if all instructions are followed (the paper's prompt-level accuracies).
    `strict_followed` and `loose_followed` count the followed instructions, `instructions` counts all of them; the ratio
    of their means is the paper's instruction-level accuracy.

    Args:
        reading: `strict` checks the response as it is. `loose` also checks it without its first line, its last line or
            both, and each variant without asterisks; one of these eight variants must follow the instruction.
        credit: `share` scores the fraction of instructions that are followed; `all` scores 1 for all, else 0.
        languages: `abstain` leaves rows unscored that have an instruction about the language of the response
            (language:response_language, change_case:english_capital, change_case:english_lowercase), even if
            langdetect is installed. `langdetect` checks them with that library (`pip install 'rlhf_lab[ifeval]'`).
    """

    reading: Literal["strict", "loose"] = "strict"
    credit: Literal["share", "all"] = "share"
    languages: Literal["abstain", "langdetect"] = "abstain"


@register("reward", "json")
@dataclass(frozen=True)
class Json(VerifierSettings):
    """Check of whether the response is JSON (RFC 8259) and valid under a JSON schema: the row's, or one for all rows.

    Parts: `parses` is 1 for JSON, `valid` is 1 for valid JSON. Rows without a schema are unscored. The schema's
    `format` is not checked. A `$ref` to another document is an error, because nothing is fetched from the network.

    Args:
        column: column with a row's schema, as an object or as JSON text.
        schema: schema, as JSON text, for rows that have none; "" leaves those rows unscored.
        fenced: `allow` reads the only ``` block of the response, or else the full response; `require` reads only such
            a block; `refuse` reads only the full response.
        parses: score of a response that is JSON but not valid, in [0, 1).
    """

    column: str = "schema"
    schema: str = ""
    fenced: Literal["allow", "require", "refuse"] = "allow"
    parses: Annotated[float, Ge(0), Lt(1, hint="a valid reply scores 1")] = 0.0

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (_is_json_object(self.schema), f"schema={self.schema!r} is not a JSON object; write a schema as JSON text"),
        )


def _is_json_object(text: str) -> bool:
    try:
        return not text or isinstance(json.loads(text), dict)
    except ValueError:
        return False
