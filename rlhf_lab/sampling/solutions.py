"""Worked solutions with a label on every step, which process and outcome reward models train on.

There are three sources of step labels: a check of each step by the data source, a planted mistake, and completions of
the policy (Math-Shepherd, arXiv:2312.08935). `in_agreement` keeps solutions on whose first wrong step two sources
agree. All solutions are sampled once, at the start of a stage, from its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import FloatArray, Pair
from rlhf_lab.environments.arithmetic.perturbation import Perturbed, largest_number, perturb
from rlhf_lab.environments.maths.answers import states_answer
from rlhf_lab.environments.maths.chains import StepOracle, read_chain, step_lines, without_annotations
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.steps import step_row
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.statistics.steps import first_wrong
from rlhf_lab.training.run import Run


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A solution with the labels of its steps and of its answer.

    Attributes:
        labels: probability that each step (`step_lines`) is right; empty for a solution without labels.
        correct: 1 if the answer is right, else 0.
    """

    prompt: str
    response: str
    correct: float
    labels: tuple[float, ...] = ()


class Solutions:
    def __init__(self, run: Run, policy: nn.Module, encoder: Encoder):
        self.run = run
        self.policy = policy
        self.encoder = encoder
        self.collector = EpisodeCollector(run, encoder)

    def sample(self, prompts: Sequence[str], count: int, purpose: str) -> list[Trajectory]:
        """Sample `count` solutions of each problem at temperature 1, without labels, in the order of the problems."""
        if not count:
            return []
        tasks = [self.run.corpus.task(prompt) for prompt in prompts]
        seed = self.run.seed(purpose)
        collected = self.collector.collect(self.policy, tasks, count, seed, temperature=1.0)
        return [self.graded(episode.task.prompt, episode.response) for episodes in collected for episode in episodes]

    def from_prefixes(
        self, solutions: Sequence[Trajectory], steps: Sequence[int], count: int, purpose: str
    ) -> list[list[Trajectory]]:
        """Sample `count` complete solutions, at temperature 1, that begin with the first steps of each solution.

        Args:
            steps: for each solution, the number of its steps that are kept.
        """
        limits = self.run.config.rollout
        window = limits.max_prompt_tokens + limits.max_new_tokens
        prompts, prefixes = [], []
        for solution, kept in zip(solutions, steps, strict=True):
            lines = step_lines(solution.response)[:kept]
            row = step_row(self.encoder, solution.prompt, solution.response, lines, window)
            prompt_ids, response_ids = row.row
            prompts.append(prompt_ids)
            prefixes.append(response_ids[: row.ends[-1] + 1] if row.ends else [])
        tasks = [self.run.corpus.task(solution.prompt) for solution in solutions]
        collected = self.collector.collect(
            self.policy, tasks, count, self.run.seed(purpose), temperature=1.0, prompts=prompts, openings=prefixes
        )
        return [[self.graded(episode.task.prompt, episode.response) for episode in episodes] for episodes in collected]

    def graded(self, prompt: str, response: str) -> Trajectory:
        is_right = states_answer(response, self.run.corpus.answers[prompt])
        return Trajectory(prompt, response, float(is_right))

    def complete(self, solutions: Sequence[Trajectory], rollouts: int, estimate: str) -> list[Trajectory]:
        """Label steps with completions of the policy (Math-Shepherd): `rollouts` completions after each step.

        The label of a step is the fraction of completions that reach the right answer, or 1 if any does (`hard`). The
        last step of a solution leaves nothing to complete, so its label says whether the answer is right. The prefixes
        of all solutions are sampled in one call, each distinct prefix once.
        """
        limits = self.run.config.rollout
        window = limits.max_prompt_tokens + limits.max_new_tokens
        prefix_numbers: dict[tuple[str, tuple[int, ...]], int] = {}  # index of each distinct prefix
        prompts: list[list[int]] = []  # token ids of the prompt of each distinct prefix, by prefix index
        steps_of_solutions: list[list[int]] = []  # prefix index of each step that is completed
        has_last_step: list[bool] = []  # False if the window cut the solution before it, or if there is no step
        # stage 1: collect the distinct prefixes of all solutions
        for solution in solutions:
            lines = step_lines(solution.response)
            row = step_row(self.encoder, solution.prompt, solution.response, lines, window)
            prompt_ids, response_ids = row.row
            fits = len(row.ends) == len(lines)
            step_numbers = []
            # the last step has nothing to complete, unless the window cut the solution before it
            for end in row.ends[:-1] if fits else row.ends:
                prefix = tuple(response_ids[: end + 1])
                key = (solution.prompt, prefix)
                if key not in prefix_numbers:
                    prefix_numbers[key] = len(prompts)
                    prompts.append(prompt_ids)
                step_numbers.append(prefix_numbers[key])
            steps_of_solutions.append(step_numbers)
            has_last_step.append(fits and bool(lines))
        # stage 2: sample the completions of all prefixes
        seed = self.run.seed("steps/completions")
        tasks = [self.run.corpus.task(prompt) for prompt, _ in prefix_numbers]
        prefixes = [prefix for _, prefix in prefix_numbers]
        collected = self.collector.collect(
            self.policy, tasks, rollouts, seed, temperature=1.0, prompts=prompts, openings=prefixes
        )
        # stage 3: turn the completions of each prefix into the label of its step
        values = []
        for (prompt, _), episodes in zip(prefix_numbers, collected, strict=True):
            answer = self.run.corpus.answers[prompt]
            is_right = [states_answer(episode.response, answer) for episode in episodes]
            values.append(float(any(is_right)) if estimate == "hard" else sum(is_right) / rollouts)
        labelled = []
        for solution, step_numbers, ends in zip(solutions, steps_of_solutions, has_last_step, strict=True):
            labels = [values[number] for number in step_numbers]
            if ends:
                labels.append(solution.correct)
            labelled.append(replace(solution, labels=tuple(labels)))
        return labelled


