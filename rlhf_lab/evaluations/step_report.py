"""What a judge of worked solutions is worth: does it catch wrong steps behind a right answer, and does it choose well?

Two sets of held-out solutions. `own`: samples of the policy, with the truth about their steps where the world can read
them. `planted`: right demonstrations, versions with one mistake, and versions in which a second mistake brings the
right answer back; their truth is known on any data with worked solutions.

Judges are compared at equal false alarms, since a judge that flags everything catches everything. A process reward
model's score of a solution aggregates its steps, an outcome reward model's is its probability at the last token. Where
the first wrong step has to be named, both are asked at the end of every step; for an outcome reward model that is the
probability that the answer will be right, read halfway, which it was never trained to say.
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
"""False-alarm rates at which judges are compared, percent."""
CURVE = range(1, 100)
"""False-alarm rates, and percentiles of the score, of the curves in metrics.jsonl, percent."""
PRIMARY = (
    "caught_5",
    "planted_caught_5",
    "process_f1",
    "best_of_n",
    "weighted_vote",
    "majority",
    "oracle",
    "correct",
    "critical",
)


@dataclass(frozen=True)
class Graded:
    """Solutions of one set, the truth about them, and the judge's scores.

    Attributes:
        prompts: problem of each solution, as a number.
        scores: the judge's one number for each, (N,).
        steps: its probability at the end of each step.
    """

    solutions: list[Trajectory]
    prompts: FloatArray
    scores: FloatArray
    steps: list[FloatArray]

    @property
    def half(self) -> BoolArray:
        """Every second problem: thresholds chosen on one half are measured on the other."""
        return self.prompts % 2 == 1

    @property
    def correct(self) -> FloatArray:
        """1 where the final answer is right, else 0."""
        return np.array([solution.correct for solution in self.solutions])

    @property
    def sound(self) -> BoolArray:
        """The answer is right, and so is every step."""
        sound = [bool(solution.correct and solution.labels and all(solution.labels)) for solution in self.solutions]
        return np.array(sound, dtype=bool)

    @property
    def critical(self) -> BoolArray:
        """The answer is right and a step is wrong."""
        return (self.correct == 1) & ~self.sound


class StepReporting:
    """Judges the held-out solutions once; the solutions and the judge's probabilities are logged to steps.jsonl."""

    def __init__(self, settings: StepReport, run: Run):
        self.settings, self.run = settings, run
        source, model_settings = run.needs["policy"], run.config.model
        self.encoder = load_encoder(source, model_settings)
        policy = load_policy(source, model_settings, device=run.device)
        self.solutions = Solutions(run, policy, self.encoder)
        self.judge = load_judge(run.needs["judge"], model_settings, run.device)

    def finish(self) -> Result:
        truncate(self.run.folder / "steps.jsonl", 0)
        pairs = problems(self.run, "test", self.run.config.evaluation.prompts)
        prompt_ids = {pair.prompt: i for i, pair in enumerate(pairs)}
        reads_steps = isinstance(self.run.corpus.oracle, StepOracle)
        samples = self.solutions.sample(list(prompt_ids), self.settings.samples, "steps/report")
        own = self._judge_solutions("own", annotated(self.run, samples) if reads_steps else samples, prompt_ids)
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
                "no sample has a right answer and a wrong step: there is nothing to catch but what was planted"
            )
        metrics = {name: estimate for name, estimate in estimates.items() if estimate.n}
        return Result(
            metrics={**metrics, **corpus_report(self.run.corpus, self.encoder)},
            primary=[name for name in PRIMARY if name in metrics],
        )

    def _plant_mistakes(self, pairs: Sequence[Pair]) -> list[Trajectory]:
        """Right demonstrations, versions with one mistake, and versions whose second mistake cancels the first."""
        seed = self.run.seed("steps/planted")
        wrong = perturbed_solutions(self.run, pairs, 1, seed)
        cancelling = perturbed_solutions(self.run, pairs, 1, seed, cancels=True)
        # Both calls return the right demonstrations too: they are taken from the first alone.
        return wrong + [solution for solution in cancelling if not all(solution.labels)]

    def _log_curves(self, own: Graded, sets: dict[str, Graded]) -> None:
        """The scores of samples, and how many critical solutions are caught as more false alarms are allowed."""
        for percent in CURVE:
            curves = {"score/by_percentile": float(np.percentile(own.scores, percent))}
            for name, graded in sets.items():
                share = caught(graded, percent)
                if share.n:
                    curves[f"{name}/by_percent_false_alarms"] = share.mean
            self.run.log(percent, **curves)

    def _judge_solutions(self, name: str, solutions: list[Trajectory], prompt_ids: dict[str, int]) -> Graded:
        """Ask the judge about all solutions of a set, and log its probabilities to steps.jsonl."""
        judged = self.judge([solution.prompt for solution in solutions], [solution.reply for solution in solutions])
        rows = [
            {
                "set": name,
                "prompt_id": prompt_ids[solution.prompt],
                "prompt": solution.prompt,
                "response": solution.reply,
                "correct": solution.correct,
                "labels": list(solution.labels),
                "steps": [round(float(p), 6) for p in judgement.steps],
                "last": round(judgement.last, 6),
            }
            for solution, judgement in zip(solutions, judged, strict=True)
        ]
        append_jsonl(self.run.folder / "steps.jsonl", rows)
        prompts = np.array([prompt_ids[solution.prompt] for solution in solutions])
        scores = np.array([self._score_solution(judgement) for judgement in judged])
        return Graded(solutions, prompts, scores, [judgement.steps for judgement in judged])

    def _score_solution(self, judgement: Judged) -> float:
        """One number for a solution: of an outcome reward model its probability at the last token."""
        if self.judge.trained_as.kind == "orm":
            return judgement.last
        return aggregate_steps(judgement.steps, self.settings.aggregate)

    def _choice_metrics(self, own: Graded) -> dict[str, Estimate]:
        """Accuracy of choosing among n samples: by the judge, by majority, by an oracle, and not at all."""
        n, group_size = self.settings.choose_from, self.settings.samples
        correct_PG = own.correct.reshape(-1, group_size)
        scores_PG = own.scores.reshape(-1, group_size)
        choosers = {"best_of_n": scores_PG, "oracle": correct_PG}
        if self.judge.trained_as.kind == "prm":
            for aggregate in AGGREGATIONS:
                scores = np.array([aggregate_steps(steps, aggregate) for steps in own.steps])
                choosers[f"best_of_n/{aggregate}"] = scores.reshape(-1, group_size)
        accuracy: dict[str, list[float]] = {}
        for name, chooser_PG in choosers.items():
            accuracy[name] = [
                best_of_n(score_G, correct_G, [n])[0] for score_G, correct_G in zip(chooser_PG, correct_PG, strict=True)
            ]
        answers = [final_answer(solution.reply) for solution in own.solutions]
        stated = [None if answer is None else normalised(answer) for answer in answers]
        answer_PG = np.array(stated, dtype=object).reshape(-1, group_size)
        # Both votes draw from one stream, in this order.
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
    """One number from the probabilities of a solution's steps; 0 where there is no step."""
    return AGGREGATIONS[aggregate](steps) if len(steps) else 0.0


