"""One judgement of a command line: the folder it is written to, how it goes on there, and what is printed of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.config import root
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import check_outputs, fingerprint, make_folder, read_json, write_json
from rlhf_lab.packs.judging.judges.answers import REASONS
from rlhf_lab.packs.judging.judges.judging import (
    Item,
    Metered,
    at_once,
    grade_items,
    judge_items,
    question_of,
    summarise,
    summarise_grades,
)
from rlhf_lab.packs.judging.judges.rubric import JudgeRubric
from rlhf_lab.packs.judging.judges.sources import Matched, Source
from rlhf_lab.reports.comparison.report import default_folder
from rlhf_lab.statistics.inference import Estimate, format_estimate

RESULT, JUDGEMENTS, GRADES = "result.json", "judgements.jsonl", "grades.jsonl"


@dataclass(frozen=True)
class Options:
    """What a command line asks for.

    Attributes:
        sources: one or two run directories or files.
        policies: of each source; None is the run's own.
        items: most comparisons, or replies, drawn at random with `seed`; 0 is all.
        reference: column with an answer that is taken as right; "" is none.
        rubric: file; "" is none for comparisons and the shipped one for grades.
        to: folder of what is written; None is a folder of `outputs`.
        outputs: holds judgements and the judge's answers; None is the outputs that the first source lies in.
        config: holds the judge, and the data where they are named.
        names_data: whether the data are named.
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


def names_of(sources: Sequence[Source]) -> tuple[str, str]:
    """Who wrote the replies: the policies, or what tells the sources apart."""
    by_policy = [source.policy or source.path.stem for source in sources]
    by_place = [f"{source.path.name} {source.policy or ''}".strip() for source in sources]
    for names in (by_policy, by_place):
        if len(set(names)) == len(names):
            return names[0], names[1] if len(names) == 2 else ""
    return f"A {by_policy[0]}", f"B {by_policy[1]}"


