"""Evaluation of a judge of worked solutions: does it detect wrong steps before a right answer, and select well?

It uses two sets of held-out solutions. `own` are samples of the policy, with step labels if the world can parse them.
`planted` are right demonstrations, versions with one mistake, and versions in which a second mistake restores the right
answer. Their labels are known for any data with worked solutions.

Judges are compared at equal false-alarm rates, because a judge that flags everything detects everything. The score of a
process reward model aggregates its steps; the score of an outcome reward model is its probability at the last token. To
locate the first wrong step, both are evaluated at the end of every step. For an outcome reward model this is the
probability that the final answer will be right, at intermediate positions, for which it was not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.files import append_jsonl, truncate
from rlhf_lab.core.types import BoolArray, FloatArray, Pair
from rlhf_lab.environments.maths.answers import final_answer, normalised
from rlhf_lab.environments.maths.chains import StepOracle
from rlhf_lab.evaluations.settings import StepReport
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.rewards.learned.process import AGGREGATIONS, Judged, load_judge
from rlhf_lab.sampling.solutions import Solutions, Trajectory, annotated, perturbed_solutions, problems
from rlhf_lab.statistics.best_of_n import best_of_n
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.steps import auroc, first_wrong, flagged_at, located, process_bench_estimates, vote_of_n
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report

ALARMS = (5, 10)
"""False-alarm rates at which judges are compared, in percent."""
CURVE = range(1, 100)
"""False-alarm rates and score percentiles of the curves in metrics.jsonl, in percent."""
PRIMARY = (
    *("caught_5", "planted_caught_5", "process_f1", "best_of_n", "weighted_vote", "majority", "oracle", "correct"),
    "critical",
)


@dataclass(frozen=True)
class GradedSolutions:
    """Solutions of one set with their ground truth and the judge's scores.

    Attributes:
        prompts: index of the problem of each solution, (N,).
        scores: the judge's score of each solution, (N,).
        steps: the judge's probability at the end of each step.
    """

    solutions: list[Trajectory]
    prompts: FloatArray
    scores: FloatArray
    steps: list[FloatArray]

    @property
    def every_second(self) -> BoolArray:
        """Mask of every second problem. Thresholds chosen on one half are evaluated on the other."""
        return self.prompts % 2 == 1

    @property
    def correct(self) -> FloatArray:
        return np.array([solution.correct for solution in self.solutions])

    @property
    def is_fully_correct(self) -> BoolArray:
        return np.array([bool(s.correct and s.labels and all(s.labels)) for s in self.solutions], dtype=bool)

    @property
    def critical(self) -> BoolArray:
        """Mask of solutions with a right answer and a wrong step."""
        return (self.correct == 1) & ~self.is_fully_correct


class StepReporting:
    """Stage that judges the held-out solutions once, and logs them with the judge's probabilities to steps.jsonl."""

    def __init__(self, settings: StepReport, run: Run):
        self.settings = settings
        self.run = run
        source, model_settings = run.needs["policy"], run.config.model
        self.encoder = load_encoder(source, model_settings)
        policy = load_policy(source, model_settings, device=run.device)
        self.solutions = Solutions(run, policy, self.encoder)
        self.judge = load_judge(run.needs["judge"], model_settings, run.device)

    def finish(self) -> Result:
        truncate(self.run.directory / "steps.jsonl", 0)  # remove rows of an interrupted attempt
        pairs = problems(self.run, "test", self.run.config.evaluation.prompts)
        # problems are clusters of all intervals, and even and odd ones are the two halves
        prompt_ids = {pair.prompt: i for i, pair in enumerate(pairs)}
        # an answer key knows final answers, but not whether steps are right
        reads_steps = isinstance(self.run.corpus.oracle, StepOracle)
        samples = self.solutions.sample(list(prompt_ids), self.settings.samples, "steps/report")
        own = self._judge_solutions("own", annotated(self.run, samples) if reads_steps else samples, prompt_ids)
        # planted mistakes have known labels even if the world cannot read steps
        planted = self._judge_solutions("planted", self._plant_mistakes(pairs), prompt_ids)
        estimates: dict[str, Estimate] = {}
        if planted.solutions:
            estimates |= {f"planted_{name}": estimate for name, estimate in truth_metrics(planted).items()}
        self._log_curves(own, {"planted_caught": planted, **({"caught": own} if reads_steps else {})})
        if reads_steps:
            estimates |= truth_metrics(own) | sample_metrics(own)
        estimates |= self._choice_metrics(own)
        estimates["brier_outcome"] = clustered_mean((own.scores - own.correct) ** 2, own.prompts)
        estimates["auroc_correct"] = auroc(own.scores, own.correct == 1, own.prompts)
        if reads_steps and not own.critical.any():
            self.run.note(
                "no sample has a right answer and a wrong step, so detection is measured only on planted mistakes"
            )
        metrics = {name: estimate for name, estimate in estimates.items() if estimate.n}
        primary = [name for name in PRIMARY if name in metrics]
        return Result(metrics={**metrics, **corpus_report(self.run.corpus, self.encoder)}, primary=primary)

    def _plant_mistakes(self, pairs: Sequence[Pair]) -> list[Trajectory]:
        """Return right demonstrations, versions with one mistake, and versions with two mistakes that cancel out."""
        seed = self.run.seed("steps/planted")
        wrong = perturbed_solutions(self.run, pairs, 1, seed)
        cancelling = perturbed_solutions(self.run, pairs, 1, seed, cancels=True)
        # Both calls return the right demonstrations too: only those of the first call are used.
        return wrong + [solution for solution in cancelling if not all(solution.labels)]

    def _log_curves(self, own: GradedSolutions, sets: dict[str, GradedSolutions]) -> None:
        """Log the score percentiles, and the fraction of critical solutions detected at each false-alarm rate."""
        for percent in CURVE:
            curves = {"score/by_percentile": float(np.percentile(own.scores, percent))}
            for name, graded in sets.items():
                fraction = caught(graded, percent)
                if fraction.n:
                    curves[f"{name}/by_percent_false_alarms"] = fraction.mean
            self.run.log(percent, **curves)

    def _judge_solutions(self, name: str, solutions: list[Trajectory], prompt_ids: dict[str, int]) -> GradedSolutions:
        """Judge all solutions of a set, and log the probabilities to steps.jsonl."""
        judged = self.judge([solution.prompt for solution in solutions], [solution.response for solution in solutions])
        rows = [
            {
                "set": name,
                "prompt_id": prompt_ids[solution.prompt],
                "prompt": solution.prompt,
                "response": solution.response,
                "correct": solution.correct,
                "labels": list(solution.labels),
                "steps": [round(float(p), 6) for p in judgement.steps],
                "last": round(judgement.last, 6),
            }
            for solution, judgement in zip(solutions, judged, strict=True)
        ]
        append_jsonl(self.run.directory / "steps.jsonl", rows)
        prompts = np.array([prompt_ids[solution.prompt] for solution in solutions])
        scores = np.array([self._score_solution(judgement) for judgement in judged])
        return GradedSolutions(solutions, prompts, scores, [judgement.steps for judgement in judged])

    def _score_solution(self, judgement: Judged) -> float:
        """Return the score of a solution. For an outcome reward model it is the probability at the last token."""
        if self.judge.trained_as.kind == "orm":
            return judgement.last
        return aggregate_steps(judgement.steps, self.settings.aggregate)

    def _choice_metrics(self, own: GradedSolutions) -> dict[str, Estimate]:
        """Return the accuracy of selecting among n samples by the judge, by majority, by an oracle, and at random."""
        n = self.settings.choose_from
        group_size = self.settings.samples
        correct_PG = own.correct.reshape(-1, group_size)
        scores_PG = own.scores.reshape(-1, group_size)
        choosers = {"best_of_n": scores_PG, "oracle": correct_PG}
        # an outcome reward model has no trained probability per step to aggregate
        if self.judge.trained_as.kind == "prm":
            for aggregate in AGGREGATIONS:
                scores = np.array([aggregate_steps(steps, aggregate) for steps in own.steps])
                choosers[f"best_of_n/{aggregate}"] = scores.reshape(-1, group_size)
        accuracy = {
            name: [
                best_of_n(score_G, correct_G, [n])[0] for score_G, correct_G in zip(chooser_PG, correct_PG, strict=True)
            ]
            for name, chooser_PG in choosers.items()
        }
        answers = [final_answer(solution.response) for solution in own.solutions]
        stated = [None if answer is None else normalised(answer) for answer in answers]
        answer_PG = np.array(stated, dtype=object).reshape(-1, group_size)
        # Both votes use one random stream, in this order.
        rng = np.random.default_rng(self.run.seed("steps/majority"))
        for name, weight_PG in (("majority", np.ones_like(correct_PG)), ("weighted_vote", scores_PG)):
            accuracy[name] = [
                vote_of_n(list(answer_G), list(correct_G), list(weight_G), n, self.settings.vote_draws, rng)
                for answer_G, correct_G, weight_G in zip(answer_PG, correct_PG, weight_PG, strict=True)
            ]
        problems_P = np.arange(len(correct_PG))
        metrics = {name: clustered_mean(accuracy_P, problems_P) for name, accuracy_P in accuracy.items()}
        return {**metrics, "correct": clustered_rate(own.correct, own.prompts)}


