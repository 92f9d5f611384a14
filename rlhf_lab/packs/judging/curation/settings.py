"""Settings of the stage that curates training data. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.ranges import Ge, Gt, Le
from rlhf_lab.evaluations.settings import content_digest
from rlhf_lab.evaluations.suite.suite_file import read_suite
from rlhf_lab.training.settings import Held, StageSettings

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "curate")
@dataclass(frozen=True)
class Curate(StageSettings):
    """The preference pairs of the data without those that a model should not be trained on. Asks no model.

    Of each row the first reason counts: a reply that is empty, too short or too long; identical replies; a duplicate or
    near-duplicate of an earlier row of the same prompt; an evaluation item in it. Every row that is left out stands in
    rejected.jsonl with its reason.

    Args:
        against: evaluation sets that no row may hold: `held_out` (prompts of the data), `safety` (what a safety
            evaluation asks on these data).
        suite: a suite, whose golden sets no row may hold either.
        files: further files of evaluation prompts, with a column prompt or question.
        share: of an item's n-grams in a row from which it counts as held. null is .5, or 1 where the data are drawn
            from an embedded world, whose prompts are of a few templates.
        n: words of an n-gram.
        max_overlap: rows of one prompt whose replies overlap by more (ROUGE-L, 0…1) are near-duplicates; 1 calls only
            replies of the same words duplicates.
        min_words, max_words: of a chosen reply.
    """

    makes_model: ClassVar[bool] = False
    makes_rows: ClassVar[str] = "pairs"
    shares_work: ClassVar[bool] = False
    compares_policies: ClassVar[bool] = False
    requires: ClassVar[Requirements] = (Capability.PAIRS, Capability.SINGLE_TURN)
    uses: ClassVar[tuple[str, ...]] = ()
    answer: ClassVar[str] = "corpus_made"
    against: tuple[Literal["held_out", "safety"], ...] = ("held_out", "safety")
    suite: str = ""
    files: tuple[str, ...] = ()
    share: Annotated[float, Gt(0), Le(1)] | None = None
    n: Annotated[int, Ge(1)] = 8
    max_overlap: Annotated[float, Gt(0), Le(1)] = 0.9
    min_words: Annotated[int, Ge(0)] = 1
    max_words: Annotated[int, Ge(0)] = 1000

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.min_words <= self.max_words, f"min_words={self.min_words} is above max_words={self.max_words}"),
        )

    def completed(self, config: Config) -> Self:
        if self.share is not None:
            return self
        return replace(self, share=1.0 if config.data.drawn else 0.5)

    def contents(self) -> dict[str, str]:
        digests = {f"files/{number}": content_digest(file, "files") for number, file in enumerate(self.files)}
        if self.suite:
            golden = [golden.path for golden in read_suite(self.suite).golden.values() if golden.path]
            digests["suite"] = " ".join(file_digest(Path(path)) for path in golden)
        return digests

    def held(self, *, adapter: bool) -> list[Held]:
        return []

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return []
