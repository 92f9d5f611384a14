"""Settings of the reward-hacking monitor and of its alerts. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.section import Section, section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Distinct, Ge, Gt, Le, Lt, NotEmpty


@dataclass(frozen=True)
class Monitor(CheckedSettings):
    """Watches the replies that a policy is trained on for signs of reward hacking. The rules: `monitoring/detector.py`.

    Args:
        action: what a strong warning does: `log` only tells (metrics.jsonl, monitor.jsonl, result.json); `raise_kl`
            multiplies the KL coefficient; `stop` ends training before it learns from these replies, evaluates and
            completes the stage; `pause` saves before it learns from them and ends the command, which goes on from
            there with alerts.continue_paused=true; `off` does not watch.
        every: iterations whose replies make one checkpoint. In iterative DPO a round is one.
        warmup: checkpoints of the baseline. In iterative DPO it is the first round, which the starting policy samples.
        signals: rules that count: `length_z`, `reward_kl`, `length_cusum`, `disagreement` (ensembles only).
        needed: so many of `signals` in alarm at one checkpoint are a strong warning; fewer, but one, a warning.
            Where part of the reward is the outcome of the task, `parting` stands for `reward_kl`, and suffices.
        z: standard errors of the mean length beyond which `length_z` is in alarm. Two-sided: 2.5 is a false alarm at
            1.2 % of checkpoints, and somewhere in 30 of them at about 31 %.
        kl: nats of KL(initial reward distribution ‖ current) beyond which `reward_kl` is in alarm, while it rises; a
            mean that rises by half its sd gives .13.
        rising: checkpoints over which it has to rise; the baseline counts as one with 0.
        budget: probability that a CUSUM is in alarm anywhere in the planned run although nothing changed beyond
            `tolerance`; of each of the two.
        tolerance: relative change of the mean length or disagreement that a CUSUM accepts, and `length_z` where an
            environment answers.
        factor: of `raise_kl`. It acts at most once in `rising` checkpoints. An adaptive controller's target is divided
            by it, so that the controller does not undo it.
    """

    action: Literal["off", "log", "raise_kl", "stop", "pause"] = "log"
    every: Annotated[int, Ge(1)] = 1
    warmup: Annotated[int, Ge(1)] = 5
    signals: Annotated[
        tuple[Literal["length_z", "reward_kl", "length_cusum", "disagreement"], ...], NotEmpty(), Distinct()
    ] = ("length_z", "reward_kl")
    needed: Annotated[int, Ge(1)] = 2
    z: Annotated[float, Gt(0)] = 2.5
    kl: Annotated[float, Gt(0)] = 0.15
    rising: Annotated[int, Ge(2)] = 3
    budget: Annotated[float, Gt(0), Lt(1)] = 0.05
    tolerance: Annotated[float, Ge(0)] = 0.1
    factor: Annotated[float, Gt(1)] = 2.0

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.needed <= len(self.signals), f"needed={self.needed}; there are {len(self.signals)} signals"),
        )


@section("alerts")
@dataclass(frozen=True)
class Alerts(Section):
    """Who is told of an alarm of the monitor, and whether a paused stage goes on. Has no influence on results.

    Args:
        command: a program and its arguments, such as [python,notify.py]; it gets the alarm as JSON on standard input.
            No shell reads it. [] runs none.
        webhook_env: name of the environment variable that holds the address to which the alarm is posted as JSON; ""
            posts nothing. The address itself is a secret and does not belong into a config.
        levels: of which levels they are told: `warning`, `hard_stop`. Each is told once, and `hard_stop` whenever it
            pauses the stage.
        timeout_s: seconds that the command, and the answer to the post, may take. Training waits for them.
        continue_paused: a stage that `reward.monitor.action=pause` has paused goes on from where it was saved, and
            further strong warnings of this command only tell.
    """

    inherited: ClassVar[bool] = True
    command: tuple[str, ...] = ()
    webhook_env: str = ""
    levels: Annotated[
        tuple[Literal["warning", "hard_stop"], ...], NotEmpty(hint="write one or both of warning, hard_stop")
    ] = ("warning", "hard_stop")
    timeout_s: Annotated[float, Gt(0), Le(600)] = 10.0
    continue_paused: bool = False

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                not self.webhook_env or self.webhook_env.isidentifier(),
                "webhook_env is no name of an environment variable; export the address under a name of your own and "
                "write that name, such as webhook_env=ALERT_WEBHOOK",
            ),
            (not self.command or bool(self.command[0]), "command begins with an empty word; name a program"),
        )
