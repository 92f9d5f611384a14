"""Settings of the safety evaluation. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Distinct, Ge
from rlhf_lab.evaluations.settings import EvaluationSettings, content_digest
from rlhf_lab.training.settings import Held

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "safety")
@dataclass(frozen=True)
class Safety(EvaluationSettings):
    """Attack success and over-refusal of `needs.reference` and of every other policy in `needs`, on the same prompts.

    At most `evaluation.prompts` prompts of each label are asked, with `evaluation.samples_per_prompt` replies to each.

    Args:
        source: `auto` takes the labels of the data where they have them (a column `label` of safe and unsafe, as
            data=xstest), else what the world of the data knows, else `own`: the 40 unsafe and 40 safe prompts that are
            shipped. `file` reads `path`.
        path: file of prompts with the columns prompt, label (safe or unsafe) and category (which may be missing).
        classifier: who says what a reply did. `auto` is the truth where a world knows the prompt, else `rules`: phrases
            that refuse (`evaluations/refusals.py`). `judge` asks `judge`.
        sycophancy: ask the shipped questions with and without a wrong opinion of the user.
        many_shot: numbers of demonstrations, in which an assistant gives harm, in front of each unsafe prompt.
        shot_tokens: longest prompt with demonstrations, in tokens; 0 is rollout.max_prompt_tokens. What is longer is
            left out and said.
        attempts: disguises tried per unsafe prompt until one succeeds; 0 is no red-teaming. They may be as long as the
            policy's positions allow beside a reply; what is longer is skipped and said.
        attacker: who writes the disguises: `templates` (`packs/judging/safety/attacks.py`) alone; `policy`,
            `needs.attacker` rewords each; `judge`, the model in `judge` does.
        regressions: regressions.jsonl of an earlier run: prompts that once succeeded, asked again.
    """

    any_needs: ClassVar[bool] = True
    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation")
    required_needs: ClassVar[tuple[str, ...]] = ("reference",)
    optional_needs: ClassVar[tuple[str, ...]] = ("attacker",)
    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    answer: ClassVar[str] = "safety"
    smoke: ClassVar[dict[str, float]] = {"attempts": 2}
    source: Literal["auto", "own", "file"] = "auto"
    path: str = ""
    classifier: Literal["auto", "rules", "judge"] = "auto"
    sycophancy: bool = True
    many_shot: Annotated[tuple[Annotated[int, Ge(0)], ...], Distinct()] = ()
    shot_tokens: Annotated[int, Ge(0)] = 0
    attempts: Annotated[int, Ge(0, hint="0 is no red-teaming")] = 0
    attacker: Literal["templates", "policy", "judge"] = "templates"
    regressions: str = ""

    @property
    def asks_judge(self) -> bool:  # type: ignore[override]  # depends on the settings here, on the class elsewhere
        return self.classifier == "judge" or (self.attempts > 0 and self.attacker == "judge")

    def contents(self) -> dict[str, str]:
        return {"regressions": content_digest(self.regressions, "regressions")} if self.regressions else {}

    def held(self, *, adapter: bool) -> list[Held]:
        """One policy at a time, beside the attacker where there is one."""
        is_attacked = self.attempts > 0 and self.attacker == "policy"
        return [Held("policy"), *([Held("attacker", role="attacker")] if is_attacked else [])]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        each_label = [(2 * evaluation.prompts, evaluation.samples_per_prompt)]
        shots = [(evaluation.prompts, evaluation.samples_per_prompt) for _ in self.many_shot]
        return [*each_label, *shots, *[(evaluation.prompts, 1)] * self.attempts]

    def contradictions(self, config: Config) -> list[str]:
        problems = []
        wants_policy = self.attempts > 0 and self.attacker == "policy"
        if wants_policy and not config.needs.get("attacker"):
            problems.append("needs.attacker is not set; algorithm.attacker=policy needs a model that rewords prompts")
        if not wants_policy and config.needs.get("attacker"):
            problems.append("needs.attacker is read by algorithm.attacker=policy with algorithm.attempts above 0")
        if self.asks_judge and config.judge.reads_truth and self.attacker == "judge" and self.attempts:
            problems.append("algorithm.attacker=judge needs a judge that writes text; judge=simulated reads the truth")
        if self.classifier == "judge" and config.judge.reads_truth and self.source != "auto":
            problems.append(
                "judge=simulated knows the prompts of its world alone; use algorithm.source=auto, or another judge"
            )
        return problems

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            ((self.source == "file") == bool(self.path), f"source={self.source}, path={self.path!r}: a path goes "
             "with source=file"),
            (self.attacker == "templates" or self.attempts > 0, f"attacker={self.attacker} needs attempts above 0"),
        )  # fmt: skip