def aggregate_steps(steps: FloatArray, aggregate: str) -> float:
    """Aggregate the probabilities of a solution's steps; 0 if there is no step."""
    return AGGREGATIONS[aggregate](steps) if len(steps) else 0.0


def caught(graded: GradedSolutions, percent: int) -> Estimate:
    """Return the fraction of critical solutions (right answer, wrong step) that are flagged at a false-alarm rate."""
    flagged = flagged_at(graded.scores, graded.is_fully_correct, graded.every_second, percent / 100)
    return clustered_rate(flagged[graded.critical], graded.prompts[graded.critical])


def truth_metrics(graded: GradedSolutions) -> dict[str, Estimate]:
    """Return the metrics that need step labels: critical solutions detected, false alarms, first wrong step located."""
    sound = graded.is_fully_correct
    prompts = graded.prompts
    metrics: dict[str, Estimate] = {}
    for percent in ALARMS:
        flagged = flagged_at(graded.scores, sound, graded.every_second, percent / 100)
        metrics[f"caught_{percent}"] = caught(graded, percent)
        metrics[f"false_alarm_{percent}"] = clustered_rate(flagged[sound], prompts[sound])
    truth = np.array([first_wrong(solution.labels) for solution in graded.solutions])
    predicted = located(graded.steps, truth, graded.every_second)
    process = process_bench_estimates(predicted, truth, prompts)
    return {**metrics, **{f"process_{name}": estimate for name, estimate in process.items()}}


def sample_metrics(own: GradedSolutions) -> dict[str, Estimate]:
    """Return ranking and calibration on samples with step labels, and the fractions of critical and sound solutions."""
    probabilities: list[float] = []
    labels: list[float] = []
    prompts: list[float] = []
    for solution, steps, prompt in zip(own.solutions, own.steps, own.prompts, strict=True):
        # Up to and including the first wrong step. If no step is wrong, `first_wrong` is −1 and all steps count.
        count = min(len(steps), first_wrong(solution.labels) + 1 or len(solution.labels))
        probabilities += steps[:count].tolist()
        labels += solution.labels[:count]
        prompts += [prompt] * count
    sound = own.is_fully_correct
    right = np.array(labels)
    return {
        "auroc_sound": auroc(own.scores, sound, own.prompts),
        "auroc_steps": auroc(probabilities, right == 1, prompts),
        "brier_steps": clustered_mean((np.array(probabilities) - right) ** 2, prompts),
        "critical": clustered_rate(own.critical.astype(float), own.prompts),
        "sound": clustered_rate(sound.astype(float), own.prompts),
    }


def build(settings: StepReport, run: Run) -> StepReporting:
    return StepReporting(settings, run)
