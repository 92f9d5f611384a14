"""The embedded world as a writer of replies, critiques, revisions and prompts (`Writing`). Reads no text, sends none.

What it does well or badly is set by the dials of `Simulated` and follows from nothing else: that its revisions are
better than its drafts is put in, not found. What is measured is what a model learns from what it wrote.

Left out: a critique that is wrong in its reason, a revision that damages what was right, style.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, runtime_checkable

import numpy as np

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.transcript import human_turns, to_messages
from rlhf_lab.environments.dialogue.faults import PRINCIPLES, Fault, repaired
from rlhf_lab.packs.judging.judges.backends.settings import Simulated
from rlhf_lab.packs.judging.judges.questions import Comparison, Writing


@runtime_checkable
class Taught(Protocol):
    """A world that knows what is wrong with a reply, as `DialogueWorld` does."""

    def candidate(self, prompt: str, rng: np.random.Generator, quality: float) -> str: ...

    def faults(self, prompt: str, reply: str) -> list[Fault]: ...

    def prompts(self, n: int, split: str, seed: int) -> list[str]: ...


def write(about: Writing, settings: Simulated, world: object) -> str:
    """What the world's teacher answers: text of a reply, else JSON in the form that was asked for.

    The same question gets the same answer; `Writing.draw` makes another question of it.
    """
    if not isinstance(world, Taught):
        raise ConfigError("judge=simulated writes for the dialogue world alone; use data=mini_hh, or another judge")
    rng = np.random.default_rng(_seed(about, settings.seed))
    match about.kind:
        case "reply":
            return world.candidate(about.prompt, rng, settings.skill)
        case "critique":
            return json.dumps({"violations": _critique(about, settings, world, rng)})
        case "revision":
            named = [fault for fault in world.faults(about.prompt, about.draft) if fault.principle in about.principles]
            succeeds = rng.random(len(named)) < settings.repairs
            revision = repaired(about.draft, [fault for fault, is_done in zip(named, succeeds, strict=True) if is_done])
            return json.dumps({"revision": revision})
        case "prompt":
            return json.dumps({"prompts": _new_prompts(about, settings, world, rng)})


def _seed(about: Writing, seed: int) -> int:
    """A number that follows from everything that a writing is about."""
    parts = (about.kind, about.prompt, about.draft, *about.principles, str(about.count), str(about.draw), str(seed))
    content = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(content, digest_size=8).digest())


def _critique(about: Writing, settings: Simulated, world: Taught, rng: np.random.Generator) -> list[dict[str, str]]:
    """Principles that are found violated: not all that are, and some that are not."""
    _check_known(about.principles)
    reasons: dict[str, list[str]] = {}
    for fault in world.faults(about.prompt, about.draft):
        reasons.setdefault(fault.principle, []).append(fault.reason)
    violations = []
    for name, draw in zip(about.principles, rng.random(len(about.principles)).tolist(), strict=True):
        if name in reasons and draw >= settings.misses:
            violations.append({"principle": name, "reason": "; ".join(reasons[name])})
        elif name not in reasons and draw < settings.false_alarms:
            violations.append({"principle": name, "reason": f"it could be more {name}"})
    return violations


def _check_known(principles: Sequence[str]) -> None:
    unknown = [name for name in principles if name not in PRINCIPLES]
    if unknown:
        raise ConfigError(
            f"judge=simulated knows the principles {', '.join(PRINCIPLES)}, and not {', '.join(unknown)}; name the "
            "constitution's so, or use another judge"
        )


def deciding_principle(about: Comparison, winner: str, world: object) -> str:
    """The principle in which the better reply ("A", "B" or "tie") is ahead by most faults; the first of equal ones.

    It is a reason given afterwards: the winner follows from the dials, whatever the principles.
    """
    _check_known(about.principles)
    if not isinstance(world, Taught):
        raise ConfigError("judge=simulated knows principles in the dialogue world alone; use data=mini_hh")
    faults_A, faults_B = (
        Counter(fault.principle for fault in world.faults(about.prompt, reply)) for reply in (about.first, about.second)
    )
    sign = -1 if winner == "B" else 1
    return max(about.principles, key=lambda name: sign * (faults_B[name] - faults_A[name]))


def _new_prompts(about: Writing, settings: Simulated, world: Taught, rng: np.random.Generator) -> list[str]:
    """Questions of the world's training split; some are the example again."""
    prompts: list[str] = []
    drawn = _single_turns(world, about.count, int(rng.integers(2**31)))
    for prompt, is_copy in zip(drawn, (rng.random(about.count) < settings.copies).tolist(), strict=True):
        prompts.append(about.prompt if is_copy else prompt)
    return prompts


def _single_turns(world: Taught, count: int, seed: int) -> list[str]:
    """`count` questions in which the human speaks once, as plain text."""
    questions: list[str] = []
    drawn = 2 * count
    while len(questions) < count:
        drawn *= 2  # most prompts of the world have one turn; the first of a longer draw are the shorter one
        single: Sequence[str] = [text for text in world.prompts(drawn, "train", seed) if human_turns(text) == 1]
        questions = [str(to_messages(text)[-1]["content"]) for text in single[:count]]
    return questions
