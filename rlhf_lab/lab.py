"""The core as a pack: contributions of rlhf_lab itself, in the same form as those of any other package."""

from __future__ import annotations

from rlhf_lab.core.packs import ConfigGroup, Pack

GROUPS = (
    ConfigGroup("model", "model that is trained, and the settings that train it well (`model.tuned`)."),
    ConfigGroup("data", "data for training and evaluation."),
    ConfigGroup("algorithm", "training algorithm, or evaluation."),
    ConfigGroup("reward", "scores of responses: terms, and how they are combined into one number."),
    ConfigGroup("rollout", "sampling of responses."),
    ConfigGroup("sharding", "distribution of the work over processes."),
    ConfigGroup("tracker", "destination of metrics besides the run directory."),
)

COMMANDS = {
    "demo": "rlhf_lab.cli.demo:demo_command",
    "ablations": "rlhf_lab.cli.study_sets:ablations_command",
    "transfer": "rlhf_lab.cli.study_sets:transfer_command",
    "report": "rlhf_lab.cli.commands:report_command",
    "audit": "rlhf_lab.cli.commands:audit_command",
    "rescore": "rlhf_lab.cli.commands:rescore_command",
    "attack": "rlhf_lab.cli.commands:attack_command",
    "monitor": "rlhf_lab.cli.commands:monitor_command",
    "track": "rlhf_lab.cli.commands:track_command",
    "dashboard": "rlhf_lab.cli.commands:dashboard_command",
    "sweep": "rlhf_lab.cli.sweep_file:sweep_command",
    "plan": "rlhf_lab.cli.commands:plan_command",
    "compare": "rlhf_lab.cli.commands:compare_command",
    "gate": "rlhf_lab.cli.commands:gate_command",
    "publish": "rlhf_lab.cli.publish:publish_command",
    "vllm": "rlhf_lab.cli.vllm:vllm_command",
    "results": "rlhf_lab.cli.commands:results_command",
    "doctor": "rlhf_lab.cli.commands:doctor_command",
    "explain": "rlhf_lab.cli.explain:explain_command",
}
"""Sub-command → its function, in the order of `--help`."""

ANSWERS = {
    "against_one_pass": "rlhf_lab.results.answer_policies:against_one_pass",
    "against_reference": "rlhf_lab.results.answer_policies:against_reference",
    "attacked": "rlhf_lab.results.answer_rewards:attacked",
    "benchmark": "rlhf_lab.results.answer_rewards:benchmark",
    "best_policy": "rlhf_lab.results.answer_policies:best_policy",
    "chosen_among_samples": "rlhf_lab.results.answer_policies:chosen_among_samples",
    "cross_fitted": "rlhf_lab.results.answer_rewards:cross_fitted",
    "golden_sets": "rlhf_lab.results.answer_policies:golden_sets",
    "heldout_loss": "rlhf_lab.results.answer_rewards:heldout_loss",
    "pair_ranking": "rlhf_lab.results.answer_rewards:pair_ranking",
    "pairs_of_steps": "rlhf_lab.results.answer_corpora:pairs_of_steps",
    "report_card": "rlhf_lab.results.answer_rewards:report_card",
    "probed": "rlhf_lab.results.answer_rewards:probed",
    "reward_and_truth": "rlhf_lab.results.answer_policies:reward_and_truth",
    "step_judge": "rlhf_lab.results.answer_rewards:step_judge",
    "steps": "rlhf_lab.results.answer_rewards:steps",
}
"""Value of `answer` in an algorithm's settings → function that answers a run's question in a sentence, or returns None
if the run lacks the numbers."""

CORE = Pack(
    name="core",
    package="rlhf_lab",
    groups=GROUPS,
    commands=COMMANDS,
    answers=ANSWERS,
    gold_sources={"gold": "rlhf_lab.rewards.gold_oracle:by_model"},
    comparers={"gold": "rlhf_lab.monitoring.audit:by_gold"},
    # Checks between sections of a config.
    rules=(
        "rlhf_lab.algorithms.trl.options:problems",
        "rlhf_lab.algorithms.pair_selection.settings:margin_problems",
        "rlhf_lab.evaluations.attack.settings:problems",
    ),
    # Checks that depend on this machine, such as files and services.
    preflight=("rlhf_lab.monitoring.alerts:problems", "rlhf_lab.rewards.external.trial:problems"),
    # Source files of the user's own code that a stage runs.
    code_files=("rlhf_lab.data.file_settings:code_files", "rlhf_lab.rewards.external.trial:code_files"),
)
"""Contributions of the core."""
