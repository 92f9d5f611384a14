"""What a judge of worked solutions is worth: does it catch wrong steps behind a right answer, and does it choose well?

Two sets of held-out solutions. `own`: samples of the policy, read by the world where it can. `planted`: right
demonstrations, versions with one mistake, and versions in which a second mistake brings the right answer back; known
truth on any data with worked solutions.

Judges are compared at equal false alarms, since a judge that flags everything catches everything. A process reward
model's score of a solution aggregates its steps, an outcome reward model's is its probability at the last token. Where
the first wrong step has to be named, both are asked at the end of every step; for an outcome reward model that is the
probability that the answer will be right, read halfway, which it was never trained to say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_lab.core.files import append_jsonl, truncate
from rlhf_lab.core.types import BoolArray, FloatArray
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
"""False alarms at which judges are compared, percent."""
CURVE = range(1, 100)
"""Percents of the curves in metrics.jsonl."""
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
    """Solutions of one set, what is true of them, and what the judge says.

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
        """Every second problem."""
        return self.prompts % 2 == 1

    @property
    def correct(self) -> FloatArray:
        return np.array([each.correct for each in self.solutions])

    @property
    def sound(self) -> BoolArray:
        """The answer is right, and so is every step."""
        return np.array(
            [bool(each.correct and each.labels and all(each.labels)) for each in self.solutions], dtype=bool
        )

    @property
    def critical(self) -> BoolArray:
        """The answer is right and a step is wrong."""
        return (self.correct == 1) & ~self.sound


class StepReporting:
    """Judges the held-out solutions once; every number comes from what is written to steps.jsonl."""

    def __init__(self, settings: StepReport, run: Run):
        self.settings, self.run = settings, run
        source, model = run.needs["policy"], run.config.model
        self.encoder = load_encoder(source, model)
        self.solutions = Solutions(run, load_policy(source, model, device=run.device), self.encoder)
        self.judge = load_judge(run.needs["judge"], run.config.model, run.device)

    def finish(self) -> Result:
        truncate(self.run.folder / "steps.jsonl", 0)
        pairs = problems(self.run, "test", self.run.config.evaluation.prompts)
        number = {pair.prompt: i for i, pair in enumerate(pairs)}
        own = self.solutions.sample(list(number), self.settings.samples, "steps/report")
        known = isinstance(self.run.corpus.oracle, StepOracle)
        own_set = self._judged("own", annotated(self.run, own) if known else own, number)
        seed = self.run.seed("steps/planted")
        wrong = perturbed_solutions(self.run, pairs, 1, seed)
        cancelling = perturbed_solutions(self.run, pairs, 1, seed, cancels=True)
        both = wrong + [each for each in cancelling if not all(each.labels)]
        planted_set = self._judged("planted", both, number)
        planted = truth_metrics(planted_set) if both else {}
        found = {f"planted_{name}": value for name, value in planted.items()}
        self._log_curves(own_set, {"planted_caught": planted_set} | ({"caught": own_set} if known else {}))
        if known:
            found |= truth_metrics(own_set) | sample_metrics(own_set)
        found |= self._choices(own_set)
        found["brier_outcome"] = clustered_mean((own_set.scores - own_set.correct) ** 2, own_set.prompts)
        found["auroc_correct"] = auroc(own_set.scores, own_set.correct == 1, own_set.prompts)
        if known and not own_set.critical.any():
            self.run.note(
                "no sample has a right answer and a wrong step: there is nothing to catch but what was planted"
            )
        metrics = {name: value for name, value in found.items() if value.n}
        return Result(
            metrics={**metrics, **corpus_report(self.run.corpus, self.encoder)},
            primary=[name for name in PRIMARY if name in metrics],
        )

    def _log_curves(self, own: Graded, sets: dict[str, Graded]) -> None:
        """The scores of samples, and how many critical solutions are caught as more false alarms are allowed."""
        self.run.rewind_log(0)
        for percent in CURVE:
            shares = {name: caught(graded, percent) for name, graded in sets.items()}
            known = {f"{name}/by_percent_false_alarms": share.mean for name, share in shares.items() if share.n}
            self.run.log(percent, **{"score/by_percentile": float(np.percentile(own.scores, percent))}, **known)

    def _judged(self, name: str, solutions: list[Trajectory], number: dict[str, int]) -> Graded:
        """Ask the judge about all of them, and write down what it says."""
        judged = self.judge([each.prompt for each in solutions], [each.reply for each in solutions])
        rows = [
            {
                "set": name,
                "prompt_id": number[each.prompt],
                "prompt": each.prompt,
                "response": each.reply,
                "correct": each.correct,
                "labels": list(each.labels),
                "steps": [round(float(p), 6) for p in said.steps],
                "last": round(said.last, 6),
            }
            for each, said in zip(solutions, judged, strict=True)
        ]
        append_jsonl(self.run.folder / "steps.jsonl", rows)
        prompts = np.array([number[each.prompt] for each in solutions])
        scores = np.array([self._score(said, self.settings.aggregate) for said in judged])
        return Graded(solutions, prompts, scores, [said.steps for said in judged])

    def _score(self, said: Judged, aggregate: str) -> float:
        """One number for a solution; 0 from a process reward model where there is no step."""
        if self.judge.told.kind == "orm":
            return said.last
        return AGGREGATIONS[aggregate](said.steps) if len(said.steps) else 0.0

    def _choices(self, own: Graded) -> dict[str, Estimate]:
        """Accuracy of choosing among n samples: by the judge, by majority, by an oracle, and not at all."""
        n, size = self.settings.choose_from, self.settings.samples
        correct_PG = own.correct.reshape(-1, size)
        rng = np.random.default_rng(self.run.seed("steps/majority"))
        answers = [final_answer(each.reply) for each in own.solutions]
        plain = np.array([None if a is None else normalised(a) for a in answers], dtype=object).reshape(-1, size)
        chosen = {"best_of_n": own.scores.reshape(-1, size), "oracle": correct_PG}
        if self.judge.told.kind == "prm":
            for name, value in AGGREGATIONS.items():
                scores = [value(steps) if len(steps) else 0.0 for steps in own.steps]
                chosen[f"best_of_n/{name}"] = np.array(scores).reshape(-1, size)
        values = {
            name: [best_of_n(score_G, right_G, [n])[0] for score_G, right_G in zip(scores, correct_PG, strict=True)]
            for name, scores in chosen.items()
        }
        for name, weights in (("majority", np.ones_like(correct_PG)), ("weighted_vote", chosen["best_of_n"])):
            values[name] = [
                vote_of_n(list(said), list(right), list(weight), n, self.settings.vote_draws, rng)
                for said, right, weight in zip(plain, correct_PG, weights, strict=True)
            ]
        problems_P = np.arange(len(correct_PG))
        found = {name: clustered_mean(value, problems_P) for name, value in values.items()}
        return {**found, "correct": clustered_rate(own.correct, own.prompts)}


