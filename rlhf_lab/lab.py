"""The core as a pack: what the lab itself contributes, in the same form as any other package."""

from __future__ import annotations

from rlhf_lab.core.packs import Group, Pack

GROUPS = (
    Group("model", "what is trained, and the settings that train it well (`model.tuned`)."),
    Group("data", "what it is trained and evaluated on."),
    Group("algorithm", "how it is trained, or what is evaluated."),
    Group("reward", "what scores responses: terms, and how they become one number."),
    Group("rollout", "how responses are sampled."),
    Group("sharding", "how the work is spread over processes."),
    Group("tracker", "where metrics go besides the run's folder."),
)

COMMANDS = {
    "report": "rlhf_lab.cli.commands:report_command",
    "audit": "rlhf_lab.cli.commands:audit_command",
    "rescore": "rlhf_lab.cli.commands:rescore_command",
    "monitor": "rlhf_lab.cli.commands:monitor_command",
    "dashboard": "rlhf_lab.cli.commands:dashboard_command",
    "sweep": "rlhf_lab.cli.commands:sweep_command",
    "plan": "rlhf_lab.cli.commands:plan_command",
    "compare": "rlhf_lab.cli.commands:compare_command",
    "gate": "rlhf_lab.cli.commands:gate_command",
    "publish": "rlhf_lab.cli.commands:publish_command",
    "vllm": "rlhf_lab.cli.commands:vllm_command",
    "doctor": "rlhf_lab.cli.commands:doctor_command",
    "explain": "rlhf_lab.cli.commands:explain_command",
}
"""Sub-command → its function, in the order of `--help`."""

ANSWERS = {
    "against_one_pass": "rlhf_lab.results.answer_policies:against_one_pass",
    "against_reference": "rlhf_lab.results.answer_policies:against_reference",
    "benchmark": "rlhf_lab.results.answer_rewards:benchmark",
    "best_policy": "rlhf_lab.results.answer_policies:best_policy",
    "chosen_among_samples": "rlhf_lab.results.answer_samples:chosen_among_samples",
    "corpus_made": "rlhf_lab.results.answer_corpora:corpus_made",
    "cross_fitted": "rlhf_lab.results.answer_rewards:cross_fitted",
    "golden_sets": "rlhf_lab.results.answer_suite:golden_sets",
    "held_out_loss": "rlhf_lab.results.answer_rewards:held_out_loss",
    "pair_ranking": "rlhf_lab.results.answer_rewards:pair_ranking",
    "report_card": "rlhf_lab.results.answer_rewards:report_card",
    "reward_and_truth": "rlhf_lab.results.answer_policies:reward_and_truth",
    "step_judge": "rlhf_lab.results.answer_rewards:step_judge",
    "steps": "rlhf_lab.results.answer_rewards:steps",
}
"""What settings call `answer` → function of a run that returns the sentence, or None if the run holds too little."""

CORE = Pack(
    name="core",
    package="rlhf_lab",
    groups=GROUPS,
    commands=COMMANDS,
    answers=ANSWERS,
    rules=(
        "rlhf_lab.algorithms.trl.options:problems",
        "rlhf_lab.algorithms.pair_selection.settings:margin_problems",
    ),
    preflight=(
        "rlhf_lab.monitoring.preflight:problems",
        "rlhf_lab.rewards.external.trial:problems",
    ),
    code_files=(
        "rlhf_lab.data.environment_settings:code_files",
        "rlhf_lab.rewards.external.trial:code_files",
    ),
)
