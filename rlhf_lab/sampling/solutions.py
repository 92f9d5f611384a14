"""Worked solutions with a label on every step: what process and outcome reward models train on.

Three sources of step labels: the world's own reading, a planted mistake, and completions of the policy
(Math-Shepherd, arXiv:2312.08935). All is drawn once, at the start of a stage, from its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Pair
from rlhf_lab.environments.arithmetic.perturbation import Perturbed, largest_number, perturb
from rlhf_lab.environments.maths.answers import reaches
from rlhf_lab.environments.maths.chains import StepOracle, read_chain, step_lines, without_annotations
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.steps import step_row
from rlhf_lab.training.run import Run


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A solution and what is known of it.

    Attributes:
        labels: probability that each step (`step_lines`) is right; empty where nobody said.
        correct: 1 when the answer is right, else 0.
    """

    prompt: str
    reply: str
    correct: float
    labels: tuple[float, ...] = ()


class Solutions:
    """Samples solutions and completions from a policy and grades their answers."""

    def __init__(self, run: Run, policy: nn.Module, encoder: Encoder):
        self.run, self.policy, self.encoder = run, policy, encoder
        self.sampler = registry.build("rollout", run.config.rollout, encoder)

    def sample(self, prompts: Sequence[str], count: int, purpose: str) -> list[Trajectory]:
        """`count` solutions of each problem at temperature 1, problem by problem, unlabelled."""
        if not count:
            return []
        ids = [self.encoder.prompt(prompt, self.run.config.rollout.max_prompt_tokens) for prompt in prompts]
        samples = self.sampler.sample(self.policy, ids, count, self.run.seed(purpose), temperature=1.0)
        texts = [(p, self.encoder.text(r)) for p, group in zip(prompts, samples.replies_BG, strict=True) for r in group]
        return [self.graded(prompt, text) for prompt, text in texts]

    def graded(self, prompt: str, reply: str) -> Trajectory:
        return Trajectory(prompt, reply, float(reaches(reply, self.run.corpus.answers[prompt])))

    def complete(self, solutions: Sequence[Trajectory], rollouts: int, estimate: str) -> list[Trajectory]:
        """Math-Shepherd's labels: from each step the policy goes on `rollouts` times.

        A step's label is the share of completions that reach the right answer, or 1 when any does (`hard`). The last
        step of a solution leaves nothing to complete: its label is whether the answer is right. All prefixes of all
        solutions are one call of the sampler, each distinct prefix once.
        """
        limit = self.run.config.rollout
        window = limit.max_prompt_tokens + limit.max_new_tokens
        number: dict[tuple[str, tuple[int, ...]], int] = {}
        asked: list[list[int]] = []
        marks: list[list[int]] = []
        whole: list[bool] = []
        for each in solutions:
            row = step_row(self.encoder, each.prompt, each.reply, step_lines(each.reply), window)
            head, reply = row.row
            marks.append([])
            whole.append(len(row.ends) == len(step_lines(each.reply)))
            for end in row.ends[:-1] if whole[-1] else row.ends:
                prefix = tuple(reply[: end + 1])
                if number.setdefault((each.prompt, prefix), len(asked)) == len(asked):
                    asked.append([*head, *prefix])
                marks[-1].append(number[each.prompt, prefix])
        seed = self.run.seed("steps/completions")
        samples = self.sampler.sample(self.policy, asked, rollouts, seed, temperature=1.0)
        reached = []
        for (prompt, prefix), replies in zip(number, samples.replies_BG, strict=True):
            texts = (self.encoder.text([*prefix, *reply]) for reply in replies)
            reached.append([reaches(text, self.run.corpus.answers[prompt]) for text in texts])
        value = [float(any(right)) if estimate == "hard" else sum(right) / rollouts for right in reached]
        return [
            replace(each, labels=(*(value[i] for i in found), *([each.correct] if all_seen else [])))
            for each, found, all_seen in zip(solutions, marks, whole, strict=True)
        ]


def problems(run: Run, split: str, count: int) -> list[Pair]:
    """`count` pairs of a split with distinct prompts, or all there are: the first ones held out, others drawn."""
    pairs = list({pair.prompt: pair for pair in getattr(run.corpus, split)}.values())
    if split == "test":
        return pairs[:count]
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(run.seed("steps/problems")))
    return [pairs[i] for i in order[:count].tolist()]


def annotated(run: Run, solutions: Sequence[Trajectory]) -> list[Trajectory]:
    """Labels by the world, which reads every step."""
    oracle = run.corpus.oracle
    if not isinstance(oracle, StepOracle):
        raise ConfigError(
            f"algorithm.labels=annotated: data={run.corpus.name} cannot judge steps; use perturbed or monte_carlo"
        )
    labels = oracle.step_labels([each.prompt for each in solutions], [each.reply for each in solutions])
    return [replace(each, labels=tuple(map(float, known))) for each, known in zip(solutions, labels, strict=True)]


def perturbed_solutions(
    run: Run, pairs: Sequence[Pair], copies: int, seed: int, *, cancels: bool = False
) -> list[Trajectory]:
    """Right demonstrations, and `copies` of each with a planted mistake; `cancels` keeps the answer right.

    A demonstration that is wrong itself, or of which no wrong version was found, is left out. No number exceeds the
    largest of the corpus's demonstrations.
    """
    rng = np.random.default_rng(seed)
    sources = [str(pair.meta.get("annotated", pair.chosen)) for pair in pairs]
    chains = [read_chain(pair.prompt, source) for pair, source in zip(pairs, sources, strict=True)]
    largest = largest_number(pair.chosen for pair in run.corpus.train)
    found: list[Trajectory] = []
    for pair, source, chain in zip(pairs, sources, chains, strict=True):
        if not pair.meta.get("correct_chosen", 1) or not all(map(chain.computes, range(len(chain.calculations)))):
            continue
        wrong = [perturb(chain, rng, largest=largest, cancels=cancels) for _ in range(copies)]
        made = [_trajectory(pair, each, source, cancels) for each in wrong if each is not None]
        made = [each for each in made if _shows(each, pair.chosen)]
        if made:
            found += [Trajectory(pair.prompt, pair.chosen, 1.0, (1.0,) * len(chain.lines)), *made]
    return found


def _shows(wrong: Trajectory, right: str) -> bool:
    """Whether exactly the steps labelled wrong read otherwise than in the right solution: a change may lie in an
    annotation alone, which is not part of the text."""
    lines = [[text[begin:end] for begin, end in step_lines(text)] for text in (wrong.reply, right)]
    same = [a == b for a, b in zip(*lines, strict=False)]
    return len(lines[0]) == len(lines[1]) and same == [label == 1 for label in wrong.labels]


def _trajectory(pair: Pair, wrong: Perturbed, source: str, cancels: bool) -> Trajectory:
    text = wrong.text if pair.chosen == source else without_annotations(wrong.text)
    return Trajectory(pair.prompt, text, float(cancels), tuple(map(float, wrong.labels)))
