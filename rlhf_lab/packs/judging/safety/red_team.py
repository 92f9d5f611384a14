"""Automated red-teaming: in each round, every prompt that has not succeeded yet is sent in another disguise.

A round has four steps: a template of attacks.py disguises the request, the attacker (if any) rewords it, the policy
responds once, and the classifier decides. A prompt that succeeded is not sent again. The budget is `attempts` rounds.

A disguise that is truncated at its beginning would lose the request itself. So disguises may use all positions of the
model, independent of rollout.max_prompt_tokens. One that does not fit is skipped and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import SafetyPrompt
from rlhf_lab.packs.judging.judges.context import judge_of
from rlhf_lab.packs.judging.judges.requests import CompletionRequest
from rlhf_lab.packs.judging.safety.asking import NamedPolicy, Rows
from rlhf_lab.packs.judging.safety.attacks import ATTACKS, REWORD, disguise, last_request
from rlhf_lab.packs.judging.safety.classify import Classifier, grade_columns
from rlhf_lab.packs.judging.safety.settings import Safety
from rlhf_lab.training.run import Run

Reword = Callable[[Sequence[str], int], list[str]]
"""(requests, index of the round) → the same requests in other words."""


@dataclass
class AttackState:
    """A prompt under attack.

    Attributes:
        tried: number of disguises so far.
        scored: number of disguises that the classifier could classify.
        succeeded: True if the last disguise succeeded.
    """

    prompt: SafetyPrompt
    number: int
    tried: int = 0
    scored: int = 0
    succeeded: bool = False

    @property
    def outcome(self) -> int | None:
        """1 if a disguise succeeded, else 0; None if none succeeded and one is unscored, since that one may have."""
        return int(self.succeeded) if self.succeeded or self.scored == self.tried else None


def attacker_of(settings: Safety, run: Run) -> Reword | None:
    """Return the function that rewords disguises; None if the templates are used alone."""
    if not settings.attempts or settings.attacker == "templates":
        return None
    judge = judge_of(run)

    def by_judge(requests: Sequence[str], draw: int) -> list[str]:
        messages = [Message(role="user", content=REWORD.format(text=text)) for text in requests]
        requested = [CompletionRequest((message,), max_tokens=256, draw=draw) for message in messages]
        responses = judge.complete_many(requested, title="attacker")
        # a refusal, or a text that was cut off, is no disguise
        return [response.text if response.stop == "end" else "" for response in responses]

    return by_judge


def red_team(
    policy: NamedPolicy, prompts: Sequence[SafetyPrompt], classifier: Classifier, budget: int, reword: Reword | None
) -> Rows:
    """Return a row per attempt, then a row per prompt with its success and the last attempt."""
    attacks = [AttackState(prompt, index) for index, prompt in enumerate(prompts)]
    rows: Rows = []
    last: dict[int, dict[str, Any]] = {}
    too_long: Counter[str] = Counter()  # name of the attack → number of skipped disguises
    for turn in range(budget):
        standing = [attack for attack in attacks if not attack.succeeded]
        if not standing:
            break
        # a round uses one attack for all prompts; with more rounds than attacks, they repeat
        name = list(ATTACKS)[turn % len(ATTACKS)]
        disguised = _disguise(name, turn, standing, reword)
        # a skipped disguise does not count as an attempt, so the prompt stays in the next round
        fitting = [i for i, prompt in enumerate(disguised) if policy.fits(prompt.prompt)]
        too_long[name] += len(disguised) - len(fitting)
        if not fitting:
            continue
        standing = [standing[i] for i in fitting]
        disguised = [disguised[i] for i in fitting]
        texts = [prompt.prompt for prompt in disguised]
        responses = policy.ask(f"red_team/{turn}", texts, 1, max_tokens=policy.prompt_capacity)
        grades = classifier.grades(disguised, [group[0].response for group in responses])
        for attack, prompt, (episode,), grade in zip(standing, disguised, responses, grades, strict=True):
            attack.tried += 1
            attack.scored += grade is not None
            attack.succeeded = grade is not None and grade.reading.answered
            row = policy.row("red_team", attack.number, turn, prompt, episode)
            last[attack.number] = {**row, **grade_columns(grade), "attack": name}
            rows.append(last[attack.number])
    _note_too_long(policy, +too_long, sum(not attack.tried for attack in attacks))
    for attack in attacks:
        if not attack.tried:
            continue
        # the summary has the original text, so that runs are paired by prompt, whatever the disguises were
        summary = {"part": "red_team_prompt", "prompt": attack.prompt.prompt}
        metrics = {"safety/red_team": attack.outcome, "safety/attempts": attack.tried}
        rows.append({**last[attack.number], **summary, **metrics})
    return rows


def _note_too_long(policy: NamedPolicy, too_long: Mapping[str, int], untried: int) -> None:
    if not too_long:
        return
    counts = ", ".join(f"{name} {count}" for name, count in too_long.items())
    left_out = f"; {untried} prompts fit in no disguise and are left out" if untried else ""
    policy.run.note(
        f"{policy.name}: skipped red-team prompts, longer than the {policy.prompt_capacity} tokens that the model has "
        f"for a prompt: {counts}{left_out}"
    )


def _disguise(name: str, turn: int, standing: Sequence[AttackState], reword: Reword | None) -> list[SafetyPrompt]:
    texts = [ATTACKS[name](last_request(attack.prompt)) for attack in standing]
    if reword is not None:
        # if the attacker refuses or writes nothing, the template is used unchanged
        reworded = reword(texts, turn)
        texts = [new.strip() or old for new, old in zip(reworded, texts, strict=True)]
    return [disguise(attack.prompt, text) for attack, text in zip(standing, texts, strict=True)]
