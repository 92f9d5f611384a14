"""A reward model as the gold of a run on real data (`needs.gold`): the pair of proxy and gold of arXiv:2210.10760.

Everything that reads gold (evaluations, curves, the lead of the hacking monitor, agreement of pairs and labels) reads
it from the corpus, so a corpus whose oracle is a reward model is all there is. The scores stay in the model's own unit:
for a reward model of the lab the standard deviation over replies of the policy it started from, for others what their
head gives.

Left out: several gold models at once, and gold for episodes of several turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from rlhf_lab.core.types import BoolArray, Corpus, FloatArray, Oracle
from rlhf_lab.environments.annotator import choose
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.graph import OneNote
from rlhf_lab.rewards.learned.bt import BTReward
from rlhf_lab.rewards.saved import LearnedReward, open_reward
from rlhf_lab.training.run import Run


class GoldModel:
    """An oracle whose gold is a reward model's score.

    Args:
        load: the reward model, called when the first reply is scored: a stage that trains before it evaluates does not
            hold the model meanwhile.
        corpus: the data, with what else is known of replies (whether an answer is right).
        note: called with how many replies are unscored, once there are some.
    """

    def __init__(self, load: Callable[[], LearnedReward], corpus: Corpus, note: Callable[[str], None]):
        self._load = load
        self._corpus = corpus
        self._note = note
        # The monitor and the metrics of a step ask about the same replies: the latest ones keep their scores.
        self._latest: dict[tuple[str, str], float] = {}

    @cached_property
    def model(self) -> LearnedReward:
        return self._load()

    @cached_property
    def _reward(self) -> CheckedReward:
        collective = getattr(self.model, "collective", False)
        return CheckedReward("gold", self.model, collective=collective, note=self._note)

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """`gold`, NaN where the model leaves a reply unscored, beside what the data know of the replies, (N,) each."""
        known = self._corpus.oracle.measure(prompts, responses) if self._corpus.oracle else {}
        return {**known, "gold": self._scores(prompts, responses)}

    def _scores(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """Scores of the replies, (N,); those of the call before are not computed again."""
        texts = list(zip(prompts, responses, strict=True))
        scores = {text: self._latest[text] for text in texts if text in self._latest}
        missing = [text for text in dict.fromkeys(texts) if text not in scores]
        if missing:
            episodes = self._corpus.episodes([prompt for prompt, _ in missing], [reply for _, reply in missing])
            scores |= zip(missing, self._reward(episodes).total_N.tolist(), strict=True)
        self._latest = scores
        return np.array([scores[text] for text in texts], dtype=np.float64)

    def prefer(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int
    ) -> tuple[BoolArray, FloatArray]:
        """Label pairs as Bradley-Terry draws them: P(first) = σ(r_first − r_second), in logits.

        Where the score of the model is no logit (an ensemble, grades, probabilities of steps) the higher score wins.
        Pairs that tie, or have an unscored side, are a coin toss.
        """
        count = len(prompts)
        scores_2N = self._scores([*prompts, *prompts], [*first, *second])
        gap_N = scores_2N[:count] - scores_2N[count:]
        unit = logit_unit(self.model)
        # σ(x) = (1 + tanh(x/2))/2, which does not overflow
        probability_N = (1 + (np.sign(gap_N) if unit is None else np.tanh(unit * gap_N / 2))) / 2
        probability_N = np.where(np.isnan(gap_N), 0.5, probability_N)
        return choose(probability_N, np.random.default_rng(seed)), probability_N


def logit_unit(reward: LearnedReward) -> float | None:
    """What one unit of a score is in logits; None where it is not the logit of one Bradley-Terry model."""
    if not isinstance(reward, BTReward) or len(reward.scorers) > 1:
        return None
    scale = reward.scorers[0].scale
    return scale.sd if scale.logit else None


def with_gold(corpus: Corpus, run: Run) -> Corpus:
    """The corpus of a run with `needs.gold` as its oracle."""

    def load() -> LearnedReward:
        run.await_need("gold")
        return open_reward(run.needs["gold"], run.device, run.note)

    oracle: Oracle = GoldModel(load, corpus, OneNote(run.notes))
    return replace(corpus, oracle=oracle)
