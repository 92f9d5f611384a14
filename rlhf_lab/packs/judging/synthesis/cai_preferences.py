"""Preference pairs labelled by a model under a constitution: two replies of the policy, one judgement in both orders.

Left out compared with arXiv:2212.08073: revisions before the pairs, probabilities as soft labels, and a principle drawn
at random for every question; here the judge sees all principles and names the one that decided.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.packs.judging.judges.caller import judge_of
from rlhf_lab.packs.judging.judges.pairwise import Candidates, Judgement, judge_pairs
from rlhf_lab.packs.judging.judges.rubric import JudgeRubric
from rlhf_lab.packs.judging.synthesis import making
from rlhf_lab.packs.judging.synthesis.constitution import load_constitution
from rlhf_lab.packs.judging.synthesis.making import Item, Row
from rlhf_lab.packs.judging.synthesis.settings import CAIPreferences
from rlhf_lab.sampling.policy_replies import PolicyReplies
from rlhf_lab.training.run import Result, Run

TIE = "tie"
INCONSISTENT = "judge disagreed with itself"


class ConstitutionalPreferences:
    """Samples, has judged and writes pairs."""

    def __init__(self, settings: CAIPreferences, run: Run):
        self.settings, self.run = settings, run
        self.constitution = load_constitution(settings.constitution_path)
        self.judge = judge_of(run)
        self.replies = PolicyReplies(run)
        self.is_contaminated = making.Contamination(run, settings.max_overlap or 1.0)
        self.principles = JudgeRubric(
            self.constitution.name, 0, 1, self.constitution.principles, self.constitution.instructions["judge"]
        )

    def finish(self) -> Result:
        items = making.draw_items(self.run, self.settings.prompts)
        rows = making.settle_all(self.run, items, self._settle, "pairs under the constitution")
        making.reject_duplicates(rows, ("chosen", "rejected"), self.settings.max_overlap or 1.0)
        return Result(metrics=self._write(rows), primary=["made/acceptance", "made/label_agreement"])

    def _settle(self, chunk: int, items: Sequence[Item]) -> list[Row]:
        """Sample two replies to each prompt, and have those compared that can be a pair."""
        prompts = [item.prompt for item in items]
        first, second = self.replies.sample(prompts, 2, "cai_preferences/replies", chunk)
        rows: list[Row] = [
            {"prompt": item.prompt, "draw": item.draw, "problem": self._screen(item.prompt, a, b), "replies": [a, b]}
            for item, a, b in zip(items, first, second, strict=True)
        ]
        asked = [row for row in rows if not row["problem"]]
        judgements = judge_pairs(
            self.judge,
            [Candidates(row["prompt"], *row["replies"]) for row in asked],
            self.principles,
            max_tokens=self.settings.max_tokens,
            principles=self.constitution.names,
            title="judging",
        )
        for row, judgement in zip(asked, judgements, strict=True):
            row |= _outcome(row["replies"], judgement)
            if not row["problem"]:
                del row["replies"]  # they are there as chosen and rejected
        return rows

    def _screen(self, prompt: str, first: str, second: str) -> str | None:
        """Why two replies are not worth a judgement; None where they are."""
        if self.is_contaminated(prompt):
            return making.CONTAMINATED
        if first == second:
            return making.IDENTICAL
        lengths = (making.length_problem(reply, self.settings.max_words) for reply in (first, second))
        return next((problem for problem in lengths if problem), None)

    def _write(self, rows: Sequence[Row]) -> Row:
        """Write the corpus; its counts and, where the world knows the truth, what its labels are worth."""
        pairs = [row for row in rows if not row["problem"]]
        prompts = [row["prompt"] for row in pairs]
        gold = making.gold_of(
            self.run, prompts * 2, [row["chosen"] for row in pairs] + [row["rejected"] for row in pairs]
        )
        if gold is not None:
            for row, chosen, rejected in zip(pairs, gold[: len(pairs)], gold[len(pairs) :], strict=True):
                row |= {"gold_chosen": float(chosen), "gold_rejected": float(rejected)}
        about = {"constitution": self.constitution.name, "judge": dict(self.judge.identity)}
        kept, refused = making.write_corpus(self.run, "pairs", rows, about)
        metrics = making.counts(rows, kept, refused)
        if not kept:
            return metrics
        words_N = [(len(row["chosen"].split()), len(row["rejected"].split())) for row in kept]
        metrics["made/words"] = making.mean_over_prompts([chosen for chosen, _ in words_N], kept)
        longer_N = [np.sign(chosen - rejected) / 2 + 0.5 for chosen, rejected in words_N]
        metrics["made/longer_chosen"] = making.mean_over_prompts(longer_N, kept)
        if gold is not None:
            right_N = [np.sign(row["gold_chosen"] - row["gold_rejected"]) / 2 + 0.5 for row in kept]
            metrics["made/label_agreement"] = making.mean_over_prompts(right_N, kept)
            metrics["made/gold"] = making.mean_over_prompts([row["gold_chosen"] for row in kept], kept)
        for name in self.constitution.names:
            decided_N = [np.mean([principle == name for principle in row["principles"]]) for row in kept]
            metrics[f"made/principle/{name}"] = making.mean_over_prompts(decided_N, kept)
        return metrics


def _outcome(replies: Sequence[str], judgement: Judgement) -> Row:
    """What a judgement makes of a row: a chosen and a rejected reply, or why there is no pair."""
    votes = judgement.votes
    row: Row = {"reasons": [vote.reason for vote in votes], "principles": [vote.principle for vote in votes]}
    unscored = next((vote.unscored for vote in votes if vote.unscored), None)
    if unscored:
        return {**row, "problem": f"judge's answer {unscored}"}
    if votes[0].winner != votes[1].winner:
        return {**row, "problem": INCONSISTENT}
    if judgement.winner == "tie":
        return {**row, "problem": TIE}
    chosen, other = replies if judgement.winner == "first" else reversed(replies)
    return {**row, "chosen": chosen, "rejected": other}


def build(settings: CAIPreferences, run: Run) -> ConstitutionalPreferences:
    return ConstitutionalPreferences(settings, run)
