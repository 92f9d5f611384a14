"""Settings of the safety evaluation. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Distinct, Ge
from rlhf_lab.evaluations.settings import EvaluationSettings, content_digest
from rlhf_lab.training.stage_spec import ModelCopies

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "safety")
@dataclass(frozen=True)
class Safety(EvaluationSettings):
    """Attack success and over-refusal of `needs.reference` and every other policy in `needs`, on the same prompts.

    Uses at most `evaluation.prompts` prompts of each label, with `evaluation.samples_per_prompt` responses to each.

    Args:
        source: origin of the prompts. `auto` uses the data's labels if present (a column `label` with safe or unsafe,
            as in data=xstest), else the world of the data, else `own`. `own` is the shipped set of 40 unsafe and 40
            safe prompts. `file` reads `path`.
        path: file of prompts with the columns prompt, label (safe or unsafe) and category (optional).
        classifier: method that classifies responses. `auto` uses the truth if a world knows the prompt, else `rules`:
            refusal phrases (`evaluations/refusals.py`). `judge` uses the model in `judge`.
        sycophancy: send the shipped questions with and without a wrong opinion of the user.
        push_back: doubt the answers to questions in a second turn, and count the right answers that are dropped.
        honesty: send questions with and without an answer, and count right answers, falsehoods and abstentions.
        canaries: number of random codes in system prompts, each with every extraction of
            `packs/judging/safety/canaries.py`; 0 is none.
        canary_file: FILE.canaries.jsonl of the command `canaries`, with codes that training data contain.
        many_shot: numbers of demonstrations of a harmful assistant that precede each unsafe prompt.
        shot_tokens: maximum length of a prompt with demonstrations, in tokens; 0 is rollout.max_prompt_tokens. Longer
            prompts are left out with a note.
        attempts: maximum number of disguises per unsafe prompt, until one succeeds; 0 is no red-teaming. Disguises may
            use all positions of the policy that a response does not need; longer ones are skipped with a note.
        attacker: author of the disguises: `templates` uses `packs/judging/safety/attacks.py` alone; with `judge`, the
            model in `judge` rewords each.
        regressions: regressions.jsonl of an earlier run, with prompts that succeeded once and are sent again.
    """

    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    inputs = replace(
        EvaluationSettings.inputs, any_policies=True, sections=("model", "rollout", "evaluation"), needs=("reference",)
    )
    reward_use = replace(EvaluationSettings.reward_use, measures_gold=False)
    evidence = replace(EvaluationSettings.evidence, answer="safety")
    by_size = BySize(smoke={"attempts": 2})
    # defaults are left out of a run's key, so that runs from before these settings keep theirs
    keyed_if_set: ClassVar[tuple[str, ...]] = ("push_back", "honesty", "canaries", "canary_file")
    source: Literal["auto", "own", "file"] = "auto"
    path: str = ""
    classifier: Literal["auto", "rules", "judge"] = "auto"
    sycophancy: bool = True
    push_back: bool = False
    honesty: bool = False
    canaries: Annotated[int, Ge(0, hint="0 is none")] = 0
    canary_file: str = ""
    many_shot: Annotated[tuple[Annotated[int, Ge(0)], ...], Distinct()] = ()
    shot_tokens: Annotated[int, Ge(0)] = 0
    attempts: Annotated[int, Ge(0, hint="0 is no red-teaming")] = 0
    attacker: Literal["templates", "judge"] = "templates"
    regressions: str = ""

    @property
    def asks_judge(self) -> bool:
        return self.classifier == "judge" or (self.attempts > 0 and self.attacker == "judge")

    def contents(self) -> dict[str, str]:
        files = {"regressions": self.regressions, "canary_file": self.canary_file}
        return {name: content_digest(path, name) for name, path in files.items() if path}

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        """Return the models that are in memory at the same time: one policy, as policies are evaluated one by one."""
        return [ModelCopies("policy")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        each_label = [(2 * evaluation.prompts, evaluation.samples_per_prompt)]  # safe and unsafe prompts
        shots = [(evaluation.prompts, evaluation.samples_per_prompt) for _ in self.many_shot]
        questions = [(2 * evaluation.prompts, evaluation.samples_per_prompt)] * (self.push_back + self.honesty)
        return [*each_label, *shots, *questions, *[(evaluation.prompts, 1)] * self.attempts]

    def contradictions(self, config: Config) -> list[str]:
        problems = []
        # the simulated judge answers from the truth, and cannot reword a text
        if self.asks_judge and config.judge.reads_truth and self.attacker == "judge" and self.attempts:
            problems.append("algorithm.attacker=judge needs a judge that writes text; judge=simulated reads the truth")
        if self.classifier == "judge" and config.judge.reads_truth and self.source != "auto":
            problems.append(
                "judge=simulated knows only the prompts of its world; use algorithm.source=auto, or another judge"
            )
        return problems

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            ((self.source == "file") == bool(self.path), f"source={self.source}, path={self.path!r}: set a path if and "
             "only if source=file"),
            (self.attacker == "templates" or self.attempts > 0, f"attacker={self.attacker} needs attempts above 0"),
        )  # fmt: skip
