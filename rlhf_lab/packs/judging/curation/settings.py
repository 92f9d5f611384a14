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
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "curate")
@dataclass(frozen=True)
class Curate(StageSettings):
    """Removes the preference pairs that a model should not be trained on. Uses no model.

    A row is rejected for the first of these reasons: a response that is empty, too short or too long; identical
    responses; a duplicate or near-duplicate of an earlier row of the same prompt; an evaluation item in the row. Every
    rejected row is in rejected.jsonl with its reason.

    Args:
        against: evaluation sets that no row may contain: `held_out` (held-out prompts of the data), `safety` (prompts
            of a safety evaluation on these data).
        suite: a suite whose golden sets no row may contain.
        files: further files of evaluation prompts, with a column prompt or question.
        share: fraction of an item's n-grams from which on a row counts as containing it. null is 0.5, or 1 for data
            generated from an embedded world, whose prompts come from a few templates.
        n: number of words of an n-gram.
        max_overlap: rows of one prompt are near-duplicates if the overlap of their responses (ROUGE-L, 0…1) is larger;
            1 counts only responses with the same words as duplicates.
        min_words, max_words: minimum and maximum number of words of a chosen response.
    """

    requires: ClassVar[Requirements] = (Capability.PAIRS, Capability.SINGLE_TURN)
    inputs = Inputs(sections=())
    outputs = Outputs(model=False, rows="pairs")
    resources = Resources(distributed=False)
    evidence = Evidence(compares_policies=False, answer="synthetic_corpus")
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
        # prompts from templates share many n-grams, so only a full match counts there
        return replace(self, share=1.0 if config.data.is_generated else 0.5)

    def contents(self) -> dict[str, str]:
        digests = {f"files/{index}": content_digest(file, "files") for index, file in enumerate(self.files)}
        if self.suite:
            # the content of the files decides which rows are rejected, so it enters the stage's key
            golden = [golden.path for golden in read_suite(self.suite).golden.values() if golden.path]
            digests["suite"] = " ".join(file_digest(Path(path)) for path in golden)
        return digests

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return []

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return []
