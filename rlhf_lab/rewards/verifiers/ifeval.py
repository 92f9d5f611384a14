"""Whether a reply follows the instructions of its row, in the form of IFEval (arXiv:2311.07911).

A row names them in `instruction_id_list` and has an object of arguments for each in `kwargs`, in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.rewards.verifiers.instructions import ABOUT_LANGUAGE, INSTRUCTIONS, RELATIONS, detector
from rlhf_lab.rewards.verifiers.settings import IFEval
from rlhf_lab.rewards.verifiers.verifier import ABSTAINS, Verdict, VerifierReward, verifier_of
from rlhf_lab.training.run import Run

Instruction = tuple[str, Mapping[str, Any]]
"""(id, arguments)"""
FORM = (
    'expected instruction_id_list, a list of ids, and kwargs, a list of as many objects: ["punctuation:no_comma"] and '
    "[{}]"
)


class IFEvalVerifier:
    """Checks the instructions of a row. Unscored where the row has none, or one that cannot be checked here."""

    def __init__(self, settings: IFEval):
        self.settings = settings
        if settings.languages == "langdetect":
            detector()  # says what to install before anything is sampled

    def score(self, facts: Mapping[str, Any], prompt: str, response: str) -> float:
        return self.verdict(facts, prompt, response).score

    def verdict(self, facts: Mapping[str, Any], prompt: str, response: str) -> Verdict:
        """Parts: `strict_all` and `loose_all`, whether all instructions are followed; `strict_followed` and
        `loose_followed`, how many; `instructions`, how many there are."""
        instructions = read_instructions(facts)
        ids = [instruction for instruction, _ in instructions]
        if not ids or (self.settings.languages == "abstain" and any(name in ABOUT_LANGUAGE for name in ids)):
            return ABSTAINS
        counts = {"strict": followed([response], instructions), "loose": followed(looser(response), instructions)}
        parts = {"instructions": float(len(ids))}
        for reading, count in counts.items():
            parts |= {f"{reading}_all": float(count == len(ids)), f"{reading}_followed": float(count)}
        if self.settings.credit == "all":
            return Verdict(parts[f"{self.settings.reading}_all"], parts)
        return Verdict(counts[self.settings.reading] / len(ids), parts)


def followed(replies: list[str], instructions: list[Instruction]) -> int:
    """How many instructions at least one version of a reply follows; an empty version follows none."""
    versions = [reply for reply in replies if reply.strip()]
    return sum(any(INSTRUCTIONS[name][0](reply, arguments) for reply in versions) for name, arguments in instructions)


def looser(response: str) -> list[str]:
    """A reply as it is and without its first line, its last line and both, each with and without its asterisks."""
    lines = response.split("\n")
    versions = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return list(dict.fromkeys([*versions, *(version.replace("*", "") for version in versions)]))


def read_instructions(facts: Mapping[str, Any]) -> list[Instruction]:
    """The instructions of a row; none where it has no such columns. Raises DataError where they have another form."""
    ids, arguments = facts.get("instruction_id_list"), facts.get("kwargs")
    if ids is None and arguments is None:
        return []
    return _parse(json.dumps([ids, arguments], sort_keys=True))


@lru_cache(maxsize=4096)
def _parse(columns: str) -> list[Instruction]:
    """The two columns, as JSON, checked. A .csv file has them as texts."""
    ids, arguments = (_listed(value) for value in json.loads(columns))
    if ids is None or arguments is None or len(ids) != len(arguments):
        raise DataError(f"the row has {columns[:120]}; {FORM}")
    return [(name, _checked(name, values or {})) for name, values in zip(ids, arguments, strict=True)]


def _listed(value: Any) -> list[Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, list) else None


def _checked(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of an instruction; tables fill those of other instructions with null."""
    if name not in INSTRUCTIONS:
        raise DataError(f"instruction {name!r} is unknown; known are {', '.join(INSTRUCTIONS)}")
    arguments = {key: value for key, value in values.items() if value is not None}
    for argument in INSTRUCTIONS[name][1]:
        value = arguments.get(argument)
        if value is None:
            raise DataError(f"instruction {name} has no argument {argument!r} in kwargs; it has {arguments}")
        if argument.endswith("relation") and value not in RELATIONS:
            raise DataError(f"instruction {name}: {argument}={value!r} is not one of {', '.join(RELATIONS)}")
    return arguments


def make(settings: IFEval) -> IFEvalVerifier:
    return IFEvalVerifier(settings)


def build(settings: IFEval, run: Run) -> VerifierReward:
    """Raises DataError for the first row whose instructions have another form, before anything is sampled."""
    for facts in run.corpus.facts.values():
        read_instructions(facts)
    return VerifierReward(verifier_of(settings, settings.runs_in(run.config)))
