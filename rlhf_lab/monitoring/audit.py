"""Audited training: comparisons with the start policy during training, and an alarm whose error rate is guaranteed.

Every iteration samples new responses of the current policy and of the start policy to the same random prompts, and a
source of truth compares them (`reward.audit.labels_from`). No response is compared twice: a start response that is used
again makes comparisons dependent, and the guarantee is lost. Prompts and responses are not those of training, so
filters, curricula and samples of older weights do not bias the comparisons. `statistics/eprocess.py` has the test.

An iteration's comparisons are written to audit.jsonl. The policy after k iterations has the number k there, in metrics
and in messages; 0 is the start policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_lab.core.console import console
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.files import append_jsonl, truncate
from rlhf_lab.core.packs import load, named
from rlhf_lab.core.types import Comparer, FloatArray
from rlhf_lab.monitoring import alerts
from rlhf_lab.monitoring.settings import AUDIT_TRACE
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.statistics.eprocess import EProcess, lower_bound
from rlhf_lab.statistics.estimates import finite_or_none, win_or_tie
from rlhf_lab.training.checkpoint import trained_state
from rlhf_lab.training.run import Run

WINDOW = 128
"""Minimum number of recent comparisons that the lower bound uses; in the first iterations it uses all that exist."""
LEVEL = "hard_stop"
"""Level of an alarm in `alerts.levels`."""


def by_gold(run: Run) -> Comparer:
    """Return a function that compares responses by their gold reward.

    Gold is the true reward of the data, or that of `needs.gold` or `needs.judge`.
    """

    def compare(first: Sequence[Episode], second: Sequence[Episode]) -> FloatArray:
        # one call for both sides, so that a model scores them in the same batches
        gold_2N = run.corpus.measure([*first, *second])["gold"].reshape(2, -1)
        return win_or_tie(gold_2N[0] - gold_2N[1])

    return compare


class Auditor:
    """The audit of one run.

    Args:
        model: trained policy, still with the weights of the start policy.
        collector: sampler of both.
        iterations: planned number of iterations of the entire run, and thus of calls of `check`.

    Attributes:
        on: False if no comparisons are bought; no method then does anything.
        process: e-process of all comparisons.
        labels, unanswered: number of comparisons that were bought, and of those without an answer.
        recent: scores of each of the last iterations, the oldest first; NaN without an answer.
        alarm_at: number of iterations at the alarm, or None.
        certified_at: number of iterations of the policy that was certified last.
        stopped: number of iterations at which an alarm ended training, or None.
        pause: reason why this command saves and ends before it trains on the iteration's samples; empty if it
            continues.
    """

    def __init__(self, run: Run, model: nn.Module, start: nn.Module, collector: EpisodeCollector, iterations: int):
        self.run = run
        self.settings = run.config.reward.audit
        self.on = self.settings.on
        self.model = model
        self.start = start
        self.collector = collector
        self.iterations = iterations
        self.process = EProcess()
        self.labels = 0
        self.unanswered = 0
        self.recent: list[list[float]] = []
        self.alarm_at: int | None = None
        self.certified_at = 0
        self.stopped: int | None = None
        self.pause = ""
        self._certified: dict[str, Tensor] = {}
        if not self.on:
            return
        self.tasks = run.corpus.tasks("train")
        # opened here, so that a judge that cannot be used ends the command before training
        self.compare: Comparer = load(named("comparers")[self.settings.labels_from])(run)
        if self.settings.action == "stop":
            self._certified = self._copy_weights()

    def check(self, iteration: int, *, final: bool = False) -> dict[str, float]:
        """Obtain comparisons of the current policy, write them, and act on an alarm. Returns the metrics to log.

        Args:
            iteration: number of iterations that the policy was trained on, at least 1. The same number gives the same
                prompts and responses.
            final: True if training has ended, so that there is nothing to pause.
        """
        if not self.on:
            return {}
        comparisons = self._buy(iteration)
        self._add([comparison["score"] for comparison in comparisons])
        # Ville's inequality: the e-value of a policy that is not worse exceeds 1/alpha with probability ≤ alpha
        is_worse = self.process.largest >= 1 / self.settings.alpha
        if not is_worse and self.lower_bound() >= 0.5 - self.settings.delta:
            self.certified_at = iteration
            if self.settings.action == "stop":
                self._certified = self._copy_weights()
        numbers = self._numbers()
        if is_worse and self.alarm_at is None:
            self.alarm_at = iteration
            self._act(iteration, numbers, final)
        row = {
            "iteration": iteration,
            **_without_nan(numbers),
            "largest": self.process.largest,
            "comparisons": comparisons,
        }
        append_jsonl(self.run.directory / AUDIT_TRACE, [row])
        return {f"audit/{name}": value for name, value in numbers.items()}

    def _buy(self, iteration: int) -> list[dict[str, Any]]:
        """Return new comparisons: texts, and the score of the policy's response, None without an answer."""
        seed = self.run.seed
        rng = np.random.default_rng(seed("audit/prompts", iteration))
        # with replacement, so that all comparisons of an iteration have the same distribution, given the past
        selected = rng.integers(len(self.tasks), size=self.settings.labels_per_iteration)
        tasks = [self.tasks[i] for i in selected]
        # Both sides are sampled here and kept nowhere, so no response can be compared a second time.
        policy = self._sample(self.model, tasks, seed("audit/policy", iteration))
        start = self._sample(self.start, tasks, seed("audit/start", iteration))
        scores_N = self.compare(policy, start)
        return [
            {
                "prompt": ours.task.prompt,
                "response": ours.response,
                "start": theirs.response,
                "score": finite_or_none(score),
            }
            for ours, theirs, score in zip(policy, start, scores_N.tolist(), strict=True)
        ]

    def _sample(self, model: nn.Module, tasks: Sequence[Any], seed: int) -> list[Episode]:
        return [episode for (episode,) in self.collector.collect(model, tasks, 1, seed)]

    def _add(self, answers: Sequence[float | None]) -> None:
        """Add the scores of an iteration to the e-process and to the window of the lower bound."""
        scores = [math.nan if answer is None else answer for answer in answers]
        self.labels += len(scores)
        self.unanswered += sum(map(math.isnan, scores))
        tested = scores
        if self.settings.missing == "win":  # an alarm must be valid whatever the missing answers are
            tested = [1.0 if math.isnan(score) else score for score in scores]
        self.process.update(tested)
        window = -(-WINDOW // self.settings.labels_per_iteration)  # rounded up
        self.recent = [*self.recent, scores][-window:]

    def win_rate(self) -> float:
        """Return P(win) + P(tie)/2 of the answered comparisons of the last iterations; NaN without any."""
        answered = [score for score in self._window() if not math.isnan(score)]
        return sum(answered) / len(answered) if answered else math.nan

    def lower_bound(self) -> float:
        """Return the lower bound on P(win) + P(tie)/2 of the policies of the last iterations.

        With a probability of at least 1 − alpha, it holds in all iterations of the run.
        """
        scores = self._window()
        if self.settings.missing == "win":
            # for the policy in the e-process, against it here: both are then valid without an assumption
            scores = [0.0 if math.isnan(score) else score for score in scores]
        answered = [score for score in scores if not math.isnan(score)]
        return lower_bound(answered, alpha=self.settings.alpha, looks=self.iterations)

    def _window(self) -> list[float]:
        return [score for scores in self.recent for score in scores]

    def _numbers(self) -> dict[str, float]:
        """Return the state of the audit as numbers (monitoring/metrics.py), without the prefix `audit/`."""
        return {
            "e_value": self.process.e_value,
            "win_rate": self.win_rate(),
            "lower_bound": self.lower_bound(),
            "labels": float(self.labels),
            "unanswered": float(self.unanswered),
        }

    def _act(self, iteration: int, numbers: dict[str, float], final: bool) -> None:
        alarm = self._describe_alarm(iteration, numbers)
        action = self.settings.action
        if action == "stop":
            self.stopped = iteration  # `finish` of the algorithm restores the certified policy
        elif self._pauses(final):
            self.pause = (
                f"{alarm}, before the policy was trained further; check python -m rlhf_lab report "
                f"{self.run.directory}, and repeat the command with alerts.continue_paused=true to resume from here"
            )
        console.inform(f"  audit: {alarm}{self._consequence(final)}")
        self.run.note(f"audit: {alarm}{self._consequence(final)}")
        stated = alerts.Alarm(
            level=LEVEL,
            signals=["audit"],
            iteration=min(iteration, self.iterations - 1),  # after the last iteration there is no further one
            iterations=self.iterations,
            statistics=numbers,
            action=action,
            paused=bool(self.pause),
        )
        alerts.announce(self.run, stated)

    def _describe_alarm(self, iteration: int, numbers: dict[str, float]) -> str:
        return (
            f"the policy after {iteration} of {self.iterations} iterations is worse than the start policy (e-value "
            f"{self.process.largest:.3g} ≥ {1 / self.settings.alpha:.3g}; {numbers['win_rate']:.0%} of the last "
            f"comparisons won, ties half; {self.labels} comparisons by {self.settings.labels_from})"
        )

    def _consequence(self, final: bool) -> str:
        """Return the effect of an alarm on training as text."""
        if final and self.settings.action != "stop":
            return "; training had ended"
        certified = f"the policy after {self.certified_at} iterations" if self.certified_at else "the start policy"
        consequences = {
            "log": "; training continues, reward.audit.action=stop would end it",
            "pause": "; it pauses training" if self.pause else "; training continues (alerts.continue_paused=true)",
            "stop": f"; training ends with {certified}, which was certified last",
        }
        return consequences[self.settings.action]

    def _pauses(self, final: bool) -> bool:
        """Return True if an alarm pauses this command. After the last iteration there is nothing to pause."""
        return self.settings.action == "pause" and not final and not self.run.config.alerts.continue_paused

    def _copy_weights(self) -> dict[str, Tensor]:
        """Return a copy of the policy's trained tensors in host memory."""
        # copied even if it is in host memory already, because training changes these tensors in place
        return {name: tensor.to("cpu", copy=True) for name, tensor in trained_state(self.model).items()}

    @torch.no_grad()
    def restore_certified(self) -> None:
        """Replace the policy's weights by those of the policy that was certified last."""
        for name, tensor in trained_state(self.model).items():
            tensor.copy_(self._certified[name])

    def totals(self) -> dict[str, float | None]:
        """Return the metrics of the entire run (monitoring/metrics.py)."""
        if not self.on:
            return {}
        if self.labels and self.unanswered == self.labels:
            self.run.note("audit: no comparison was answered, so nothing was tested")
        numbers = {
            **self._numbers(),
            "alarm": float(self.alarm_at is not None),
            "alarm_at": math.nan if self.alarm_at is None else float(self.alarm_at),
            "certified_at": float(self.certified_at),
        }
        return {f"audit/{name}": value for name, value in _without_nan(numbers).items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, including the current size of audit.jsonl."""
        if not self.on:
            return {}
        path = self.run.directory / AUDIT_TRACE
        return {
            "process": self.process.state_dict(),
            "labels": self.labels,
            "unanswered": self.unanswered,
            "recent": self.recent,
            "alarm_at": self.alarm_at,
            "certified_at": self.certified_at,
            "certified": self._certified,
            "stopped": self.stopped,
            # a command that was killed before it reported its pause will pause again
            "pause": self.pause,
            "size": path.stat().st_size if path.exists() else 0,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint. Later rows of audit.jsonl are removed, because their iterations run again."""
        if not self.on:
            return
        self.process.load_state_dict(state["process"])
        self.labels = int(state["labels"])
        self.unanswered = int(state["unanswered"])
        self.recent = [list(scores) for scores in state["recent"]]
        self.alarm_at = state["alarm_at"]
        self.certified_at = int(state["certified_at"])
        self._certified = dict(state["certified"])
        self.stopped = state["stopped"]
        if not self.run.config.alerts.continue_paused:  # the user has seen the alarm and lets training continue
            self.pause = state["pause"]
        truncate(self.run.directory / AUDIT_TRACE, int(state["size"]))


def _without_nan(numbers: dict[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(value) for name, value in numbers.items()}
