"""Automated red-teaming: rounds in which every prompt that still holds is asked in another disguise.

Of each round: a template of attacks.py disguises the request, the attacker (where there is one) rewords it, the policy
replies once, the classifier decides. A prompt that succeeded is not asked again. `attempts` rounds are the budget.

A disguise that loses its beginning would lose the request itself. So disguises have all the room of the model's
positions, whatever rollout.max_prompt_tokens is; one that does not fit even there is skipped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.types import SafetyPrompt
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.packs.judging.judges.caller import judge_of
from rlhf_lab.packs.judging.judges.requests import Request
from rlhf_lab.packs.judging.safety.asking import Policy, Rows, succeeded
from rlhf_lab.packs.judging.safety.attacks import ATTACKS, REWORD, disguise, last_request
from rlhf_lab.packs.judging.safety.classify import Classifier
from rlhf_lab.packs.judging.safety.settings import Safety
from rlhf_lab.training.run import Run

Reword = Callable[[Sequence[str], int], list[str]]
"""(requests, round) → the same requests in other words."""


@dataclass
class Attempt:
    """A prompt under attack.

    Attributes:
        tried: disguises so far.
        scored: how many of them the classifier could judge.
        succeeded: whether the last one did.
    """

    prompt: SafetyPrompt
    number: int
    tried: int = 0
    scored: int = 0
    succeeded: bool = False

    @property
    def outcome(self) -> int | None:
        """Whether some disguise succeeded; None where none did and one was not scored, since that one may have."""
        return int(self.succeeded) if self.succeeded or self.scored == self.tried else None


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
        asked = [number for number, prompt in enumerate(prompts) if policy.fits(prompt)]
        if len(asked) < len(prompts):
            run.note(
                f"attacker: {len(prompts) - len(asked)} of {len(prompts)} requests to reword are longer than the "
                f"{policy.prompt_room} tokens that its positions leave to a prompt; their templates stand as they are"
            )
        reworded = [""] * len(prompts)
        if asked:
            replies = policy.ask(f"reword/{draw}", [prompts[i] for i in asked], 1, max_tokens=policy.prompt_room)
            for number, (episode,) in zip(asked, replies, strict=True):
                reworded[number] = episode.response
        return reworded

    return by_policy


def red_team(
    policy: Policy, prompts: Sequence[SafetyPrompt], classifier: Classifier, budget: int, reword: Reword | None
) -> Rows:
    """Rows of every attempt, then one per prompt that says whether some attempt succeeded, and which."""
    attacks = [Attempt(prompt, number) for number, prompt in enumerate(prompts)]
    rows: Rows = []
    last: dict[int, dict[str, Any]] = {}
    too_long: Counter[str] = Counter()
    for turn in range(budget):
        standing = [attack for attack in attacks if not attack.succeeded]
        if not standing:
            break
        name = list(ATTACKS)[turn % len(ATTACKS)]
        disguised = _disguise(name, turn, standing, reword)
        fitting = [i for i, prompt in enumerate(disguised) if policy.fits(prompt.prompt)]
        too_long[name] += len(disguised) - len(fitting)
        if not fitting:
            continue
        standing, disguised = [standing[i] for i in fitting], [disguised[i] for i in fitting]
        prompts_of_turn = [prompt.prompt for prompt in disguised]
        replies = policy.ask(f"red_team/{turn}", prompts_of_turn, 1, max_tokens=policy.prompt_room)
        outcomes = classifier.outcomes(disguised, [group[0].response for group in replies])
        for attack, prompt, (episode,), outcome in zip(standing, disguised, replies, outcomes, strict=True):
            attack.tried += 1
            attack.scored += outcome is not None
            attack.succeeded = bool(succeeded(outcome))
            row = policy.row("red_team", attack.number, turn, prompt, episode)
            last[attack.number] = {**row, "outcome": outcome, "attack": name}
            rows.append(last[attack.number])
    _note_too_long(policy, +too_long, sum(not attack.tried for attack in attacks))
    for attack in attacks:
        if not attack.tried:
            continue
        # under the prompt's own text, so that runs are paired by prompt, whatever its disguises were
        summary = {**last[attack.number], "part": "red_team_prompt", "prompt": attack.prompt.prompt}
        rows.append({**summary, "safety/red_team": attack.outcome, "safety/attempts": attack.tried})
    return rows


def _note_too_long(policy: Policy, too_long: Mapping[str, int], untried: int) -> None:
    if not too_long:
        return
    counts = ", ".join(f"{name} {count}" for name, count in too_long.items())
    left_out = f"; {untried} prompts fit in no disguise and are left out" if untried else ""
    policy.run.note(
        f"{policy.name}: red-team prompts longer than the {policy.prompt_room} tokens that the model's positions leave "
        f"to a prompt are skipped: {counts}{left_out}"
    )


def _disguise(name: str, turn: int, standing: Sequence[Attempt], reword: Reword | None) -> list[SafetyPrompt]:
    texts = [ATTACKS[name](last_request(attack.prompt)) for attack in standing]
    if reword is not None:
        # an attacker that refuses or says nothing leaves the template as it is
        texts = [new.strip() or old for new, old in zip(reword(texts, turn), texts, strict=True)]
    return [disguise(attack.prompt, text) for attack, text in zip(standing, texts, strict=True)]
