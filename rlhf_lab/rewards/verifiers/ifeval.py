"""Check of whether a response follows the instructions of its row, in the format of IFEval (arXiv:2311.07911).

A row names the instructions in `instruction_id_list` and has one object of arguments for each in `kwargs`, in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.rewards.verifiers.instructions import ABOUT_LANGUAGE, INSTRUCTIONS, RELATIONS, detector
from rlhf_lab.rewards.verifiers.settings import IFEval
from rlhf_lab.rewards.verifiers.verifier import ABSTAINS, VerifierTermReward, VerifierVerdict, term_reward

if TYPE_CHECKING:
    from rlhf_lab.training.run import Run

Instruction = tuple[str, Mapping[str, Any]]
"""(id, arguments)"""
FORM = (
    'expected instruction_id_list, a list of ids, and kwargs, a list of as many objects: ["punctuation:no_comma"] and '
    "[{}]"
)


class IFEvalVerifier:
    """Verifier of a row's instructions. Unscored if the row has none, or one that cannot be checked here."""

    def __init__(self, settings: IFEval):
        self.settings = settings
        if settings.languages == "langdetect":
            detector()  # raises MissingDependency now, before anything is sampled

    def verdict(self, metadata: Mapping[str, Any], prompt: str, response: str) -> VerifierVerdict:
        """Return the score with its parts.

        Parts: `strict_all` and `loose_all` are 1 if all instructions are followed; `strict_followed` and
        `loose_followed` count the followed instructions; `instructions` is their total number.
        """
        instructions = read_instructions(metadata)
        ids = [instruction for instruction, _ in instructions]
        needs_detector = any(name in ABOUT_LANGUAGE for name in ids)
        if not ids or (needs_detector and self.settings.languages == "abstain"):
            return ABSTAINS
        counts = {
            "strict": instruction_followed([response], instructions),
            "loose": instruction_followed(lenient_variants(response), instructions),
        }
        parts = {"instructions": float(len(ids))}
        for reading, count in counts.items():
            parts |= {f"{reading}_all": float(count == len(ids)), f"{reading}_followed": float(count)}
        if self.settings.credit == "all":
            return VerifierVerdict(parts[f"{self.settings.reading}_all"], parts)
        return VerifierVerdict(counts[self.settings.reading] / len(ids), parts)


def instruction_followed(responses: list[str], instructions: list[Instruction]) -> int:
    """Return the number of instructions that at least one variant of a response follows. Empty variants follow none."""
    versions = [response for response in responses if response.strip()]
    count = 0
    for name, arguments in instructions:
        check, _ = INSTRUCTIONS[name]
        count += any(check(response, arguments) for response in versions)
    return count


def lenient_variants(response: str) -> list[str]:
    """Return a response in full and without its first line, last line or both, each also without asterisks."""
    lines = response.split("\n")
    shortened = (lines[1:], lines[:-1], lines[1:-1])  # first lines often introduce, last lines often close
    versions = [response, *("\n".join(part).strip() for part in shortened)]
    without_asterisks = [version.replace("*", "") for version in versions]
    return list(dict.fromkeys([*versions, *without_asterisks]))


def read_instructions(metadata: Mapping[str, Any]) -> list[Instruction]:
    """Return the instructions of a row; empty without such columns. Raise DataError if they have another form."""
    ids, arguments = metadata.get("instruction_id_list"), metadata.get("kwargs")
    if ids is None and arguments is None:
        return []
    # As JSON text, because the cache of `_parse` needs a hashable argument.
    return _parse(json.dumps([ids, arguments], sort_keys=True))


@lru_cache(maxsize=4096)
def _parse(columns: str) -> list[Instruction]:
    """Parse and check both columns, given as JSON. A .csv file has them as texts."""
    ids, arguments = (_listed(value) for value in json.loads(columns))
    if ids is None or arguments is None or len(ids) != len(arguments):
        raise DataError(f"the row has {columns[:120]}; {FORM}")
    return [(name, _check_arguments(name, values or {})) for name, values in zip(ids, arguments, strict=True)]


def _listed(value: Any) -> list[Any] | None:
    """Return a list, or the list in a JSON text; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, list) else None


def _check_arguments(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the arguments of an instruction. Tables fill the arguments of other instructions with null."""
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


make = IFEvalVerifier


def build(settings: IFEval, run: Run) -> VerifierTermReward:
    """Return the reward of the settings. Raise DataError at once if the instructions of a row are malformed."""
    for metadata in run.corpus.metadata.values():
        read_instructions(metadata)
    return term_reward(settings, run)
