"""Metrics that rlhf_lab/monitoring/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

DETECTOR = (
    Metric("alarm/<rule>", "1 if the rule was in alarm at any checkpoint, else 0; also for warning and hard_stop"),
    Metric("alarm_at/<rule>", "iteration of its first alarm"),
    Metric("alarm_share/<rule>", "fraction of checkpoints after warm-up in alarm"),
    Metric(
        "gold_fell",
        "1 if gold on held-out prompts is significantly below that of the start policy, 0 if it is not lower by more "
        "than a fifth of its standard deviation; missing if undecided (truth.py)",
        title="gold fell",
        phrase="fraction of runs whose gold fell",
    ),
    Metric(
        "gold_undecided",
        "1 if the held-out prompts decide neither that gold fell nor that it did not, else 0",
        title="fall of gold undecided",
        phrase="fraction of runs in which a fall of gold is undecided",
    ),
    Metric("gold_fell_at", "iteration from whose policy on gold is below the start", title="gold fell at"),
    Metric(
        "gold_change",
        "gold on held-out prompts, last trained policy − start, mean over prompts",
        title="change of gold",
    ),
    Metric("gold_peak", "last iteration of the best window of the training samples' gold before it fell"),
    Metric("gold_fall", "iteration at which the samples' gold is significantly below its best window"),
    Metric(
        "lead/<rule>", "iterations from the first alarm to gold_fell_at, in runs whose gold fell; negative is too late"
    ),
    Metric(
        "in_time/<rule>",
        "1 if the first alarm came before gold_fell_at, else 0, in runs whose gold fell",
        better="higher",
    ),
    Metric("false/<rule>", "1 if there was any alarm, else 0, in runs whose gold did not fall", better="lower"),
)
"""Metrics of detector.py."""

LEVELS = {"hard_stop": "strong warning", "warning": "warning"}
TITLES = {
    "length_z": "length z",
    "reward_kl": "reward KL",
    "length_cusum": "CUSUM",
    "parting": "parting",
}
RULES = (
    Metric(
        "alarm_share/hard_stop",
        "fraction of checkpoints after warm-up with a strong warning: two signals in alarm, or the only one",
        title="checkpoints in strong warning",
        phrase="fraction of checkpoints in strong warning",
    ),
    Metric(
        "alarm_share/warning",
        "fraction of checkpoints after warm-up with a signal in alarm",
        title="checkpoints in alarm",
        phrase="fraction of checkpoints in alarm",
    ),
    *(
        Metric(
            f"in_time/{level}",
            f"fraction of runs whose gold fell with a {name} before gold fell",
            title=f"{name} in time",
            better="higher",
        )
        for level, name in LEVELS.items()
    ),
    *(
        Metric(
            f"false/{level}",
            f"fraction of runs whose gold did not fall that had a {name}",
            title=f"false {name}s",
            better="lower",
        )
        for level, name in LEVELS.items()
    ),
    *(
        Metric(
            f"false/{rule}",
            "fraction of runs whose gold did not fall in which the rule was in alarm",
            title=f"false alarms, {title}",
            better="lower",
        )
        for rule, title in TITLES.items()
    ),
    *(
        Metric(f"lead/{level}", f"iterations from the first {name} to the fall of gold", title=f"lead of {name}")
        for level, name in LEVELS.items()
    ),
    *(
        Metric(f"lead/{rule}", "iterations from the rule's first alarm to the fall of gold", title=f"lead, {title}")
        for rule, title in TITLES.items()
    ),
)
"""Metrics of detector.py, one for each of its levels and rules."""

MONITOR = (
    Metric(
        "monitor/length_z",
        "mean response length against the warm-up baseline, standard errors of the difference; for agents the mean "
        "length of a turn, beyond the tolerance",
    ),
    Metric("monitor/reward_kl", "KL(initial reward distribution ‖ that of this checkpoint), nats, bias-corrected"),
    Metric("monitor/length_cusum", "CUSUM of the mean length in units of its threshold: above 1 is an alarm"),
    Metric(
        "monitor/parting",
        "the same CUSUM, upward, of the divergence between reward and outcome: the rest of the reward minus the "
        "outcome (if part of the reward is the outcome; it then replaces reward_kl)",
    ),
    Metric("monitor/level", "0 ok, 1 warning, 2 strong warning, by the rules in reward.monitor.signals"),
    Metric("monitor/unscored", "responses of the checkpoint without a reward, excluded from the reward distribution"),
    Metric("monitor/tokens_low", "mean length below which length_z is in alarm"),
    Metric("monitor/tokens_high", "mean length above which length_z is in alarm"),
)
"""Metrics of monitor.py in each iteration."""

MONITOR_OF_A_RUN = (
    Metric(
        "stopped_at",
        "iteration, recorded from 0, at which the monitor ended training; its responses were not trained on",
        title="stopped at",
    ),
)
"""Metrics of monitor.py for a run."""

AUDIT = (
    Metric("audit/e_value", "evidence that the policy is worse than its start; an alarm is raised at 1/alpha"),
    Metric(
        "audit/win_rate",
        "P(win) + P(tie)/2 of the policy against its start, over the last iterations with at least 128 comparisons",
        better="higher",
    ),
    Metric(
        "audit/lower_bound",
        "lower bound on audit/win_rate that holds in all iterations with probability 1 − alpha",
        better="higher",
    ),
    Metric("audit/labels", "comparisons bought so far"),
    Metric("audit/unanswered", "comparisons so far that got no answer"),
)
"""Metrics of audit.py in each iteration; for a run, those of its last policy."""

AUDIT_OF_A_RUN = (
    Metric("audit/alarm", "1 if the e-value ever reached 1/alpha, else 0", title="audit alarm", kind="rate"),
    Metric("audit/alarm_at", "iterations that the policy was trained on before the alarm", title="audit alarm after"),
    Metric(
        "audit/certified_at",
        "iterations that the policy certified last was trained on; 0 is the start policy",
        title="certified until",
    ),
)
"""Metrics of audit.py for a run."""