def caught(graded: Graded, percent: int) -> Estimate:
    """Share of the critical solutions (right answer, wrong step) that are flagged at a false-alarm rate."""
    flagged = flagged_at(graded.scores, graded.sound, graded.half, percent / 100)
    return clustered_rate(flagged[graded.critical], graded.prompts[graded.critical])


def truth_metrics(graded: Graded) -> dict[str, Estimate]:
    """What needs the truth about steps: critical solutions caught, false alarms, the first wrong step named."""
    sound, prompts = graded.sound, graded.prompts
    metrics: dict[str, Estimate] = {}
    for percent in ALARMS:
        flagged = flagged_at(graded.scores, sound, graded.half, percent / 100)
        metrics[f"caught_{percent}"] = caught(graded, percent)
        metrics[f"false_alarm_{percent}"] = clustered_rate(flagged[sound], prompts[sound])
    truth = np.array([first_wrong(solution.labels) for solution in graded.solutions])
    predicted = located(graded.steps, truth, graded.half)
    process = process_bench_estimates(predicted, truth, prompts)
    return {**metrics, **{f"process_{name}": estimate for name, estimate in process.items()}}


def sample_metrics(own: Graded) -> dict[str, Estimate]:
    """Ranking and calibration on samples with known steps, and the shares of critical and of sound ones."""
    probabilities: list[float] = []
    labels: list[float] = []
    prompts: list[float] = []
    for solution, steps, prompt in zip(own.solutions, own.steps, own.prompts, strict=True):
        # Up to and including the first wrong step; `first_wrong` is −1, and so all steps count, where none is wrong.
        count = min(len(steps), first_wrong(solution.labels) + 1 or len(solution.labels))
        probabilities += steps[:count].tolist()
        labels += solution.labels[:count]
        prompts += [prompt] * count
    sound, right = own.sound, np.array(labels)
    return {
        "auroc_sound": auroc(own.scores, sound, own.prompts),
        "auroc_steps": auroc(probabilities, right == 1, prompts),
        "brier_steps": clustered_mean((np.array(probabilities) - right) ** 2, prompts),
        "critical": clustered_rate(own.critical.astype(float), own.prompts),
        "sound": clustered_rate(sound.astype(float), own.prompts),
    }


def build(settings: StepReport, run: Run) -> StepReporting:
    return StepReporting(settings, run)
