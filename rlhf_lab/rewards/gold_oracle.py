"""A reward model or a judge as the gold reward of a run on real data: proxy and gold as in arXiv:2210.10760.

All readers of gold (evaluations, curves, the hacking monitor, agreement of pairs and labels) read it from the corpus,
so replacing the corpus's oracle is sufficient. A model's scores keep their own unit. For a reward model of rlhf_lab it
is the standard deviation over responses of the policy it started from; for other models it is the output of the head. A
judge's grades are fractions of the rubric's scale, 0…1.

Not supported: several golds at once, and gold for episodes of several turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from rlhf_lab.core.measures import Measure
from rlhf_lab.core.types import BoolArray, Corpus, EpisodeReward, FloatArray, TextReward
from rlhf_lab.environments.annotator import choose
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.graph import OneNote
from rlhf_lab.rewards.learned.bt import BTReward
from rlhf_lab.rewards.saved import LearnedReward, open_reward
from rlhf_lab.training.run import Run

Source = TextReward | EpisodeReward
"""Reward that provides the gold of responses."""


class GoldOracle:
    """Oracle whose gold is the score of a reward.

    Args:
        load: function that returns the reward. It is called when the first response is scored, so that a stage that
            trains before it evaluates does not hold the model in memory meanwhile.
        corpus: the data; its own oracle provides all other measures (e.g. whether an answer is right).
        note: function called with the number of unscored responses, once there are some.
    """

    def __init__(self, load: Callable[[], Source], corpus: Corpus, note: Callable[[str], None]):
        self._load = load
        self._corpus = corpus
        self._note = note
        # The monitor and the step metrics score the same responses, so the scores of the last call are cached.
        self._latest: dict[tuple[str, str], float] = {}

    @cached_property
    def source(self) -> Source:
        return self._load()

    @cached_property
    def _reward(self) -> CheckedReward:
        collective = getattr(self.source, "collective", False)
        return CheckedReward("gold", self.source, collective=collective, note=self._note)

    @property
    def measures(self) -> Sequence[Measure]:
        return self._corpus.measures

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Return `gold` (NaN if unscored) and the other measures of the data's oracle, (N,) each."""
        # The data may know other measures, such as `correct`; only `gold` comes from the source.
        known = self._corpus.oracle.measure(prompts, responses) if self._corpus.oracle else {}
        return {**known, "gold": self._scores(prompts, responses)}

    def _scores(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """Return the scores of the responses, (N,). Scores of the previous call are reused."""
        texts = list(zip(prompts, responses, strict=True))
        scores = {text: self._latest[text] for text in texts if text in self._latest}
        missing = [text for text in dict.fromkeys(texts) if text not in scores]
        if missing:
            missing_prompts = [prompt for prompt, _ in missing]
            missing_responses = [response for _, response in missing]
            batch = self._reward(self._corpus.episodes(missing_prompts, missing_responses))
            scores |= zip(missing, batch.total_N.tolist(), strict=True)
        self._latest = scores
        return np.array([scores[text] for text in texts], dtype=np.float64)

    def prefer(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int
    ) -> tuple[BoolArray, FloatArray]:
        """Label pairs by sampling from Bradley–Terry: P(first) = σ(r_first − r_second), with rewards in logits.

        If the score is not a logit (an ensemble, a length head, grades, step probabilities) the higher score wins. Ties
        are decided by a coin toss. A pair with an unscored side has no label: its probability is NaN.
        """
        count = len(prompts)
        # One call for both sides, so that both come from the same cache and, for a model, the same batches.
        scores_2N = self._scores([*prompts, *prompts], [*first, *second])
        gap_N = scores_2N[:count] - scores_2N[count:]
        unit = logit_unit(self.source)
        # σ(x) = (1 + tanh(x/2))/2, which does not overflow
        signed_N = np.sign(gap_N) if unit is None else np.tanh(unit * gap_N / 2)
        probability_N = (1 + signed_N) / 2
        # A comparison with NaN is False; 0.5 makes the ignored choice of an unscored pair a coin toss.
        drawn_N = np.nan_to_num(probability_N, nan=0.5)
        first_wins_N = choose(drawn_N, np.random.default_rng(seed))
        return first_wins_N, probability_N


def logit_unit(reward: Source) -> float | None:
    """Return the number of logits in one unit of a score, or None if it is not the logit of one Bradley–Terry model."""
    if not isinstance(reward, BTReward) or len(reward.scorers) > 1:
        return None
    scale = reward.scorers[0].scale
    # With a length head, the score is only a part of the log-odds.
    return scale.sd if scale.logit and not scale.attributes else None


def by_model(corpus: Corpus, run: Run) -> Corpus:
    """Return the data of a run with the score of the reward model in `needs.gold` as gold."""

    def load() -> LearnedReward:
        # The stage that trains this model may still be running next to this one.
        run.await_need("gold")
        return open_reward(run.needs["gold"], run.device, run.note)

    return replace(corpus, oracle=GoldOracle(load, corpus, OneNote(run.notes)))
