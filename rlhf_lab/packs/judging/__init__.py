"""Judging: language models and people who are asked, and what is made of their answers.

Begin with judges/client.py; then labels/, leaderboard/, synthesis/, safety/.
"""

from rlhf_lab.core.packs import Group, Pack

PACK = Pack(
    name="judging",
    package="rlhf_lab.packs.judging",
    groups=(
        Group(
            "judge",
            "who answers where a language model is asked: to judge responses, or to write data.",
            default="simulated",
        ),
    ),
    commands={
        "label": "rlhf_lab.packs.judging.commands:label_command",
        "leaderboard": "rlhf_lab.packs.judging.commands:leaderboard_command",
        "judge": "rlhf_lab.packs.judging.commands:judge_command",
    },
    answers={
        "graded_pairs": "rlhf_lab.packs.judging.answers:graded_pairs",
        "safety": "rlhf_lab.packs.judging.answers:safety",
    },
    preflight=("rlhf_lab.packs.judging.judges.preflight:problems",),
)
