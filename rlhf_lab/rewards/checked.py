"""The check around every reward: one finite number or NaN per reply; abstentions and failures are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core import ranks
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import BudgetExceeded, LabError, NumericError
from rlhf_lab.core.types import EpisodeReward, FloatArray, RewardBatch, TextReward
from rlhf_lab.rewards.calling import call_with_timeout, scores


class CheckedReward:
    """Wraps a reward. Raises NumericError for what is not a number per reply, LabError when the reward fails.

    Args:
        name: shown in errors and tables.
        reward: a function of (prompts, responses), or a term that reads whole episodes.
        on_error: `abstain` turns whatever goes wrong into unscored replies, counted in `failed`. BudgetExceeded,
            KeyboardInterrupt and SystemExit always pass.
        timeout_s: a call that takes longer has failed; 0 waits. The call itself cannot be stopped: it goes on in a
            thread that ends with the process.
        collective: whether the processes of a stage share the reward's work, so that all of them call it; else the main
            one calls it for all.
        note: called with how many replies are unscored and how many calls failed, after every call once there are some.

    Attributes:
        scored, abstained: replies so far with, and without, a score.
        failed: calls that failed and were tolerated.
    """

    def __init__(
        self,
        name: str,
        reward: TextReward | EpisodeReward,
        *,
        on_error: str = "stop",
        timeout_s: float = 0.0,
        collective: bool = False,
        note: Callable[[str], None] = lambda text: None,
    ):
        self.name = name
        self.on_error = on_error
        self.timeout_s = timeout_s
        self.collective = collective
        self._reward = reward
        self._note = note
        self.scored = self.abstained = self.failed = 0
        self._first_failure = ""

    def __call__(self, episodes: Sequence[Episode]) -> RewardBatch:
        try:
            batch = self._score_and_check(episodes)
        except Exception as error:
            # The other processes of a shared call wait for this one: it cannot abstain alone.
            shared = self.collective and ranks.world() > 1
            # A spent budget leaves every later reply unscored too, and no stage key would tell.
            is_spent = isinstance(error, BudgetExceeded)
            if self.on_error != "abstain" or shared or is_spent:
                raise error if isinstance(error, LabError) else _failure(self.name, error) from error
            self.failed += 1
            self._first_failure = self._first_failure or (str(error) or type(error).__name__)
            batch = RewardBatch(np.full(len(episodes), np.nan))
        unscored = int(np.isnan(batch.total_N).sum())
        self.scored += len(episodes) - unscored
        self.abstained += unscored
        if self.abstained:
            self._note(self._describe_counts())
        return batch

    def _describe_counts(self) -> str:
        total = self.scored + self.abstained
        text = f"reward {self.name}: {self.abstained} of {total} replies unscored"
        if nan := getattr(self._reward, "returned_nan", 0):  # a function of the user: NaN is seldom meant
            text += f", {nan} of them NaN ({nan / total:.0%} of all)"
        return f"{text}, {self.failed} calls failed, first: {self._first_failure}" if self.failed else text

    def _score_and_check(self, episodes: Sequence[Episode]) -> RewardBatch:
        """The reward's scores and parts as float arrays, (N,). Raises NumericError for anything else."""
        batch = self._call_reward(episodes)
        if not isinstance(batch, RewardBatch) or not isinstance(batch.parts, Mapping):
            raise NumericError(f"reward {self.name} returned {type(batch).__name__}; expected a RewardBatch with parts")
        responses = [episode.response for episode in episodes]
        total_N = scores(batch.total_N, responses, f"reward {self.name}")
        parts = {
            name: scores(values, responses, f"part {name} of reward {self.name}")
            for name, values in batch.parts.items()
        }
        if batch.turns is not None:
            self._check_turns(batch.turns, total_N, episodes)
        return RewardBatch(total_N, parts, batch.turns, batch.unverified_N)

    def _check_turns(self, turns: Any, total_N: FloatArray, episodes: Sequence[Episode]) -> None:
        """Raise NumericError unless every scored episode has one finite number for each of its turns."""
        if len(turns) != len(episodes):
            raise NumericError(f"turns of reward {self.name} are of {len(turns)} episodes; it scored {len(episodes)}")
        for number, (rewards, total, episode) in enumerate(zip(turns, total_N, episodes, strict=True)):
            if np.isnan(total):
                continue
            if len(rewards) != len(episode.turns) or not np.isfinite(np.asarray(rewards, dtype=np.float64)).all():
                raise NumericError(
                    f"reward {self.name} gave {list(rewards)} for the {len(episode.turns)} turns of episode {number}; "
                    "expected a finite number for each"
                )

    def _call_reward(self, episodes: Sequence[Episode]) -> RewardBatch:
        """Call the reward in every process where they share its work, else in the main one for all."""
        if self.collective and ranks.world() > 1:
            return self._score(episodes)  # no timeout: the others would wait for a process that gives up
        return ranks.on_main(lambda: call_with_timeout(lambda: self._score(episodes), self.timeout_s, self.name))

    def _score(self, episodes: Sequence[Episode]) -> RewardBatch:
        if isinstance(self._reward, EpisodeReward):
            return self._reward.score_episodes(episodes)
        return self._reward([episode.prompt for episode in episodes], [episode.response for episode in episodes])


def _failure(name: str, error: Exception) -> LabError:
    return LabError(
        f"reward {name} failed: {type(error).__name__}: {error}; correct it, or let it abstain with "
        f"reward.terms.{name}.on_error=abstain"
    )
