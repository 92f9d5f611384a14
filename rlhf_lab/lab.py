"""The core as a pack: what the lab itself contributes, in the same form as any other package."""

from __future__ import annotations

from rlhf_lab.core.packs import Group, Pack

GROUPS = (
    Group("model", "what is trained, and the settings that train it well (`model.tuned`)."),
    Group("data", "what it is trained and evaluated on."),
    Group("algorithm", "how it is trained, or what is evaluated."),
    Group("reward", "what scores responses: terms, and how they become one number."),
    Group("agent", "who attempts tasks with tools, and the model behind it."),
    Group("judge", "who answers where a language model is asked: to judge responses, or to write data."),
    Group("rollout", "how responses are sampled."),
    Group("sharding", "how the work is spread over processes."),
    Group("tracker", "where metrics go besides the run's folder."),
)

CORE = Pack(
    name="core",
    package="rlhf_lab",
    groups=GROUPS,
    rules=(
        "rlhf_lab.algorithms.trl.options:problems",
        "rlhf_lab.algorithms.pair_selection.settings:margin_problems",
    ),
    preflight=(
        "rlhf_lab.monitoring.preflight:problems",
        "rlhf_lab.rewards.external.trial:problems",
        "rlhf_lab.judges.preflight:problems",
        "rlhf_lab.agents.preflight:problems",
        "rlhf_lab.sandbox.preflight:problems",
    ),
    code_files=(
        "rlhf_lab.data.environment_settings:code_files",
        "rlhf_lab.rewards.external.trial:code_files",
        "rlhf_lab.agents.preflight:code_files",
    ),
)
