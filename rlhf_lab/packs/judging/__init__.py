"""Judging: language models and people as sources of judgements, and the data sets and statistics built on them.

judges/ sends requests to language models: requests, store, budget, services, pairwise and rubric judging. rewards/ uses
a judge as a reward or as gold, grading/ grades pairs for `rubric_rm`. synthesis/ writes training data with a model,
curation/ filters it. safety/ measures attack success and over-refusal, mt_bench/ grades conversations of two turns.
labels/ is the page on which people compare responses, leaderboard/ ranks policies from judgements, statistics/ has
agreement, bias and win rates. answers.py writes the conclusions of runs, commands.py has the sub-commands, metrics.py
declares the metrics.

Start with judges/client.py, then judges/pairwise.py. Imports no other pack.
"""

from rlhf_lab.core.packs import ConfigGroup, Pack

PACK = Pack(
    name="judging",
    package="rlhf_lab.packs.judging",
    groups=(
        ConfigGroup(
            "judge",
            "backend that answers requests to a language model: to judge responses, or to write data.",
            default="simulated",
        ),
    ),
    commands={
        "label": "rlhf_lab.packs.judging.commands:label_command",
        "leaderboard": "rlhf_lab.packs.judging.commands:leaderboard_command",
        "judge": "rlhf_lab.packs.judging.commands:judge_command",
        "safety": "rlhf_lab.packs.judging.commands:safety_command",
        "canaries": "rlhf_lab.packs.judging.commands:canaries_command",
    },
    answers={
        "synthetic_corpus": "rlhf_lab.results.answer_corpora:synthetic_corpus",
        "graded_pairs": "rlhf_lab.packs.judging.answers:graded_pairs",
        "safety": "rlhf_lab.packs.judging.answers:safety",
        "mt_bench": "rlhf_lab.packs.judging.answers:mt_bench",
    },
    gold_sources={"judge": "rlhf_lab.packs.judging.rewards.judge:by_judge"},
    comparers={
        "judge": "rlhf_lab.packs.judging.rewards.audit:by_judge",
        "human": "rlhf_lab.packs.judging.rewards.audit:by_people",
    },
    preflight=("rlhf_lab.packs.judging.judges.preflight:problems",),
)
