"""Worked solutions with a label on every step: what process and outcome reward models train on.

Three sources of step labels: the world's own reading, a planted mistake, and completions of the policy
(Math-Shepherd, arXiv:2312.08935). All of them are drawn once, at the start of a stage, from its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Pair
from rlhf_lab.environments.arithmetic.perturbation import Perturbed, largest_number, perturb
from rlhf_lab.environments.maths.answers import reaches
from rlhf_lab.environments.maths.chains import StepOracle, read_chain, step_lines, without_annotations
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.steps import step_row
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.training.run import Run


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A solution with the labels of its steps and of its answer.

    Attributes:
        labels: probability that each step (`step_lines`) is right; empty for an unlabelled solution.
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
        self.collector = EpisodeCollector(run, encoder)

    def sample(self, prompts: Sequence[str], count: int, purpose: str) -> list[Trajectory]:
        """`count` solutions of each problem at temperature 1, problem by problem, unlabelled."""
        if not count:
            return []
        tasks = [self.run.corpus.task(prompt) for prompt in prompts]
        collected = self.collector.collect(self.policy, tasks, count, self.run.seed(purpose), temperature=1.0)
        return [self.graded(episode.task.prompt, episode.response) for episodes in collected for episode in episodes]

    def graded(self, prompt: str, reply: str) -> Trajectory:
        return Trajectory(prompt, reply, float(reaches(reply, self.run.corpus.answers[prompt])))

    def complete(self, solutions: Sequence[Trajectory], rollouts: int, estimate: str) -> list[Trajectory]:
        """Math-Shepherd's labels: from each step the policy goes on `rollouts` times.

        A step's label is the share of completions that reach the right answer, or 1 when any does (`hard`). The last
        step of a solution leaves nothing to complete: its label is whether the answer is right. All prefixes of all
        solutions are one call of the sampler, each distinct prefix once.
        """
        limits = self.run.config.rollout
        window = limits.max_prompt_tokens + limits.max_new_tokens
        prefix_numbers: dict[tuple[str, tuple[int, ...]], int] = {}
        prompts: list[list[int]] = []  # as token ids, of each distinct prefix in the order of their numbers
        steps_of_solutions: list[list[int]] = []  # the prefix number of each step that is completed
        fits_window: list[bool] = []
        for solution in solutions:
            lines = step_lines(solution.reply)
            row = step_row(self.encoder, solution.prompt, solution.reply, lines, window)
            prompt_ids, reply_ids = row.row
            fits = len(row.ends) == len(lines)
            step_numbers = []
            for end in row.ends[:-1] if fits else row.ends:
                prefix = tuple(reply_ids[: end + 1])
                key = (solution.prompt, prefix)
                if key not in prefix_numbers:
                    prefix_numbers[key] = len(prompts)
                    prompts.append(prompt_ids)
                step_numbers.append(prefix_numbers[key])
            steps_of_solutions.append(step_numbers)
            fits_window.append(fits)
        seed = self.run.seed("steps/completions")
        tasks = [self.run.corpus.task(prompt) for prompt, _ in prefix_numbers]
        prefixes = [prefix for _, prefix in prefix_numbers]
        collected = self.collector.collect(
            self.policy, tasks, rollouts, seed, temperature=1.0, prompts=prompts, openings=prefixes
        )
        values = []
        for (prompt, _), episodes in zip(prefix_numbers, collected, strict=True):
            is_right = [reaches(episode.response, self.run.corpus.answers[prompt]) for episode in episodes]
            values.append(float(any(is_right)) if estimate == "hard" else sum(is_right) / rollouts)
        labelled = []
        for solution, step_numbers, fits in zip(solutions, steps_of_solutions, fits_window, strict=True):
            labels = [values[number] for number in step_numbers]
            if fits:
                labels.append(solution.correct)
            labelled.append(replace(solution, labels=tuple(labels)))
        return labelled


def problems(run: Run, split: str, count: int) -> list[Pair]:
    """`count` pairs of a split with distinct prompts, or all there are: the first ones of `test`, random ones else."""
    pairs = list({pair.prompt: pair for pair in getattr(run.corpus, split)}.values())
    if split == "test":
        return pairs[:count]
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(run.seed("steps/problems")))
    return [pairs[i] for i in order[:count].tolist()]


def annotated(run: Run, solutions: Sequence[Trajectory]) -> list[Trajectory]:
    """The solutions with labels by the data's oracle, which judges every step."""
    oracle = run.corpus.oracle
    if not isinstance(oracle, StepOracle):
        raise ConfigError(
            f"algorithm.labels=annotated: data={run.corpus.name} cannot judge steps; use perturbed or monte_carlo"
        )
    prompts = [solution.prompt for solution in solutions]
    replies = [solution.reply for solution in solutions]
    return [
        replace(solution, labels=tuple(map(float, labels)))
        for solution, labels in zip(solutions, oracle.step_labels(prompts, replies), strict=True)
    ]


def perturbed_solutions(
    run: Run, pairs: Sequence[Pair], copies: int, seed: int, *, cancels: bool = False
) -> list[Trajectory]:
    """Right demonstrations, and `copies` of each with a planted mistake; `cancels` keeps the answer right.

    A demonstration that is wrong itself, or of which no wrong version was found, is left out. No number exceeds the
    largest of the corpus's demonstrations.
    """
    rng = np.random.default_rng(seed)
    # a reply may be the text without the calculator annotations of its source, from which the calculations are read
    sources = [str(pair.meta.get("annotated", pair.chosen)) for pair in pairs]
    chains = [read_chain(pair.prompt, source) for pair, source in zip(pairs, sources, strict=True)]
    largest = largest_number(pair.chosen for pair in run.corpus.train)
    trajectories: list[Trajectory] = []
    for pair, source, chain in zip(pairs, sources, chains, strict=True):
        is_right = pair.meta.get("correct_chosen", 1) and all(map(chain.computes, range(len(chain.calculations))))
        if not is_right:
            continue
        perturbed = [perturb(chain, rng, largest=largest, cancels=cancels) for _ in range(copies)]
        wrong = [_wrong_solution(pair, mistake, source, cancels) for mistake in perturbed if mistake is not None]
        wrong = [solution for solution in wrong if _shows_mistake(solution, pair.chosen)]
        if wrong:
            right = Trajectory(pair.prompt, pair.chosen, 1.0, (1.0,) * len(chain.lines))
            trajectories += [right, *wrong]
    return trajectories


def _shows_mistake(wrong: Trajectory, right: str) -> bool:
    """Whether exactly the steps labelled wrong read differently from the right solution.

    A change may lie in a calculator annotation only, which is not part of the text.
    """
    wrong_lines = [wrong.reply[begin:end] for begin, end in step_lines(wrong.reply)]
    right_lines = [right[begin:end] for begin, end in step_lines(right)]
    is_same = [a == b for a, b in zip(wrong_lines, right_lines, strict=False)]
    return len(wrong_lines) == len(right_lines) and is_same == [label == 1 for label in wrong.labels]


def _wrong_solution(pair: Pair, wrong: Perturbed, source: str, cancels: bool) -> Trajectory:
    text = wrong.text if pair.chosen == source else without_annotations(wrong.text)
    return Trajectory(pair.prompt, text, float(cancels), tuple(map(float, wrong.labels)))
