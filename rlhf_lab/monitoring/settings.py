"""Settings of the reward-hacking monitor, of audited training and of alerts. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config import schema
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.packs import named
from rlhf_lab.core.ranges import CheckedSettings, Distinct, Ge, Gt, Le, Lt, NotEmpty

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

TRACE = "monitor.jsonl"
LIMITS_FILE = "monitor.json"
AUDIT_TRACE = "audit.jsonl"
"""Files of a run directory that the monitor and the audit write."""


@dataclass(frozen=True)
class Monitor(CheckedSettings):
    """Detection of reward hacking in the responses that a policy is trained on; see `monitoring/detector.py`.

    Args:
        action: effect of a strong warning. `log` only reports it (metrics.jsonl, monitor.jsonl, result.json).
            `stop` ends training before it uses these responses, evaluates and completes the stage. `pause` saves before
            it uses them and ends the command; the same command with alerts.continue_paused=true resumes. `off` disables
            the monitor.
        every: number of iterations per checkpoint of the monitor; in iterative DPO a round is an iteration.
        warmup: number of checkpoints of the baseline. In iterative DPO the baseline is the first round, which is
            sampled by the starting policy.
        signals: rules that count: `length_z`, `reward_kl`, `length_cusum`. One in alarm is a warning. Two at one
            checkpoint, or the only one, are a strong warning. If part of the reward is the outcome of the task,
            `parting` replaces `reward_kl`, and alone is a strong warning.
        z: number of standard errors of the mean length above which `length_z` is in alarm. It is two-sided: 2.5 gives a
            false alarm at 1.2 % of checkpoints, and in about 31 % of runs with 30 checkpoints.
        kl: nats of KL(initial reward distribution ‖ current) above which `reward_kl` is in alarm while it rises; a mean
            that rises by half its sd gives 0.13.
        rising: number of checkpoints over which it has to rise; the baseline counts as one with 0.
        budget: probability that a CUSUM is ever in alarm in the planned run although nothing changed by more than
            `tolerance`; it applies to each CUSUM.
        tolerance: relative change of the mean that a CUSUM accepts; also accepted by `length_z` in episodes with an
            environment.
    """

    action: Literal["off", "log", "stop", "pause"] = "log"
    every: Annotated[int, Ge(1)] = 1
    warmup: Annotated[int, Ge(1)] = 5
    signals: Annotated[tuple[Literal["length_z", "reward_kl", "length_cusum"], ...], NotEmpty(), Distinct()] = (
        "length_z",
        "reward_kl",
    )
    z: Annotated[float, Gt(0)] = 2.5
    kl: Annotated[float, Gt(0)] = 0.15
    rising: Annotated[int, Ge(2)] = 3
    budget: Annotated[float, Gt(0), Lt(1)] = 0.05
    tolerance: Annotated[float, Ge(0)] = 0.1


@dataclass(frozen=True)
class Audit(CheckedSettings):
    """Comparisons of the policy with the start policy by a source of truth, and an alarm with a guaranteed error rate.

    Every iteration samples new responses of the current and of the start policy to the same random training prompts. An
    e-process (`statistics/eprocess.py`) tests whether the policy has become worse than the start policy.

    Args:
        labels_per_iteration: comparisons that are bought per iteration; in iterative DPO per round. 0 is off.
        labels_from: source of the comparisons: `gold` compares the true reward of the data or the scores of
            `needs.gold`; `judge` asks the judge (`judge=…`) in both orders; `human` adds them to the page of `label`
            and waits. Packs may add others.
        action: effect of an alarm. `log` only reports it. `pause` saves before the policy is trained on the iteration's
            samples and ends the command; the same command with alerts.continue_paused=true resumes. `stop` ends
            training and completes the stage with the last certified policy.
        alpha: probability of any false alarm in the run, however long it is: an alarm is raised once the e-value
            reaches 1/alpha. Also the probability that any lower bound of the run is wrong.
        delta: the policy of an iteration is certified if the lower bound on P(win) + P(tie)/2 of the last comparisons
            is at least 0.5 − delta. The start policy is always certified.
        missing: effect of a comparison without an answer. `skip` ignores it, so the guarantee is about answered
            comparisons. `win` counts it for the policy in the e-value and against it in the lower bound, which makes
            both valid without an assumption about missing answers.
        wait_minutes: maximum time per iteration that training waits for answers; read only with `labels_from=human`.
            Comparisons that have none by then stay without an answer.
    """

    labels_per_iteration: Annotated[int, Ge(0, hint="0 is off")] = 0
    labels_from: str = "gold"
    action: Literal["log", "pause", "stop"] = "log"
    alpha: Annotated[float, Gt(0), Lt(1)] = 0.05
    delta: Annotated[float, Ge(0), Lt(0.5)] = 0.1
    missing: Literal["skip", "win"] = "skip"
    wait_minutes: Annotated[float, Ge(0)] = 30.0

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), schema.only_known("labels_from", [self.labels_from], list(named("comparers"))))

    @property
    def on(self) -> bool:
        """True if comparisons are bought."""
        return self.labels_per_iteration > 0


def samples_are_watched(config: Config) -> bool:
    """Return True if the stage trains a policy on its own samples, so that monitor and audit can work."""
    algorithm = config.algorithm
    watched: bool = algorithm.outputs.model and (algorithm.reward_use.trains_policy or algorithm.reward_use.scores)
    return watched


def is_audited(config: Config) -> bool:
    """Return True if the stage requests comparisons of its policy with the start policy (audited training)."""
    return config.reward.audit.on and samples_are_watched(config)


@section("alerts")
@dataclass(frozen=True)
class Alerts(Section):
    """Recipients of alarms of monitor and audit, and continuation of a paused stage. No influence on results.

    Args:
        command: program and its arguments, such as [python,notify.py]; it receives the alarm as JSON on standard input.
            It is run without a shell. [] runs nothing.
        webhook_env: name of the environment variable with the address to which the alarm is posted as JSON; "" posts
            nothing. The address itself is a secret and must not be in a config.
        levels: levels that are reported: `warning`, `hard_stop` (also an alarm of `reward.audit`). Each is
            reported once; `hard_stop` is also reported whenever it pauses the stage.
        timeout_s: maximum seconds for the command, and for the answer to the post. Training waits for both.
        continue_paused: resume a stage that `reward.monitor.action=pause` has paused. Further strong warnings of this
            command are only reported.
    """

    inherited: ClassVar[bool] = True
    command: tuple[str, ...] = ()
    webhook_env: str = ""
    levels: Annotated[
        tuple[Literal["warning", "hard_stop"], ...], NotEmpty(hint="set one or both of warning, hard_stop")
    ] = ("warning", "hard_stop")
    timeout_s: Annotated[float, Gt(0), Le(600)] = 10.0
    continue_paused: bool = False

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                not self.webhook_env or self.webhook_env.isidentifier(),
                "webhook_env must be the name of an environment variable; export the address under a name and set "
                "that name, such as webhook_env=ALERT_WEBHOOK",
            ),
            (not self.command or bool(self.command[0]), "command starts with an empty word; name a program"),
        )