def problems(run: Run, split: str, count: int) -> list[Pair]:
    """Return up to `count` pairs with distinct prompts: the first ones of `test`, random ones of `train`."""
    by_prompt = {pair.prompt: pair for pair in getattr(run.corpus, split)}
    pairs = list(by_prompt.values())
    if split == "test":
        return pairs[:count]
    generator = torch.Generator().manual_seed(run.seed("steps/problems"))
    order = torch.randperm(len(pairs), generator=generator)
    return [pairs[i] for i in order[:count].tolist()]


def followed_labels(run: Run, otherwise: str) -> str:
    """Return the source of step labels for `algorithm.labels=auto`, which depends on the data, and note it.

    Args:
        otherwise: source for data that do not judge steps.
    """
    chosen = "annotated" if isinstance(run.corpus.oracle, StepOracle) else otherwise
    run.note(f"step labels: {chosen} (algorithm.labels=auto, data={run.corpus.name})")
    return chosen


def annotated(run: Run, solutions: Sequence[Trajectory]) -> list[Trajectory]:
    oracle = run.corpus.oracle
    if not isinstance(oracle, StepOracle):
        raise ConfigError(
            f"algorithm.labels=annotated needs data that can judge steps, and data={run.corpus.name} cannot; set "
            "algorithm.labels=perturbed or monte_carlo"
        )
    labels_of = oracle.step_labels([each.prompt for each in solutions], [each.response for each in solutions])
    return [
        replace(solution, labels=tuple(map(float, labels)))
        for solution, labels in zip(solutions, labels_of, strict=True)
    ]


def in_agreement(solutions: Sequence[Trajectory], steps: Sequence[FloatArray]) -> list[Trajectory]:
    """Return the solutions for which two sources of labels locate the first wrong step at the same position.

    Consensus filter of arXiv:2501.07301, section 3.1.3. Completions of the policy miss a wrong step if one of them
    reaches the right answer by luck. The second source makes other mistakes, so both rarely err at the same step.

    Args:
        solutions: solutions with a label of 0 or 1 for every step.
        steps: probability by the second source that each step is right, one array per solution. A solution whose steps
            were not all judged is left out, and so is one without steps.
    """
    agreeing = []
    for solution, probabilities in zip(solutions, steps, strict=True):
        if not solution.labels or len(probabilities) != len(solution.labels):
            continue
        verdicts = [float(probability > 0.5) for probability in probabilities]
        if first_wrong(solution.labels) == first_wrong(verdicts):
            agreeing.append(solution)
    return agreeing


def perturbed_solutions(
    run: Run, pairs: Sequence[Pair], copies: int, seed: int, *, cancels: bool = False
) -> list[Trajectory]:
    """Return right demonstrations and `copies` of each with a planted mistake.

    With `cancels`, a second mistake cancels the first one, so that the answer stays right.

    Demonstrations that are wrong, or for which no wrong version was found, are omitted. No number exceeds the largest
    one in the corpus's demonstrations, so that its size does not reveal the mistake.
    """
    rng = np.random.default_rng(seed)
    # A response may be the source without its calculator annotations; the calculations are read from the source.
    sources = [str(pair.meta.get("annotated", pair.chosen)) for pair in pairs]
    largest = largest_number(pair.chosen for pair in run.corpus.train)
    trajectories: list[Trajectory] = []
    for pair, source in zip(pairs, sources, strict=True):
        chain = read_chain(pair.prompt, source)
        # a demonstration may be labelled wrong, or contain a calculation that does not hold
        all_hold = all(map(chain.computes, range(len(chain.calculations))))
        if not (pair.meta.get("correct_chosen", 1) and all_hold):
            continue
        perturbed = [perturb(chain, rng, largest=largest, cancels=cancels) for _ in range(copies)]
        wrong = [_wrong_solution(pair, mistake, source, cancels) for mistake in perturbed if mistake is not None]
        wrong = [solution for solution in wrong if _shows_mistake(solution, pair.chosen)]
        if wrong:
            right = Trajectory(pair.prompt, pair.chosen, 1.0, (1.0,) * len(chain.lines))
            trajectories += [right, *wrong]
    return trajectories


def _shows_mistake(wrong: Trajectory, right: str) -> bool:
    """Return True if exactly the steps labelled wrong differ in text from the right solution.

    A planted change may affect only a calculator annotation, which is not part of the text.
    """
    wrong_lines = [wrong.response[start:end] for start, end in step_lines(wrong.response)]
    right_lines = [right[start:end] for start, end in step_lines(right)]
    is_same = [a == b for a, b in zip(wrong_lines, right_lines, strict=False)]
    is_labelled_right = [label == 1 for label in wrong.labels]
    return len(wrong_lines) == len(right_lines) and is_same == is_labelled_right


def _wrong_solution(pair: Pair, wrong: Perturbed, source: str, cancels: bool) -> Trajectory:
    text = wrong.text if pair.chosen == source else without_annotations(wrong.text)
    return Trajectory(pair.prompt, text, float(cancels), tuple(map(float, wrong.labels)))
