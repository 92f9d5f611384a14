"""A judge as the gold of a run: the responses of any data, graded on a rubric."""

from __future__ import annotations

from dataclasses import replace

from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.judging.judges.backends.settings import gold_rubric
from rlhf_lab.packs.judging.judges.context import judge_of
from rlhf_lab.packs.judging.judges.rubric import load_rubric
from rlhf_lab.packs.judging.rewards.judge import GradeReward
from rlhf_lab.packs.judging.rewards.settings import Judge
from rlhf_lab.rewards.gold_oracle import GoldOracle
from rlhf_lab.rewards.graph import OneNote
from rlhf_lab.training.run import Run


def by_judge(corpus: Corpus, run: Run) -> Corpus:
    """Return the data of a run whose gold is the judge's grade (`judge=…`) on the rubric of `needs.judge`, 0…1."""
    rubric = gold_rubric(run.config)

    # loaded with the first grade, so a run that measures no gold opens no judge
    def load() -> GradeReward:
        return GradeReward(judge_of(run), Judge(rubric=rubric), load_rubric(rubric), run.note)

    return replace(corpus, oracle=GoldOracle(load, corpus, OneNote(run.notes)))