def caught(graded: Graded, percent: int) -> Estimate:
    """Share of the critical solutions (right answer, wrong step) that are flagged at a false-alarm rate."""
    flagged = flagged_at(graded.scores, graded.sound, graded.half, percent / 100)
    return clustered_rate(flagged[graded.critical], graded.prompts[graded.critical])


def truth_metrics(graded: Graded) -> dict[str, Estimate]:
    """What needs the truth about steps: critical solutions caught, false alarms, the first wrong step named."""
    sound, prompts = graded.sound, graded.prompts
    found: dict[str, Estimate] = {}
    for percent in ALARMS:
        flagged = flagged_at(graded.scores, sound, graded.half, percent / 100)
        found[f"caught_{percent}"] = caught(graded, percent)
        found[f"false_alarm_{percent}"] = clustered_rate(flagged[sound], prompts[sound])
    truth = np.array([first_wrong(each.labels) for each in graded.solutions])
    named = process_bench_estimates(located(graded.steps, truth, graded.half), truth, prompts)
    return {**found, **{f"process_{name}": value for name, value in named.items()}}


def sample_metrics(own: Graded) -> dict[str, Estimate]:
    """Ranking and calibration on samples whose steps the world has read, and how many of which kind there are."""
    said: list[float] = []
    labels: list[float] = []
    prompts: list[float] = []
    for each, steps, prompt in zip(own.solutions, own.steps, own.prompts, strict=True):
        count = min(len(steps), first_wrong(each.labels) + 1 or len(each.labels))
        said += steps[:count].tolist()
        labels += each.labels[:count]
        prompts += [prompt] * count
    sound, right = own.sound, np.array(labels)
    return {
        "auroc_sound": auroc(own.scores, sound, own.prompts),
        "auroc_steps": auroc(said, right == 1, prompts),
        "brier_steps": clustered_mean((np.array(said) - right) ** 2, prompts),
        "critical": clustered_rate(own.critical.astype(float), own.prompts),
        "sound": clustered_rate(sound.astype(float), own.prompts),
    }


def build(settings: StepReport, run: Run) -> StepReporting:
    return StepReporting(settings, run)
