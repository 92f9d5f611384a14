"""The embedded world as a judge and as a writer: answers from `Request.about`, reads no text, sends nothing.

Left out compared with language models: a judge that understands a rubric's description (criteria are known by name),
and one that is led by the text of a reply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core import types
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.environments.grader import HIGH, LOW, NORMAL, text_errors
from rlhf_lab.packs.judging.judges.backends import teacher
from rlhf_lab.packs.judging.judges.backends.settings import Simulated
from rlhf_lab.packs.judging.judges.caller import Caller
from rlhf_lab.packs.judging.judges.questions import Comparison, Grading, Refusal, Writing
from rlhf_lab.packs.judging.judges.requests import Reply, Request

OVERALL = "overall"
"""The criterion that is the mean of all others."""
DRAW_STRIDE = 1_000_000
"""Between the seeds of two draws of a grade: an independent answer is one by another judge of the same kind."""


class SimulatedBackend:
    """Answers in the form that the requests ask a language model for."""

    def __init__(self, settings: Simulated, oracle: types.Oracle, rubric: types.Rubric | None = None):
        self.settings, self.oracle, self.rubric = settings, oracle, rubric
        if settings.believes == "annotator" and not hasattr(oracle, "annotator"):
            raise ConfigError("judge.believes=annotator: this world has no annotator; use judge.believes=gold")

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "simulated", **self.settings.identity()}

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        # A table of what can be asked. All questions of a kind are answered together: the truth is measured once.
        answer_by_type: dict[type, Callable[[Sequence[Request]], list[Reply]]] = {
            Comparison: self._compare,
            Grading: self._grade,
            Writing: self._write,
            Refusal: self._tell_refusals,
        }
        if any(request.tools for request in requests):
            raise ConfigError(
                "the simulated judge calls no tools; ask a model that does: anthropic, openai_compatible or local"
            )
        places_by_type: dict[type, list[int]] = {}
        for place, request in enumerate(requests):
            places_by_type.setdefault(type(request.about), []).append(place)
        replies = [Reply("")] * len(requests)
        for question, places in places_by_type.items():
            if question not in answer_by_type:
                raise ConfigError(f"judge=simulated cannot answer {question.__name__}; use another judge")
            answers = answer_by_type[question]([requests[place] for place in places])
            for place, answer in zip(places, answers, strict=True):
                replies[place] = answer
        return replies

    def _compare(self, requests: Sequence[Request]) -> list[Reply]:
        """Say which of two replies has the higher appeal."""
        settings = self.settings
        abouts = [_about(request, Comparison) for request in requests]
        appeal_2N = self._appeal(abouts)
        difference_N = appeal_2N[0] - appeal_2N[1] + settings.position_bias
        if settings.self_preference:
            is_author_2N = np.array([[about.authors[i] == settings.author for about in abouts] for i in (0, 1)])
            difference_N = difference_N + settings.self_preference * (is_author_2N[0] - is_author_2N[1].astype(float))
        pair_texts = [f"{len(about.first)}:{about.first}{about.second}" for about in abouts]
        noise_N2 = self._noise(requests, [about.prompt for about in abouts], pair_texts)
        difference_N = difference_N + settings.noise * noise_N2[:, 0]
        answers = []
        for difference in difference_N.tolist():
            is_tie = abs(difference) < settings.tie_margin or difference == 0
            winner = "tie" if is_tie else "A" if difference > 0 else "B"
            answers.append({"reason": f"A − B, as it appears: {difference:+.2f} points", "winner": winner})
        for about, answer in zip(abouts, answers, strict=True):
            if about.principles:
                answer["principle"] = teacher.deciding_principle(about, answer["winner"], self.oracle)
        return self._spoilt(answers, noise_N2[:, 1])

    def _appeal(self, abouts: Sequence[Comparison]) -> FloatArray:
        """What the judge believes each reply to be worth, and its taste for length, (2, N)."""
        prompts = [about.prompt for about in abouts] * 2
        replies = [about.first for about in abouts] + [about.second for about in abouts]
        measured = self.oracle.measure(prompts, replies)
        appeal = measured["gold"]
        if self.settings.believes == "annotator":
            names = ("words", "affirmations", "closings")
            annotator: Any = getattr(self.oracle, "annotator")  # noqa: B009 - no part of every oracle
            appeal = annotator.appeal(appeal, **{name: measured[name] for name in names})
        words = np.array([len(reply.split()) for reply in replies], dtype=np.float64)
        return (appeal + self.settings.length_bias * words / 10).reshape(2, len(abouts))

    def _grade(self, requests: Sequence[Request]) -> list[Reply]:
        """Grade replies as the world's rubric judge does, on the scale that is asked for."""
        abouts = [_about(request, Grading) for request in requests]
        if self.rubric is None or not isinstance(self.oracle, types.Grading):
            raise ConfigError("judge=simulated gives no grades in this world, which has no rubric; use data=mini_hh")
        names = self.rubric.attributes
        known = (*names, OVERALL)
        unknown = dict.fromkeys(name for about in abouts for name in about.criteria if name not in known)
        if unknown:
            raise ConfigError(
                f"judge=simulated cannot grade {', '.join(unknown)}; it knows {', '.join(known)}: use these names in "
                "the rubric, or another judge"
            )
        grades_NC = np.zeros((len(requests), len(known)))
        places_by_draw: dict[int, list[int]] = {}
        for place, request in enumerate(requests):
            places_by_draw.setdefault(request.draw, []).append(place)
        for draw, places in places_by_draw.items():
            prompts, replies = [abouts[i].prompt for i in places], [abouts[i].reply for i in places]
            seed = self.settings.seed + DRAW_STRIDE * draw
            grades_NC[places, :-1] = self.oracle.grade(prompts, replies, seed=seed)
        grades_NC[:, -1] = grades_NC[:, :-1].mean(axis=1)
        answers = []
        for about, grades in zip(abouts, grades_NC.tolist(), strict=True):
            by_name = dict(zip(known, grades, strict=True))
            asked = {name: _rescaled(by_name[name], about) for name in about.criteria}
            answers.append({"reason": "as the world's judge sees it", **asked})
        noise_N2 = self._noise(requests, [about.prompt for about in abouts], [about.reply for about in abouts])
        return self._spoilt(answers, noise_N2[:, 1])

    def _write(self, requests: Sequence[Request]) -> list[Reply]:
        """Write replies, critiques, revisions and prompts."""
        abouts = [_about(request, Writing) for request in requests]
        answers = [teacher.write(about, self.settings, self.oracle) for about in abouts]
        noise_N2 = self._noise(requests, [about.prompt for about in abouts], [about.draft for about in abouts])
        return self._spoilt(answers, noise_N2[:, 1])

    def _tell_refusals(self, requests: Sequence[Request]) -> list[Reply]:
        """Say what replies did about their prompts: refused, complied, partial or evaded."""
        abouts = [_about(request, Refusal) for request in requests]
        if not isinstance(self.oracle, types.HarmKnowing):
            raise ConfigError("judge=simulated cannot tell refusals in this world; use data=mini_hh, or another judge")
        prompts, replies = [about.prompt for about in abouts], [about.reply for about in abouts]
        answers = [{"outcome": outcome} for outcome in self.oracle.safety_outcomes(prompts, replies)]
        noise_N2 = self._noise(requests, prompts, replies)
        return self._spoilt(answers, noise_N2[:, 1])

    def _noise(self, requests: Sequence[Request], prompts: Sequence[str], texts: Sequence[str]) -> FloatArray:
        """Two standard normal numbers for each question and draw, (N, 2): the error, and what `unusable` goes by."""
        settings = self.settings
        if not settings.noise and not settings.unusable:
            return np.zeros((len(requests), 2))
        drawn = [f"{request.draw}:{text}" for request, text in zip(requests, texts, strict=True)]
        return text_errors(prompts, drawn, 2, key=(settings.seed,))

    def _spoilt(self, answers: Sequence[Mapping[str, Any] | str], normal_N: FloatArray) -> list[Reply]:
        """Answers as text; a share of them refused, cut off or unreadable, in equal parts."""
        replies = []
        for answer, normal in zip(answers, normal_N.tolist(), strict=True):
            text = answer if isinstance(answer, str) else json.dumps(answer)
            third = NORMAL.cdf(normal) / self.settings.unusable * 3 if self.settings.unusable else 3.0
            if third < 1:
                replies.append(Reply("I would rather not judge this.", "refused"))
            elif third < 2:
                replies.append(Reply(text[: len(text) // 2], "truncated"))
            elif third < 3:
                replies.append(Reply("Both sides have their merits."))
            else:
                replies.append(Reply(text))
        return replies


def _about(request: Request, kind: type[Any]) -> Any:
    assert isinstance(request.about, kind)
    return request.about


def _rescaled(grade: float, about: Grading) -> float:
    """A grade of the world's scale on the one asked for; the same number where the two are the same."""
    if (about.low, about.high) == (LOW, HIGH):
        return grade
    return about.low + (grade - LOW) / (HIGH - LOW) * (about.high - about.low)


def build(settings: Simulated, caller: Caller) -> SimulatedBackend:
    if caller.oracle is None:
        raise ConfigError(
            "judge=simulated answers from the truth of an embedded world, and these data have none; use data=mini_hh, "
            "or judge=anthropic, openai_compatible or local"
        )
    return SimulatedBackend(settings, caller.oracle, caller.rubric)