class Judging:
    """One judgement of sources, and the folder it is written to."""

    def __init__(
        self,
        options: Options,
        sources: Sequence[Source],
        matched: Matched | None,
        rubric: JudgeRubric | None,
        judge: Metered,
        items: Sequence[Item],
    ):
        self.options, self.sources, self.matched = options, sources, matched
        self.rubric, self.judge, self.items = rubric, judge, items
        graded = len(sources) == 1
        question = question_of(judge, rubric, options.max_tokens, graded=graded)
        self.owner = fingerprint([question, [[str(source.path.resolve()), source.policy] for source in sources]])
        self.folder = self._folder()

    def _folder(self) -> Path:
        """Where it goes: beside A; under a name with a digest where that place has another judgement of the two, or one
        of comparisons that are not drawn now.

        Raises ConfigError when a folder that is named has another judgement.
        """
        folder = self.options.to
        if folder is not None:
            if self._is_of_another(folder):
                raise ConfigError(
                    f"to={folder} holds a judgement of other replies, by another judge, or of more than is drawn now; "
                    "name another folder"
                )
            return folder
        folder = default_folder("judgements", *(source.path for source in self.sources), outputs=self.options.outputs)
        of_this_draw = fingerprint([self.owner, self.options.items, self.options.seed])
        names = [folder.name, f"{folder.name}-{self.owner[:6]}", f"{folder.name}-{of_this_draw[:6]}"]
        return next(place for name in names if not self._is_of_another(place := folder.with_name(name)))

    def _is_of_another(self, folder: Path) -> bool:
        stored = read_json(folder / RESULT)
        return bool(stored) and (stored.get("owner") != self.owner or not self._draws_all_of(stored["settings"]))

    def _draws_all_of(self, settings: Mapping[str, Any]) -> bool:
        """Whether what a judgement with these settings has drawn is drawn now: the folder then goes on."""
        total = len(self.matched.pairs) if self.matched else len(self.sources[0].answers)
        if len(self.items) == total:
            return True
        return settings["seed"] == self.options.seed and 0 < settings["items"] <= self.options.items

    def run(self) -> None:
        """Ask for what is missing. What is there when the judge fails stays, and the same command goes on from it."""
        check_outputs(self.folder)
        make_folder(self.folder)
        stored = read_json(self.folder / RESULT) or {}
        spent_before = stored.get("cost") or {}
        result = {"status": "running", "error": None, **self._description()}
        write_json(self.folder / RESULT, {**result, "cost": spent_before})
        try:
            metrics = self._ask()
            note = _identical_note(metrics, names_of(self.sources)) if self.matched else ""
            result |= {"metrics": metrics, "notes": [note] if note else [], "status": "completed"}
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            result |= {"status": "interrupted" if interrupted else "failed", "error": str(error)}
            raise
        finally:
            result["cost"] = self.judge.cost(spent_before)
            write_json(self.folder / RESULT, result)
        self._print(result["metrics"], result["cost"]["usd"])

    def _ask(self) -> dict[str, Any]:
        count = at_once(self.options.config.judge, len(self.items))
        max_tokens = self.options.max_tokens
        if self.matched:
            path = self.folder / JUDGEMENTS
            return summarise(judge_items(self.judge, self.items, path, self.rubric, max_tokens, count))
        assert self.rubric is not None
        rows = grade_items(self.judge, self.items, self.folder / GRADES, self.rubric, max_tokens, count)
        return summarise_grades(rows, self.rubric)

    def _description(self) -> dict[str, Any]:
        """What was judged, by whom, and how: enough to do it again."""
        options = self.options
        rubric = None
        if self.rubric is not None:
            rubric = {name: getattr(self.rubric, name) for name in ("name", "low", "high", "names", "digest")}
        return {
            "owner": self.owner,
            "sources": [source.summary() for source in self.sources],
            "names": [name for name in names_of(self.sources) if name],
            "judge": dict(self.judge.identity),
            "rubric": rubric,
            "settings": {
                "items": options.items,
                "seed": options.seed,
                "reference": options.reference,
                "max_tokens": options.max_tokens,
            },
            "unmatched": self.matched.unmatched if self.matched else None,
            "other_prompt": self.matched.other_prompt if self.matched else None,
        }

    def _print(self, metrics: Mapping[str, Any], total_usd: float) -> None:
        names = names_of(self.sources)
        lines = _comparison_lines(metrics, names) if self.matched else _grade_lines(metrics, names[0])
        if self.matched and any((*self.matched.unmatched, self.matched.other_prompt)):
            only_a, only_b = self.matched.unmatched
            other = self.matched.other_prompt
            lines.append(
                f"not matched: {only_a} replies of A, {only_b} of B; {other} with the same id and other prompts"
            )
        reasons = [f"{metrics[f'unscored/{reason}']} {reason}" for reason in REASONS if metrics[f"unscored/{reason}"]]
        if reasons:
            lines.append(f"unscored: {metrics['unscored']}; the judge's answers: {', '.join(reasons)}")
        cost = self.judge.cost()
        if cost["answers"]:
            lines.append(
                f"asked: {cost['answers']} requests, {cost['stored']} answered before, ${total_usd:.4f} in all"
            )
        else:
            lines.append("asked: nothing, all of it was judged before")
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"judgement: {self.folder}", markup=False, soft_wrap=True)


def _comparison_lines(metrics: Mapping[str, Any], names: tuple[str, str]) -> list[str]:
    """What a comparison found, in sentences."""
    a, b = names
    if note := _identical_note(metrics, names):
        return [note]
    win_rate: Estimate = metrics["win_rate"]
    counted = f"{metrics['comparisons']} comparisons of {metrics['prompts']} prompts"
    same = f", {metrics['identical']} of them of identical replies (ties, not asked)" if metrics["identical"] else ""
    return [
        f"{a} against {b}: wins {format_estimate(win_rate)}, ties half; {counted}{same}",
        f"both orders agree in {format_estimate(metrics['consistency'])}; votes for the reply shown first "
        f"{format_estimate(metrics['first_shown'])}",
        f"words of a reply, {a} minus {b}: {format_estimate(metrics['words'], digits=1)}",
    ]


def _identical_note(metrics: Mapping[str, Any], names: tuple[str, str]) -> str:
    """A note where no comparison has two different responses; else empty."""
    if metrics["identical"] < metrics["comparisons"]:
        return ""
    return (
        f"{names[0]} and {names[1]} gave identical responses in all {metrics['comparisons']} comparisons of "
        f"{metrics['prompts']} prompts: the judge was not asked, and there is no win rate"
    )


def _grade_lines(metrics: Mapping[str, Any], name: str) -> list[str]:
    """What the grades are, a line per criterion."""
    lines = [f"{name}: {metrics['replies']} replies to {metrics['prompts']} prompts"]
    for key, value in metrics.items():
        if key.startswith("grade/"):
            lines.append(f"  {key.removeprefix('grade/')}  {format_estimate(value)}")
    return lines
