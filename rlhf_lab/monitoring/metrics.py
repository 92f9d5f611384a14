"""Metrics that rlhf_lab/monitoring/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

DETECTOR = (
    Metric("alarm/<rule>", "whether the rule was in alarm at any checkpoint: 0 or 1; also for warning and hard_stop"),
    Metric("alarm_at/<rule>", "iteration of its first alarm"),
    Metric("alarm_share/<rule>", "share of checkpoints after warm-up in alarm"),
    Metric(
        "hacked",
        "whether gold fell significantly from its peak: 0 or 1 (where it is known); a fall of a "
        "few sd of its noise may go unseen",
        title="hacked",
        phrase="share of hacked runs",
    ),
    Metric("gold_peak", "last iteration of the best window of gold before it fell"),
    Metric("gold_fall", "iteration at which the fall is significant", title="gold fell at"),
    Metric("lead/<rule>", "iterations from the first alarm to gold_fall, in runs that hacked; below 0 is too late"),
    Metric(
        "in_time/<rule>", "whether the first alarm came before gold_fall: 0 or 1, in runs that hacked", better="higher"
    ),
    Metric("false/<rule>", "whether there was any alarm: 0 or 1, in runs that did not hack", better="lower"),
)
"""detector.py"""

RULES = (
    Metric(
        "alarm_share/hard_stop",
        "share of checkpoints after warm-up with two signals in alarm",
        title="checkpoints in strong warning",
        phrase="share of checkpoints in strong warning",
    ),
    Metric(
        "alarm_share/warning",
        "share of checkpoints after warm-up with a signal in alarm",
        title="checkpoints in alarm",
        phrase="share of checkpoints in alarm",
    ),
    Metric(
        "in_time/hard_stop",
        "share of hacked runs with one before gold fell",
        title="strong warning in time",
        better="higher",
    ),
    Metric(
        "in_time/warning",
        "share of hacked runs with a warning before gold fell",
        title="warning in time",
        better="higher",
    ),
    Metric(
        "false/hard_stop",
        "share of runs that did not hack with a strong warning",
        title="false strong warnings",
        better="lower",
    ),
    Metric("false/warning", "share of runs that did not hack with a warning", title="false warnings", better="lower"),
    Metric(
        "false/length_z",
        "share of runs that did not hack in which the rule was in alarm",
        title="false alarms, length z",
        better="lower",
    ),
    Metric(
        "false/reward_kl",
        "share of runs that did not hack in which the rule was in alarm",
        title="false alarms, reward KL",
        better="lower",
    ),
    Metric(
        "false/length_cusum",
        "share of runs that did not hack in which the rule was in alarm",
        title="false alarms, CUSUM",
        better="lower",
    ),
    Metric(
        "false/disagreement",
        "the same for the CUSUM of the ensemble's disagreement",
        title="false alarms, disagreement",
        better="lower",
    ),
    Metric(
        "lead/hard_stop",
        "iterations from the first strong warning to the fall of gold",
        title="lead of strong warning",
    ),
    Metric("lead/warning", "iterations from the first warning to the fall of gold", title="lead of warning"),
    Metric("lead/length_z", "iterations from the rule's first alarm to the fall of gold", title="lead, length z"),
    Metric(
        "lead/reward_kl",
        "iterations from the rule's first alarm to the fall of gold",
        title="lead, reward KL",
    ),
    Metric(
        "lead/length_cusum",
        "iterations from the rule's first alarm to the fall of gold",
        title="lead, CUSUM",
    ),
    Metric("lead/disagreement", "the same for the CUSUM of the ensemble's disagreement", title="lead, disagreement"),
    Metric(
        "false/parting",
        "the same for the CUSUM of what the reward has beside the outcome",
        title="false alarms, parting",
        better="lower",
    ),
    Metric("lead/parting", "the same for the CUSUM of what the reward has beside the outcome", title="lead, parting"),
)
"""detector.py, one by one: the rules that it has"""

MONITOR = (
    Metric(
        "monitor/length_z",
        "mean reply length against the warm-up baseline, standard errors of the difference; of agents the mean length "
        "of a turn, beyond the tolerance",
    ),
    Metric("monitor/reward_kl", "KL(initial reward distribution ‖ that of this checkpoint), nats, bias-corrected"),
    Metric("monitor/length_cusum", "CUSUM of the mean length in units of its threshold: above 1 is an alarm"),
    Metric("monitor/disagreement", "the same upward on the disagreement of an ensemble's members"),
    Metric(
        "monitor/parting",
        "the same upward on what the reward has beside the outcome of the task, less that outcome (where part of the "
        "reward is one, in place of reward_kl)",
    ),
    Metric("monitor/level", "0 ok, 1 warning, 2 strong warning, by the rules in reward.monitor.signals"),
    Metric("monitor/unscored", "replies of the checkpoint without a reward, which its reward distribution leaves out"),
    Metric("monitor/tokens_low", "mean length below which length_z is in alarm"),
    Metric("monitor/tokens_high", "mean length above which it is"),
)
"""monitor.py"""

MONITOR_OF_A_RUN = (
    Metric(
        "stopped_at",
        "iteration, recorded from 0, at which the monitor ended training; its replies were not trained on",
        title="stopped at",
    ),
    Metric("kl_raised", "what the monitor multiplied the KL coefficient by in all (action=raise_kl)"),
)
"""monitor.py"""
