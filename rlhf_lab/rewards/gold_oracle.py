"""A reward model or a judge as the gold of a run on real data: the pair of proxy and gold of arXiv:2210.10760.

Everything that reads gold (evaluations, curves, the lead of the hacking monitor, agreement of pairs and labels) reads
it from the corpus, so a corpus with another oracle is all there is. Scores of a model stay in its own unit: for a
reward model of the lab the standard deviation over replies of the policy it started from, for others what their head
gives. A judge's grades are shares of the rubric's scale, 0…1.

Left out: several golds at once, and gold for episodes of several turns.
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
"""What says what replies are worth."""


class GoldOracle:
    """An oracle whose gold is what a reward says.

    Args:
        load: the reward, called when the first reply is scored: a stage that trains before it evaluates does not hold
            a model meanwhile.
        corpus: the data, with what else is known of replies (whether an answer is right).
        note: called with how many replies are unscored, once there are some.
    """

    def __init__(self, load: Callable[[], Source], corpus: Corpus, note: Callable[[str], None]):
        self._load = load
        self._corpus = corpus
        self._note = note
        # The monitor and the metrics of a step ask about the same replies: the latest ones keep their scores.
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
        """Those of the data's own world."""
        return self._corpus.measures

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """`gold`, NaN where the source leaves a reply unscored, beside what the data know of the replies, (N,) each."""
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

        Where the score is no logit (of an ensemble, grades, probabilities of steps) the higher one wins.
        Pairs that tie are a coin toss; a pair with an unscored side has no label: its probability is NaN.
        """
        count = len(prompts)
        scores_2N = self._scores([*prompts, *prompts], [*first, *second])
        gap_N = scores_2N[:count] - scores_2N[count:]
        unit = logit_unit(self.source)
        # σ(x) = (1 + tanh(x/2))/2, which does not overflow
        probability_N = (1 + (np.sign(gap_N) if unit is None else np.tanh(unit * gap_N / 2))) / 2
        first_wins_N = choose(np.nan_to_num(probability_N, nan=0.5), np.random.default_rng(seed))
        return first_wins_N, probability_N


def logit_unit(reward: Source) -> float | None:
    """What one unit of a score is in logits; None where it is not the logit of one Bradley-Terry model."""
    if not isinstance(reward, BTReward) or len(reward.scorers) > 1:
        return None
    scale = reward.scorers[0].scale
    return scale.sd if scale.logit else None


def by_model(corpus: Corpus, run: Run) -> Corpus:
    """The data of a run whose gold is the score of the reward model in `needs.gold`."""

    def load() -> LearnedReward:
        run.await_need("gold")
        return open_reward(run.needs["gold"], run.device, run.note)

    return replace(corpus, oracle=GoldOracle(load, corpus, OneNote(run.notes)))
