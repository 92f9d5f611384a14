"""Preference pairs labelled by a model under a constitution: two responses of the policy, judged in both orders.

Differences from arXiv:2212.08073: there are no revisions before the pairs, and no probabilities as soft labels. The
judge sees all principles and names the one that decided, instead of one principle selected at random per question.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.packs.judging.judges.context import judge_of, label_cost
from rlhf_lab.packs.judging.judges.pairwise import Candidates, PairJudgement, judge_pairs
from rlhf_lab.packs.judging.judges.rubric import JudgeRubric
from rlhf_lab.packs.judging.synthesis import making
from rlhf_lab.packs.judging.synthesis.constitution import load_constitution, named_principle
from rlhf_lab.packs.judging.synthesis.making import Row, SynthesisItem
from rlhf_lab.packs.judging.synthesis.settings import CAIPreferences
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.training.run import Result, Run

TIE = "tie"
INCONSISTENT = "judge disagreed with itself"


class ConstitutionalPreferences:
    """Samples pairs of responses, lets the judge compare them, and writes the corpus."""

    def __init__(self, settings: CAIPreferences, run: Run):
        self.settings = settings
        self.run = run
        self.constitution = load_constitution(settings.constitution_path)
        self.judge = judge_of(run)
        self.responses = PolicyResponses(run)
        self.is_contaminated = making.Contamination(run, settings.max_overlap or 1.0)
        # the principles are the criteria of a comparison, which does not use the scale 0…1
        self.principles = JudgeRubric(
            self.constitution.name, 0, 1, self.constitution.principles, self.constitution.instructions["judge"]
        )

    def finish(self) -> Result:
        items = making.draw_items(self.run, self.settings.prompts)
        rows = making.make_all(self.run, items, self._make_result, "pairs under the constitution")
        making.reject_duplicates(rows, ("chosen", "rejected"), self.settings.max_overlap or 1.0)
        return Result(metrics=self._write(rows), primary=["made/acceptance", "made/label_agreement"])

    def _make_result(self, chunk: int, items: Sequence[SynthesisItem]) -> list[Row]:
        prompts = [item.prompt for item in items]
        first, second = self.responses.sample(prompts, 2, "cai_preferences/replies", chunk)
        rows: list[Row] = []
        for item, a, b in zip(items, first, second, strict=True):
            problem = self._screen(item.prompt, a, b)
            rows.append({"prompt": item.prompt, "draw": item.draw, "problem": problem, "replies": [a, b]})
        # only pairs that pass the screening are paid for
        requested = [row for row in rows if not row["problem"]]
        judgements = judge_pairs(
            self.judge,
            [Candidates(row["prompt"], *row["replies"]) for row in requested],
            self.principles,
            max_tokens=self.settings.max_tokens,
            principles=self.constitution.names,
            title="judging",
        )
        for row, judgement in zip(requested, judgements, strict=True):
            row |= _outcome(row["replies"], judgement)
            if not row["problem"]:
                del row["replies"]  # they are stored as chosen and rejected
        return rows

    def _screen(self, prompt: str, first: str, second: str) -> str | None:
        if self.is_contaminated(prompt):
            return making.CONTAMINATED
        if first == second:
            return making.IDENTICAL
        limit = self.settings.max_words
        return making.length_problem(first, limit) or making.length_problem(second, limit)

    def _write(self, rows: Sequence[Row]) -> Row:
        pairs = [row for row in rows if not row["problem"]]
        prompts = [row["prompt"] for row in pairs]
        responses = [row["chosen"] for row in pairs] + [row["rejected"] for row in pairs]
        gold = making.gold_of(self.run, prompts * 2, responses)
        if gold is not None:
            for row, chosen, rejected in zip(pairs, *np.split(gold, 2), strict=True):
                row |= {"gold_chosen": float(chosen), "gold_rejected": float(rejected)}
        about = {"constitution": self.constitution.name, "judge": dict(self.judge.identity)}
        kept, refused = making.write_corpus(self.run, "pairs", rows, about)
        metrics = {**making.counts(rows, kept, refused), **label_cost(self.run, self.judge, len(kept))}
        if not kept:
            return metrics
        chosen_N, rejected_N = (np.array([len(row[side].split()) for row in kept]) for side in ("chosen", "rejected"))
        metrics["made/words"] = making.mean_over_prompts(chosen_N, kept)
        # the judge may prefer longer responses, which a reward model would learn
        metrics["made/longer_chosen"] = making.mean_over_prompts(win_or_tie(chosen_N - rejected_N), kept)
        if gold is not None:
            gap_N = np.array([row["gold_chosen"] - row["gold_rejected"] for row in kept])
            metrics["made/label_agreement"] = making.mean_over_prompts(win_or_tie(gap_N), kept)
            metrics["made/gold"] = making.mean_over_prompts([row["gold_chosen"] for row in kept], kept)
        names = self.constitution.names
        named_N2 = [[named_principle(text, names) for text in row["principles"]] for row in kept]
        for name in names:
            decided_N = [named_2.count(name) / 2 for named_2 in named_N2]
            metrics[f"made/principle/{name}"] = making.mean_over_prompts(decided_N, kept)
        return metrics


def _outcome(responses: Sequence[str], judgement: PairJudgement) -> Row:
    votes = judgement.votes
    row: Row = {"reasons": [vote.reason for vote in votes], "principles": [vote.principle for vote in votes]}
    unscored = next((vote.unscored for vote in votes if vote.unscored), None)
    if unscored:
        return {**row, "problem": f"judge's answer {unscored}"}
    # a pair needs the same winner in both orders; a single vote may be position bias
    if votes[0].winner != votes[1].winner:
        return {**row, "problem": INCONSISTENT}
    if judgement.winner == "tie":
        return {**row, "problem": TIE}
    chosen, other = responses if judgement.winner == "first" else reversed(responses)
    return {**row, "chosen": chosen, "rejected": other}


def build(settings: CAIPreferences, run: Run) -> ConstitutionalPreferences:
    return ConstitutionalPreferences(settings, run)
