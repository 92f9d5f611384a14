"""The embedded world as a writer of responses, critiques, revisions and prompts (`Writing`). Reads and sends no text.

The settings of `Simulated` alone determine how well it writes. That its revisions improve on its drafts is an
assumption, not a result; experiments measure what a model learns from the texts.

Not simulated: critiques with a wrong reason, revisions that damage correct parts, and style.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from itertools import compress
from typing import Protocol, runtime_checkable

import numpy as np

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.transcript import human_turns, to_messages
from rlhf_lab.environments.dialogue.faults import PRINCIPLES, Fault, repaired
from rlhf_lab.packs.judging.judges.backends.settings import Simulated
from rlhf_lab.packs.judging.judges.questions import PairwiseQuestion, Writing


@runtime_checkable
class Taught(Protocol):
    """A world that knows the faults of a response, such as `DialogueWorld`."""

    def candidate(self, prompt: str, rng: np.random.Generator, quality: float) -> str: ...

    def faults(self, prompt: str, response: str) -> list[Fault]: ...

    def prompts(self, n: int, split: str, seed: int) -> list[str]: ...


def write(about: Writing, settings: Simulated, world: object) -> str:
    """Return the answer of the world's teacher: the text of a response, otherwise JSON in the requested form.

    The same question gets the same answer. Another `Writing.draw` makes it another question.
    """
    if not isinstance(world, Taught):
        raise ConfigError("judge=simulated writes only for the dialogue world; use data=mini_hh, or another judge")
    rng = np.random.default_rng(_seed(about, settings.seed))
    match about.kind:
        case "reply":
            return world.candidate(about.prompt, rng, settings.skill)
        case "critique":
            return json.dumps({"violations": _critique(about, settings, world, rng)})
        case "revision":
            # each named fault is repaired with probability `repairs`; faults that the critique missed remain
            named = [fault for fault in world.faults(about.prompt, about.draft) if fault.principle in about.principles]
            succeeds = rng.random(len(named)) < settings.repairs
            return json.dumps({"revision": repaired(about.draft, list(compress(named, succeeds)))})
        case "prompt":
            return json.dumps({"prompts": _new_prompts(about, settings, world, rng)})


def _seed(about: Writing, seed: int) -> int:
    parts = (about.kind, about.prompt, about.draft, *about.principles, str(about.count), str(about.draw), str(seed))
    content = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(content, digest_size=8).digest())


def _critique(about: Writing, settings: Simulated, world: Taught, rng: np.random.Generator) -> list[dict[str, str]]:
    """Return violated principles, with misses and false alarms at the configured rates."""
    _check_known(about.principles)
    reasons: dict[str, list[str]] = {}
    for fault in world.faults(about.prompt, about.draft):
        reasons.setdefault(fault.principle, []).append(fault.reason)
    violations = []
    draws = rng.random(len(about.principles)).tolist()
    for name, draw in zip(about.principles, draws, strict=True):
        if name in reasons and draw >= settings.misses:
            violations.append({"principle": name, "reason": "; ".join(reasons[name])})
        elif name not in reasons and draw < settings.false_alarms:
            violations.append({"principle": name, "reason": f"it could be more {name}"})
    return violations


def _check_known(principles: Sequence[str]) -> None:
    unknown = [name for name in principles if name not in PRINCIPLES]
    if unknown:
        raise ConfigError(
            f"judge=simulated does not know the principles {', '.join(unknown)}; it knows {', '.join(PRINCIPLES)}. Use "
            "these names in the constitution, or use another judge"
        )


def deciding_principle(about: PairwiseQuestion, winner: str, world: object) -> str:
    """Return the principle that speaks most for the winner ("A", "B" or "tie"), by the difference in number of faults.

    Of equal principles the first is returned. It does not cause the verdict: the winner depends on the judge's
    settings, not on the principles.
    """
    _check_known(about.principles)
    if not isinstance(world, Taught):
        raise ConfigError("judge=simulated knows principles only in the dialogue world; use data=mini_hh")
    faults_A, faults_B = (
        Counter(fault.principle for fault in world.faults(about.prompt, completion))
        for completion in (about.first, about.second)
    )
    sign = -1 if winner == "B" else 1  # for a tie, the principle in which A leads
    return max(about.principles, key=lambda name: sign * (faults_B[name] - faults_A[name]))


def _new_prompts(about: Writing, settings: Simulated, world: Taught, rng: np.random.Generator) -> list[str]:
    """Return prompts from the world's training split. A fraction `copies` of them repeats the example."""
    selected = _single_turns(world, about.count, int(rng.integers(2**31)))
    is_copies = (rng.random(about.count) < settings.copies).tolist()
    return [about.prompt if is_copy else prompt for prompt, is_copy in zip(selected, is_copies, strict=True)]


def _single_turns(world: Taught, count: int, seed: int) -> list[str]:
    questions: list[str] = []
    selected = 2 * count
    while len(questions) < count:
        # Most prompts of the world have one turn. A longer sample starts with the shorter one, so retrying is safe.
        selected *= 2
        prompts = world.prompts(selected, "train", seed)
        single: Sequence[str] = [text for text in prompts if human_turns(text) == 1]
        questions = [str(to_messages(text)[-1]["content"]) for text in single[:count]]
    return questions
