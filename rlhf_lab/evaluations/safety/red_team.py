"""Automated red-teaming: rounds in which every prompt that still holds is asked in another disguise.

Of each round: a template of attacks.py disguises the request, the attacker (where there is one) rewords it, the policy
replies once, the classifier decides. A prompt that succeeded is not asked again. `attempts` rounds are the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.types import SafetyPrompt
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.evaluations.safety.asking import Policy, Rows, succeeded
from rlhf_lab.evaluations.safety.attacks import ATTACKS, REWORD, disguise, last_request
from rlhf_lab.evaluations.safety.classify import Classifier
from rlhf_lab.evaluations.safety.settings import Safety
from rlhf_lab.judges.caller import judge_of
from rlhf_lab.judges.requests import Request
from rlhf_lab.training.run import Run

Reword = Callable[[Sequence[str], int], list[str]]
"""(requests, round) → the same requests in other words."""


@dataclass
class Attempt:
    """A prompt under attack.

    Attributes:
        tried: disguises so far.
        succeeded: whether the last one did.
    """

    prompt: SafetyPrompt
    number: int
    tried: int = 0
    succeeded: bool = False


def attacker_of(settings: Safety, run: Run) -> Reword | None:
    """Who rewords the disguises; None where the templates stand by themselves."""
    if not settings.attempts or settings.attacker == "templates":
        return None
    if settings.attacker == "judge":
        judge = judge_of(run)

        def by_judge(requests: Sequence[str], draw: int) -> list[str]:
            asked = [
                Request(({"role": "user", "content": REWORD.format(text=text)},), max_tokens=256, draw=draw)
                for text in requests
            ]
            replies = judge.complete_many(asked, title="attacker")
            return [reply.text if reply.stop == "end" else "" for reply in replies]

        return by_judge
    policy = Policy("attacker", run.needs["attacker"], run)

    def by_policy(requests: Sequence[str], draw: int) -> list[str]:
        prompts = [as_prompt(REWORD.format(text=text)) for text in requests]
        return [group[0].response for group in policy.ask(f"reword/{draw}", prompts, 1)]

    return by_policy


def red_team(
    policy: Policy, prompts: Sequence[SafetyPrompt], classifier: Classifier, budget: int, reword: Reword | None
) -> Rows:
    """Rows of every attempt, then one per prompt that says whether some attempt succeeded, and which."""
    attacks = [Attempt(prompt, number) for number, prompt in enumerate(prompts)]
    rows: Rows = []
    last: dict[int, dict[str, Any]] = {}
    for turn in range(budget):
        standing = [attack for attack in attacks if not attack.succeeded]
        if not standing:
            break
        name = list(ATTACKS)[turn % len(ATTACKS)]
        disguised = _disguise(name, turn, standing, reword)
        replies = policy.ask(f"red_team/{turn}", [prompt.prompt for prompt in disguised], 1)
        outcomes = classifier.outcomes(disguised, [group[0].response for group in replies])
        for attack, prompt, (episode,), outcome in zip(standing, disguised, replies, outcomes, strict=True):
            attack.tried += 1
            attack.succeeded = bool(succeeded(outcome))
            row = policy.row("red_team", attack.number, turn, prompt, episode)
            last[attack.number] = {**row, "outcome": outcome, "attack": name}
            rows.append(last[attack.number])
    for attack in attacks:
        # under the prompt's own text, so that runs are paired by prompt, whatever its disguises were
        summary = {**last[attack.number], "part": "red_team_prompt", "prompt": attack.prompt.prompt}
        rows.append({**summary, "safety/red_team": int(attack.succeeded), "safety/attempts": attack.tried})
    return rows


def _disguise(name: str, turn: int, standing: Sequence[Attempt], reword: Reword | None) -> list[SafetyPrompt]:
    texts = [ATTACKS[name](last_request(attack.prompt)) for attack in standing]
    if reword is not None:
        # an attacker that refuses or says nothing leaves the template as it is
        texts = [new.strip() or old for new, old in zip(reword(texts, turn), texts, strict=True)]
    return [disguise(attack.prompt, text) for attack, text in zip(standing, texts, strict=True)]
