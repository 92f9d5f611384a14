"""Settings of rewards that are grades on a rubric: from a model that learned them, or from a judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlhf_lab.errors import require
from rlhf_lab.registry import register
from rlhf_lab.rewards.settings.term import TermSettings


@register("reward", "rubric")
@dataclass(frozen=True)
class RubricModel(TermSettings):
    """The rubric reward model in `needs.rubric` (`rubric_rm`), standardised on replies of the policy it started from.

    It has a role of its own, so that `reward=[bt,rubric]` adds both; alone, `reward=bt` with `needs.reward=rubric_rm`
    is the same reward.

    Args:
        batch_tokens: padded tokens per forward pass.
    """

    needs_role: ClassVar[str | None] = "rubric"
    batch_tokens: int = 16384


@register("reward", "judge")
@dataclass(frozen=True)
class Judge(TermSettings):
    """A judge grades each reply 1…5 on five criteria; the reward is the mean of (grade − 1)/4.

    An answer that refuses, is cut off or cannot be read leaves the reply unscored, counted by reason.

    Args:
        backend: `simulated` is the world's rubric judge (`data.grader`); `openai` any service that answers like
            OpenAI's chat completions, asked at temperature 0 for a JSON object.
        url: of the service, whole, such as http://127.0.0.1:8000/v1/chat/completions.
        model: name of the model there.
        api_key_env: environment variable that holds the key; empty sends none. The key itself is never stored.
        max_tokens: of an answer.
        parallel: requests under way at once.
        retries: further attempts after a failed one, each waiting twice as long as the one before.
        request_timeout_s: an attempt that takes longer has failed; 0 waits.
        version: declared version of the service; change it when the service changes what it says, so that stored
            results are not reused.
    """

    backend: Literal["simulated", "openai"] = "simulated"
    url: str = ""
    model: str = ""
    api_key_env: str = ""
    max_tokens: int = 256
    parallel: int = 8
    retries: int = 2
    request_timeout_s: float = 60.0
    version: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        served = self.backend == "openai"
        require(
            (
                not served or self.url.startswith(("http://", "https://")),
                f"url={self.url} is not an http address; write the whole of it, ending in /chat/completions",
            ),
            (not served or bool(self.model), "model is not set; write the name of the model at url"),
            (self.max_tokens >= 1, f"max_tokens={self.max_tokens} must be at least 1"),
            (self.parallel >= 1, f"parallel={self.parallel} must be at least 1"),
            (self.retries >= 0, f"retries={self.retries} must be 0 or above"),
            (self.request_timeout_s >= 0, f"request_timeout_s={self.request_timeout_s} must be 0 (wait) or above"),
        )
