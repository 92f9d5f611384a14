"""Verifier-guided beam search over the steps (lines) of a solution (arXiv:2408.03314, section 5.2).

A search with k beams samples k first steps. A reward scores each solution so far; the best k / width of them are kept,
and the policy samples `width` next steps for each. Finished solutions compete with the others. Each step continues the
tokens that the policy itself produced, so nothing is encoded twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.types import Reward
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.sampling.local import completes_stop
from rlhf_lab.training.run import Run

STEP_END = "\n"


@dataclass(frozen=True)
class Beam:
    """A solution, possibly unfinished.

    Attributes:
        finished: True if the policy ended it, or if it has the maximum number of tokens.
        score: reward of the text so far; −inf if the reward abstained.
    """

    token_ids: tuple[int, ...] = ()
    finished: bool = False
    score: float = -np.inf


@dataclass(frozen=True)
class SearchResult:
    """The selected solution of one problem.

    Attributes:
        tokens: number of tokens that the policy generated for all beams of the problem.
    """

    response: str
    tokens: int


class BeamSearch:
    """Searches with one policy and one reward.

    Args:
        collector: collector of the policy's responses; its settings are used with `STEP_END` as a further stop text.
    """

    def __init__(self, run: Run, policy: nn.Module, collector: EpisodeCollector, reward: Reward):
        self.run = run
        self.policy = policy
        self.encoder = collector.encoder
        self.reward = reward
        self.max_new_tokens = collector.settings.max_new_tokens
        self.stop = collector.settings.stop
        self.steps = EpisodeCollector(run, collector.encoder, further_stop=(STEP_END,))

    def search(
        self, tasks: Sequence[Task], prompt_ids: Sequence[list[int]], beams: int, width: int
    ) -> list[SearchResult]:
        """Return the selected solution of each task.

        Args:
            beams: number of candidates per step, k.
            width: number of next steps per kept candidate; at most `beams`.
        """
        width = min(width, beams)
        kept: list[list[Beam]] = [[Beam()] for _ in tasks]
        tokens = [0] * len(tasks)
        for depth in range(self.max_new_tokens):  # every step has at least one token
            open_beams = [(i, beam) for i, own in enumerate(kept) for beam in own if not beam.finished]
            if not open_beams:
                break
            expansions = beams if depth == 0 else width
            extended = self._extend(tasks, prompt_ids, open_beams, expansions, f"beam/{beams}/{depth}")
            candidates: list[list[Beam]] = [[beam for beam in own if beam.finished] for own in kept]
            for (i, beam), new in zip(open_beams, extended, strict=True):
                tokens[i] += sum(len(each.token_ids) - len(beam.token_ids) for each in new)
                candidates[i] += new
            kept = self._select(tasks, candidates, max(1, beams // width))
        return [
            SearchResult(self.encoder.text(own[0].token_ids, self.stop), count)
            for own, count in zip(kept, tokens, strict=True)
        ]

    def _extend(
        self,
        tasks: Sequence[Task],
        prompt_ids: Sequence[list[int]],
        beams: Sequence[tuple[int, Beam]],
        count: int,
        purpose: str,
    ) -> list[list[Beam]]:
        """Return `count` versions of each beam with one more step."""
        collected = self.steps.collect(
            self.policy,
            [tasks[i] for i, _ in beams],
            count,
            self.run.seed(purpose, self.run.config.evaluation.seed),
            prompts=[prompt_ids[i] for i, _ in beams],
            openings=[list(beam.token_ids) for _, beam in beams],
        )
        extended = []
        for (_, beam), episodes in zip(beams, collected, strict=True):
            own = []
            for episode in episodes:
                step = [token for segment in episode.segments if segment.sampled for token in segment.token_ids]
                token_ids = (*beam.token_ids, *step)
                # a step that ended with a line break can be continued; one that was cut has no room left
                is_ended = not episode.finished or step[-1] in self.encoder.stop_ids
                # all tokens are read, because a stop text such as "\n\n" may begin in the previous step
                is_ended |= completes_stop([*token_ids], self.stop, self.encoder.decode)
                own.append(Beam(token_ids, is_ended or len(token_ids) >= self.max_new_tokens))
            extended.append(own)
        return extended

    def _select(self, tasks: Sequence[Task], candidates: Sequence[Sequence[Beam]], count: int) -> list[list[Beam]]:
        """Return the `count` best distinct candidates of each task, best first. Equal scores keep their order."""
        distinct = [list({beam.token_ids: beam for beam in own}.values()) for own in candidates]
        prompts = [task.prompt for task, own in zip(tasks, distinct, strict=True) for _ in own]
        texts = [self.encoder.text(beam.token_ids, self.stop) for own in distinct for beam in own]
        scores = iter(self.reward(self.run.corpus.episodes(prompts, texts)).total_N.tolist())
        selected = []
        for own in distinct:
            scored = [replace(beam, score=_known(next(scores))) for beam in own]
            selected.append(sorted(scored, key=lambda beam: -beam.score)[:count])
        return selected


def _known(score: float) -> float:
    """Return a score, or −inf if the reward abstained."""
    return -np.inf if np.isnan(score) else score
