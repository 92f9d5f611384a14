"""Settings of the reward that a judge gives. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.ranges import Ge
from rlhf_lab.rewards.term import TermSettings

JUDGE_GROUP = "reward=judge judge=openai_compatible judge.base_url=http://HOST/v1 judge.model=NAME"


@register("reward", "judge")
@dataclass(frozen=True)
class Judge(TermSettings):
    """What a judge (`judge=…`) says of each reply: its grades on a rubric, or whether it beats a reference reply.

    With `mode=grade` the reward is the mean over the criteria of (grade − low)/(high − low). With `mode=compare` it is
    1 for a reply that wins against the reference in both orders, 0 for one that loses, ½ for a tie. An answer that
    refuses, is cut off or cannot be read leaves the reply unscored, counted by reason.

    Class attributes:
        moved: settings of earlier versions → what stands for them.

    Args:
        mode: `grade` asks for grades of the reply by itself, `compare` which of two replies is better, in both orders.
        rubric: YAML file with the criteria (docs/judging/judging.md). Empty: five criteria, 1…5, for `grade`; what does
            better             what was asked, for `compare`.
        reference: column of the data that has an answer to each prompt. `grade` shows it to the judge as right;
            `compare` has the reply compared with it, and without a column with the answer key's answer, or else the
            first chosen reply to the prompt.
        max_tokens: of an answer.
    """

    asks_judge: ClassVar[bool] = True
    moved: ClassVar[dict[str, str]] = {
        "backend": f"who answers is chosen by the group judge: {JUDGE_GROUP}",
        "url": f"it is judge.base_url now, without /chat/completions: {JUDGE_GROUP}",
        "model": f"it is judge.model now: {JUDGE_GROUP}",
        "api_key_env": f"it is judge.api_key_env now: {JUDGE_GROUP}",
        "parallel": "it is judge.parallel now",
        "retries": "it is judge.retries now",
        "request_timeout_s": "it is judge.request_timeout_s now",
        "version": "it is judge.version now",
    }
    mode: Literal["grade", "compare"] = "grade"
    rubric: str = ""
    reference: str = ""
    max_tokens: Annotated[int, Ge(1)] = 512
