"""One judgement of the command line: its output directory, how it resumes there, and its printed summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.config import root
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import check_outputs, fingerprint, make_dir, read_json, read_object, write_json
from rlhf_lab.packs.judging.judges.context import describe_cost
from rlhf_lab.packs.judging.judges.judging import (
    JudgingItem,
    Metered,
    at_once,
    judge_items,
    question_of,
    summarise,
    summarise_grades,
)
from rlhf_lab.packs.judging.judges.questions import REASONS
from rlhf_lab.packs.judging.judges.rubric import JudgeRubric
from rlhf_lab.packs.judging.judges.sources import Matched, ResponseSource
from rlhf_lab.reports.comparison.report import default_dir
from rlhf_lab.statistics.estimates import format_estimate

RESULT, JUDGEMENTS, GRADES = "result.json", "judgements.jsonl", "grades.jsonl"


@dataclass(frozen=True)
class JudgeOptions:
    """Arguments of the command line, which `judge_command` describes.

    Attributes:
        policies: policy of each source; None for the run's own.
        items: maximum number of comparisons or responses; 0 for all.
        config: configuration with the judge, and with the data if they are named (`names_data`).
    """

    sources: tuple[Path, ...]
    policies: tuple[str | None, ...]
    items: int
    seed: int
    reference: str
    rubric: str
    max_tokens: int
    to: Path | None
    outputs: Path | None
    dry_run: bool
    config: root.Config
    names_data: bool


def names_of(sources: Sequence[ResponseSource]) -> tuple[str, str]:
    """Return the authors of the responses: policies, or another text that distinguishes the sources."""
    by_policy = [source.author for source in sources]
    by_position = [f"{source.path.name} {source.policy or ''}".strip() for source in sources]  # directory and policy
    for names in (by_policy, by_position):
        if len(set(names)) == len(names):
            return names[0], names[1] if len(names) == 2 else ""
    return f"A {by_policy[0]}", f"B {by_policy[1]}"


@dataclass
class Judging:
    """A judgement of one or two sources, with its output directory."""

    options: JudgeOptions
    sources: Sequence[ResponseSource]
    matched: Matched | None
    rubric: JudgeRubric | None
    judge: Metered
    items: Sequence[JudgingItem]

    def __post_init__(self) -> None:
        question = question_of(self.judge, self.rubric, self.options.max_tokens, graded=len(self.sources) == 1)
        identities = [[str(source.path.resolve()), source.policy] for source in self.sources]
        # tells whether a directory belongs to this judgement; judgements without a reference keep the owner they had
        reference = [self.options.reference] if self.options.reference else []
        self.owner = fingerprint([question, identities, *reference])
        self.directory = self._dir()

    def _dir(self) -> Path:
        """Return the output directory, by default next to source A.

        A digest is appended to the name if the directory contains another judgement of the same sources, or one with
        items that are not selected now. Raises ConfigError if an explicit directory contains another judgement.
        """
        options = self.options
        if options.to is not None:
            if self._is_of_another(options.to):
                raise ConfigError(
                    f"to={options.to} contains a judgement of other responses, by another judge, or of items that are "
                    "not selected now; name another directory"
                )
            return options.to
        directory = default_dir("judgements", *(source.path for source in self.sources), outputs=options.outputs)
        # three names suffice: the last one is unique to the sources, the judge and the selection
        of_this_draw = fingerprint([self.owner, options.items, options.seed])
        names = (directory.name, f"{directory.name}-{self.owner[:6]}", f"{directory.name}-{of_this_draw[:6]}")
        return next(path for path in map(directory.with_name, names) if not self._is_of_another(path))

    def _is_of_another(self, directory: Path) -> bool:
        stored = read_json(directory / RESULT)
        if not stored:  # rows without a result are no judgement of this command, which would remove them
            return any((directory / name).exists() for name in (JUDGEMENTS, GRADES))
        return stored.get("owner") != self.owner or not self._draws_all_of(stored["settings"])

    def _draws_all_of(self, settings: Mapping[str, Any]) -> bool:
        """Return True if the items of a judgement with these settings are all selected now, so that it can resume."""
        if len(self.items) == len(self.matched.pairs if self.matched else self.sources[0].answers):
            return True
        # a selection is the start of a random order, so with the same seed a larger one contains a smaller one
        return settings["seed"] == self.options.seed and 0 < settings["items"] <= self.options.items

    def run(self) -> None:
        """Request the missing answers and write the result. After a failure, the same command resumes."""
        check_outputs(self.directory)
        make_dir(self.directory)
        stored = read_object(self.directory / RESULT)
        spent_before = stored.get("cost") or {}
        # written before the first request, so that a killed process leaves its settings for the next attempt
        result = {"status": "running", "error": None, **self._description()}
        write_json(self.directory / RESULT, {**result, "cost": spent_before})
        try:
            metrics = self._ask()
            note = _identical_note(metrics, names_of(self.sources)) if self.matched else ""
            result |= {"metrics": metrics, "notes": [note] if note else [], "status": "completed"}
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            result |= {"status": "interrupted" if interrupted else "failed", "error": str(error)}
            raise
        finally:
            # also after a failure: the answers so far were paid for
            result["cost"] = self.judge.cost(spent_before)
            write_json(self.directory / RESULT, result)
        self._print(result["metrics"], result["cost"]["usd"])

    def _ask(self) -> dict[str, Any]:
        count = at_once(self.options.config.judge, len(self.items))
        path = self.directory / (JUDGEMENTS if self.matched else GRADES)
        graded = self.matched is None
        rows = judge_items(self.judge, self.items, path, self.rubric, self.options.max_tokens, count, graded=graded)
        return summarise_grades(rows, self.rubric) if graded and self.rubric else summarise(rows)

    def _description(self) -> dict[str, Any]:
        """Return the judged sources, the judge and its settings: enough to repeat the judgement."""
        rubric = self.rubric
        of_rubric = ("name", "low", "high", "names", "digest")
        return {
            "owner": self.owner,
            "sources": [source.summary() for source in self.sources],
            "names": [name for name in names_of(self.sources) if name],
            "judge": dict(self.judge.identity),
            "rubric": {name: getattr(rubric, name) for name in of_rubric} if rubric else None,
            "settings": {name: getattr(self.options, name) for name in ("items", "seed", "reference", "max_tokens")},
            "unmatched": self.matched.unmatched if self.matched else None,
            "other_prompt": self.matched.other_prompt if self.matched else None,
        }

    def _print(self, metrics: Mapping[str, Any], total_usd: float) -> None:
        names = names_of(self.sources)
        lines = _comparison_lines(metrics, names) if self.matched else _grade_lines(metrics, names[0])
        # rows that could not be compared are reported, so that nobody takes the rate for all rows
        if self.matched and any((*self.matched.unmatched, self.matched.other_prompt)):
            only_a, only_b = self.matched.unmatched
            lines.append(
                f"not matched: {only_a} responses of A, {only_b} of B; {self.matched.other_prompt} with the same id "
                "but different prompts"
            )
        counts = {reason: metrics[f"unscored/{reason}"] for reason in REASONS}
        reasons = [f"{count} {reason}" for reason, count in counts.items() if count]
        if reasons:
            lines.append(f"unscored: {metrics['unscored']}; the judge's answers: {', '.join(reasons)}")
        cost = self.judge.cost()
        if cost["answers"]:
            # identical responses were not sent, and answers without a verdict are no labels
            items = metrics["comparisons"] - metrics["identical"] if self.matched else metrics["replies"]
            price = describe_cost(total_usd, items - metrics["unscored"])
            lines.append(f"sent: {cost['answers']} requests, {cost['stored']} answered before, {price}")
        else:
            lines.append("sent: nothing, everything was judged before")
        for line in (*lines, f"judgement: {self.directory}"):
            console.print(line)


def _comparison_lines(metrics: Mapping[str, Any], names: tuple[str, str]) -> list[str]:
    a, b = names
    if note := _identical_note(metrics, names):
        return [note]
    counted = f"{metrics['comparisons']} comparisons of {metrics['prompts']} prompts"
    same = f", {metrics['identical']} of them identical (ties without a request)" if metrics["identical"] else ""
    return [
        f"{a} against {b}: wins {format_estimate(metrics['win_rate'])}, ties half; {counted}{same}",
        f"both orders agree in {format_estimate(metrics['consistency'])}; votes for the response shown first "
        f"{format_estimate(metrics['first_shown'])}",
        f"words of a response, {a} minus {b}: {format_estimate(metrics['words'], digits=1)}",
    ]


def _identical_note(metrics: Mapping[str, Any], names: tuple[str, str]) -> str:
    """Return a note if no comparison has two different responses, else ""."""
    if metrics["identical"] < metrics["comparisons"]:
        return ""
    return (
        f"{names[0]} and {names[1]} gave identical responses in all {metrics['comparisons']} comparisons of "
        f"{metrics['prompts']} prompts: the judge received no request, and there is no win rate"
    )


def _grade_lines(metrics: Mapping[str, Any], name: str) -> list[str]:
    lines = [f"{name}: {metrics['replies']} responses to {metrics['prompts']} prompts"]
    grades = {key: value for key, value in metrics.items() if key.startswith("grade/")}
    return lines + [f"  {key.removeprefix('grade/')}  {format_estimate(value)}" for key, value in grades.items()]
