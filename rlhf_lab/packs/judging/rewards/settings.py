"""Settings of the reward given by a judge. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.ranges import Ge
from rlhf_lab.rewards.term import TermSettings


@register("reward", "judge")
@dataclass(frozen=True)
class Judge(TermSettings):
    """Reward by a judge (`judge=…`) for each response: grades on a rubric, or comparison with a reference response.

    With `mode=grade` the reward is the mean over the criteria of (grade − low)/(high − low). With `mode=compare` it is
    1 for a response that wins against the reference in both orders, 0 for one that loses, ½ for a tie. If the judge's
    answer is a refusal, truncated or unreadable, the response is unscored, and counted by reason.

    Args:
        mode: `grade` requests grades of the single response; `compare` requests the better one of two, in both orders.
        rubric: YAML file with the criteria (docs/judging/judging.md). Default: five criteria, 1…5, for `grade`; for
            `compare`, which response does the task better.
        reference: column of the data with an answer to each prompt. `grade` shows it to the judge as right.
            `compare` compares the response with it; without a column, with the answer key's answer or else with the
            first chosen response to the prompt.
        max_tokens: maximum number of tokens of an answer of the judge.
    """

    asks_judge: ClassVar[bool] = True
    mode: Literal["grade", "compare"] = "grade"
    rubric: str = ""
    reference: str = ""
    max_tokens: Annotated[int, Ge(1)] = 512
