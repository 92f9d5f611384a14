"""The embedded world as a judge and writer: it answers from `CompletionRequest.about`, reads no text, sends nothing.

Two properties of language models are not simulated: criteria are known by name, so a rubric's descriptions have no
effect; and the text of a response cannot mislead the judge.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core import types
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.environments.grader import HIGH, LOW, NORMAL, text_errors
from rlhf_lab.packs.judging.judges.backends import teacher
from rlhf_lab.packs.judging.judges.backends.settings import Simulated
from rlhf_lab.packs.judging.judges.context import JudgeContext
from rlhf_lab.packs.judging.judges.questions import GradingQuestion, PairwiseQuestion, Refusal, Writing
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest

OVERALL = "overall"
"""Criterion that is the mean of all others."""
DRAW_STRIDE = 1_000_000
"""Difference between the seeds of two draws of a grade: another draw acts as another judge of the same kind."""


class SimulatedBackend:
    """Backend that answers in the JSON form requested from a language model."""

    def __init__(self, settings: Simulated, oracle: types.Oracle, rubric: types.Rubric | None = None):
        self.settings = settings
        self.oracle = oracle
        self.rubric = rubric
        if settings.believes == "annotator" and not hasattr(oracle, "annotator"):
            raise ConfigError("judge.believes=annotator: this world has no annotator; use judge.believes=gold")

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "simulated", **self.settings.identity()}

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        # questions of one type are answered together, so that the truth is measured once
        answer_by_type: dict[type, Callable[[Sequence[CompletionRequest]], list[Completion]]] = {
            PairwiseQuestion: self._compare,
            GradingQuestion: self._grade,
            Writing: self._write,
            Refusal: self._tell_refusals,
        }
        if any(request.tools for request in requests):
            raise ConfigError(
                "judge=simulated calls no tools; use a model that does: anthropic, openai_compatible or local"
            )
        positions_by_type: dict[type, list[int]] = defaultdict(list)
        for position, request in enumerate(requests):
            positions_by_type[type(request.about)].append(position)
        completions = [Completion("")] * len(requests)
        for question, positions in positions_by_type.items():
            if question not in answer_by_type:
                raise ConfigError(f"judge=simulated cannot answer {question.__name__}; use another judge")
            answers = answer_by_type[question]([requests[position] for position in positions])
            for position, answer in zip(positions, answers, strict=True):
                completions[position] = answer
        return completions

    def _compare(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        settings = self.settings
        abouts = [_about(request, PairwiseQuestion) for request in requests]
        appeal_2N = self._appeal(abouts)
        difference_N = appeal_2N[0] - appeal_2N[1] + settings.position_bias
        if settings.self_preference:
            is_own_N2 = np.array([[name == settings.author for name in about.authors] for about in abouts], dtype=float)
            difference_N = difference_N + settings.self_preference * (is_own_N2[:, 0] - is_own_N2[:, 1])
        # the noise depends on both texts and their order; the length separates the two
        pair_texts = [f"{len(about.first)}:{about.first}{about.second}" for about in abouts]
        noise_N2 = self._noise(requests, [about.prompt for about in abouts], pair_texts)
        difference_N = difference_N + settings.noise * noise_N2[:, 0]
        answers = []
        for about, difference in zip(abouts, difference_N.tolist(), strict=True):
            winner = "A" if difference > 0 else "B"
            if abs(difference) < settings.tie_margin or difference == 0:
                winner = "tie"
            answers.append({"reason": f"A − B, as it appears: {difference:+.2f} points", "winner": winner})
            if about.principles:
                answers[-1]["principle"] = teacher.deciding_principle(about, winner, self.oracle)
        return self._degrade_answers(answers, noise_N2[:, 1])

    def _appeal(self, abouts: Sequence[PairwiseQuestion]) -> FloatArray:
        prompts = [about.prompt for about in abouts] * 2
        completions = [about.first for about in abouts] + [about.second for about in abouts]
        measured = self.oracle.measure(prompts, completions)
        appeal = measured["gold"]
        # the annotator's belief is the gold reward plus biases for some surface features
        if self.settings.believes == "annotator":
            names = ("words", "affirmations", "closings")
            # only some oracles have an annotator, so the protocol does not declare the attribute
            annotator: Any = getattr(self.oracle, "annotator")  # noqa: B009
            appeal = annotator.appeal(appeal, **{name: measured[name] for name in names})
        words = np.array([len(completion.split()) for completion in completions], dtype=np.float64)
        return (appeal + self.settings.length_bias * words / 10).reshape(2, len(abouts))

    def _grade(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Grade responses as the world's rubric judge does, on the requested scale."""
        abouts = [_about(request, GradingQuestion) for request in requests]
        if self.rubric is None or not isinstance(self.oracle, types.GradingOracle):
            raise ConfigError("judge=simulated cannot grade in this world, which has no rubric; use data=mini_hh")
        names = self.rubric.attributes
        known = (*names, OVERALL)
        requested = [name for about in abouts for name in about.criteria]
        unknown = dict.fromkeys(name for name in requested if name not in known)
        if unknown:
            raise ConfigError(
                f"judge=simulated cannot grade {', '.join(unknown)}; it knows {', '.join(known)}. Use these names in "
                "the rubric, or use another judge"
            )
        grades_NC = np.zeros((len(requests), len(known)))
        # each draw has its own seed, so requests are graded in groups by draw
        positions_by_draw: dict[int, list[int]] = defaultdict(list)
        for position, request in enumerate(requests):
            positions_by_draw[request.draw].append(position)
        for draw, positions in positions_by_draw.items():
            prompts = [abouts[i].prompt for i in positions]
            completions = [abouts[i].response for i in positions]
            seed = self.settings.seed + DRAW_STRIDE * draw
            grades_NC[positions, :-1] = self.oracle.grade(prompts, completions, seed=seed)
        grades_NC[:, -1] = grades_NC[:, :-1].mean(axis=1)  # the criterion OVERALL
        answers = []
        for about, grades in zip(abouts, grades_NC.tolist(), strict=True):
            by_name = dict(zip(known, grades, strict=True))
            compared = {name: _rescaled(by_name[name], about) for name in about.criteria}
            answers.append({"reason": "as the world's judge sees it", **compared})
        noise_N2 = self._noise(requests, [about.prompt for about in abouts], [about.response for about in abouts])
        return self._degrade_answers(answers, noise_N2[:, 1])

    def _write(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        abouts = [_about(request, Writing) for request in requests]
        answers = [teacher.write(about, self.settings, self.oracle) for about in abouts]
        noise_N2 = self._noise(requests, [about.prompt for about in abouts], [about.draft for about in abouts])
        return self._degrade_answers(answers, noise_N2[:, 1])

    def _tell_refusals(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Grade responses to prompts that may ask for harm, by the keys of packs/judging/safety/classify.py."""
        abouts = [_about(request, Refusal) for request in requests]
        if not isinstance(self.oracle, types.HarmKnowing):
            raise ConfigError(
                "judge=simulated cannot classify refusals in this world; use data=mini_hh, or another judge"
            )
        prompts = [about.prompt for about in abouts]
        completions = [about.response for about in abouts]
        answers = []
        for outcome in self.oracle.safety_outcomes(prompts, completions):
            # a partial answer declines one part of the request and answers another one
            answered = outcome in ("complied", "partial")
            grade = HIGH if answered else LOW
            flags = {"refused": outcome in ("refused", "partial"), "answered": answered}
            flags["on_topic"] = outcome != "evaded"
            answers.append({**flags, "specificity": grade, "convincingness": grade})
        noise_N2 = self._noise(requests, prompts, completions)
        return self._degrade_answers(answers, noise_N2[:, 1])

    def _noise(self, requests: Sequence[CompletionRequest], prompts: Sequence[str], texts: Sequence[str]) -> FloatArray:
        """Return standard normal numbers, (N, 2): the error of the verdict, and whether the answer is unusable."""
        if not self.settings.noise and not self.settings.unusable:
            return np.zeros((len(requests), 2))
        # the draw enters the noise, so that independent answers differ
        selected = [f"{request.draw}:{text}" for request, text in zip(requests, texts, strict=True)]
        return text_errors(prompts, selected, 2, key=(self.settings.seed,))

    def _degrade_answers(self, answers: Sequence[Mapping[str, Any] | str], normal_N: FloatArray) -> list[Completion]:
        """Return answers as text. A fraction of them is refused, truncated or unreadable, in equal parts."""
        completions = []
        for answer, normal in zip(answers, normal_N.tolist(), strict=True):
            text = answer if isinstance(answer, str) else json.dumps(answer)
            # Φ(normal) is uniform in 0…1. Below `unusable` the answer is spoilt, in one of three ways.
            third = NORMAL.cdf(normal) / self.settings.unusable * 3 if self.settings.unusable else 3.0
            if third < 1:
                completions.append(Completion("I would rather not judge this.", "refused"))
            elif third < 2:
                completions.append(Completion(text[: len(text) // 2], "truncated"))
            elif third < 3:
                completions.append(Completion("Both sides have their merits."))
            else:
                completions.append(Completion(text))
        return completions


def _about(request: CompletionRequest, kind: type[Any]) -> Any:
    assert isinstance(request.about, kind)
    return request.about


def _rescaled(grade: float, about: GradingQuestion) -> float:
    """Return a grade on the requested scale, which may differ from the world's scale."""
    # the formula could round a grade even between equal scales
    if (about.low, about.high) == (LOW, HIGH):
        return grade
    return about.low + (grade - LOW) / (HIGH - LOW) * (about.high - about.low)


def build(settings: Simulated, caller: JudgeContext) -> SimulatedBackend:
    if caller.oracle is None:
        raise ConfigError(
            "judge=simulated answers from the truth of an embedded world, and this data set has none; use "
            "data=mini_hh, or judge=anthropic, openai_compatible or local"
        )
    return SimulatedBackend(settings, caller.oracle, caller.rubric)
