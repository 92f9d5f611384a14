"""Checks around every reward: one finite number or NaN per response; abstentions and failures are counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core import ranks
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import BudgetExceeded, LabError, NumericError
from rlhf_lab.core.types import EpisodeReward, FloatArray, RewardBatch, TextReward
from rlhf_lab.rewards.calling import InvalidScores, RewardFailed, call_with_timeout, hint, scores


class CheckedReward:
    """Wrapper that checks a reward. Raises NumericError for an invalid value, LabError if the reward fails.

    Args:
        reward: function of (prompts, responses), or a term that reads full episodes.
        on_error: `abstain` turns any failure into responses without a score: the failed responses if the reward reports
            them, else all responses of the call. BudgetExceeded, KeyboardInterrupt and SystemExit always pass.
        timeout_s: time limit of a call in seconds, after which it has failed; 0 means no limit. The call itself cannot
            be stopped: it continues in a thread that ends with the process.
        collective: True if the processes of a stage split the reward's work, so that all of them call it; otherwise
            only the main process calls it.
        note: function called with a summary of unscored responses and failed calls, after every call once there are
            some.

    Attributes:
        scored, abstained: number of responses so far with and without a score.
        failed: number of tolerated calls that failed for all or some of their responses.
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
            # The other processes of a shared call wait for this one, so it cannot abstain alone.
            shared = self.collective and ranks.world() > 1
            # Once the budget is spent, all later responses would also be unscored, without any trace in the stage key.
            is_spent = isinstance(error, BudgetExceeded)
            if self.on_error != "abstain" or shared or is_spent:
                raise self._stop(error, shared=shared) from error
            self.failed += 1
            self._first_failure = self._first_failure or (str(error) or type(error).__name__)
            scores_N = getattr(error, "scores_N", None)  # the error may report which responses failed
            if scores_N is None:
                scores_N = np.full(len(episodes), np.nan)
            batch = RewardBatch(scores_N)
        unscored = int(np.isnan(batch.total_N).sum())
        self.scored += len(episodes) - unscored
        self.abstained += unscored
        if self.abstained:
            self._note(self._describe_counts())
        return batch

    @property
    def faults(self) -> tuple[str, int]:
        """(Text of the first tolerated failure or "", number of NaN values that a user's function returned)."""
        return self._first_failure, getattr(self._reward, "returned_nan", 0)

    @faults.setter
    def faults(self, stored: tuple[str, int]) -> None:
        self._first_failure, returned_nan = stored
        if hasattr(self._reward, "returned_nan"):
            self._reward.returned_nan = returned_nan

    def _describe_counts(self) -> str:
        total = self.scored + self.abstained
        text = f"reward {self.name}: {self.abstained} of {total} responses unscored"
        first_failure, nan = self.faults
        if nan:  # a user's function that returns NaN is usually a mistake
            text += f", {nan} of them NaN ({nan / total:.0%} of all)"
        return f"{text}, {self.failed} calls failed, first: {first_failure}" if self.failed else text

    def _stop(self, error: Exception, *, shared: bool) -> LabError:
        if isinstance(error, LabError) and not isinstance(error, RewardFailed):
            return error
        is_stated = isinstance(error, RewardFailed)
        text = str(error) if is_stated else f"reward {self.name} failed: {type(error).__name__}: {error}"
        if shared and self.on_error == "abstain":
            return LabError(f"{text}; correct it: a term whose work is split between processes cannot abstain")
        return LabError(f"{text}; {hint(self.name)}")

    def _score_and_check(self, episodes: Sequence[Episode]) -> RewardBatch:
        """Return the reward's scores and parts as float arrays, (N,). Raise NumericError for invalid values."""
        batch = self._call_reward(episodes)
        if not isinstance(batch, RewardBatch) or not isinstance(batch.parts, Mapping):
            raise NumericError(f"reward {self.name} returned {type(batch).__name__}; expected a RewardBatch with parts")
        responses = [episode.response for episode in episodes]
        total_N = scores(batch.total_N, responses, f"reward {self.name}")
        try:
            parts = {
                name: scores(values, responses, f"part {name} of reward {self.name}")
                for name, values in batch.parts.items()
            }
        # its scores_N holds values of the part, not rewards, so it must not be tolerated
        except InvalidScores as error:
            raise NumericError(str(error)) from None
        if batch.turns is not None:
            self._check_turns(batch.turns, total_N, episodes)
        return RewardBatch(total_N, parts, batch.turns, batch.unverified_N)

    def _check_turns(self, turns: Any, total_N: FloatArray, episodes: Sequence[Episode]) -> None:
        """Raise NumericError unless every scored episode has one finite number for each of its turns."""
        if len(turns) != len(episodes):
            raise NumericError(f"reward {self.name} returned turns of {len(turns)} episodes; expected {len(episodes)}")
        for index, (rewards, total, episode) in enumerate(zip(turns, total_N, episodes, strict=True)):
            if np.isnan(total):
                continue
            if len(rewards) != len(episode.turns) or not np.isfinite(np.asarray(rewards, dtype=np.float64)).all():
                raise NumericError(
                    f"reward {self.name} gave {list(rewards)} for the {len(episode.turns)} turns of episode {index}; "
                    "expected a finite number for each"
                )

    def _call_reward(self, episodes: Sequence[Episode]) -> RewardBatch:
        if self.collective and ranks.world() > 1:
            return self._score(episodes)  # no timeout: the other processes would wait for one that gives up

        def score_in_time() -> RewardBatch:
            return call_with_timeout(lambda: self._score(episodes), self.timeout_s, self.name)

        return ranks.on_main(score_in_time)

    def _score(self, episodes: Sequence[Episode]) -> RewardBatch:
        if isinstance(self._reward, EpisodeReward):
            return self._reward.score_episodes(episodes)
        prompts = [episode.prompt for episode in episodes]
        responses = [episode.response for episode in episodes]
        return self._reward(prompts, responses)
