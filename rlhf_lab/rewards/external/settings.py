"""Settings of external rewards: a Python file, or a service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, NotEmpty
from rlhf_lab.core.user_code import names_object
from rlhf_lab.rewards.term import TermSettings


@register("reward", "callable")
@dataclass(frozen=True)
class PythonCallable(TermSettings):
    """A user's Python function, from a file.

    The function is called with (prompts, responses), two lists of text, and returns a number or None (unscored) for
    each response. Additional parameters are data columns by name: `def score(prompts, responses, *, answer)`;
    `**columns` receives all of them. Functions with TRL's signatures, `(completions, **kwargs)` and
    `(prompts, completions, **kwargs)`, are called by name. The function is called on two rows of the data before
    anything is built.

    Args:
        function: FILE.py:NAME; the file is relative to the working directory.
    """

    requires: ClassVar[Requirements] = ()

    function: str = ""

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                bool(self.function),
                "function is not set; write reward.terms.callable.function=my_rewards.py:brevity",
            ),
            (
                not self.function or names_object(self.function),
                f"function={self.function} is not FILE.py:NAME, such as my_rewards.py:brevity",
            ),
        )


@register("reward", "remote")
@dataclass(frozen=True)
class Remote(TermSettings):
    """Scores of an HTTP service: POST {"prompts": […], "responses": […]} returns {"rewards": [number or null, …]}.

    Args:
        url: address of the service.
        batch_size: number of responses per request.
        retries: maximum number of additional attempts after a failure; the pause doubles before each.
        request_timeout_s: time limit in seconds of one attempt; 0 means no limit. `timeout_s` limits an entire call of
            the term, including all its requests and retries.
        send_references: True to add "references" to the request: for each prompt its answer in the answer key, or else
            its first chosen response; null for a prompt that is not in the data.
        version: version of the service, chosen by you. Change it when the service changes its scores, so that stored
            results are not reused.
    """

    url: Annotated[str, NotEmpty(hint="write the address of the service, such as http://127.0.0.1:8000/reward")] = ""
    batch_size: Annotated[int, Ge(1)] = 64
    retries: Annotated[int, Ge(0)] = 2
    request_timeout_s: Annotated[float, Ge(0, hint="0 waits without limit")] = 60.0
    send_references: bool = False
    version: str = ""

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                not self.url or _is_http(self.url),
                f"url={self.url} is not an http address; write it in full, such as http://127.0.0.1:8000/reward",
            ),
        )


def _is_http(url: str) -> bool:
    """Return True for an address with a scheme, a host and, if present, a valid port."""
    try:
        address = urlsplit(url)
        has_host = address.scheme in ("http", "https") and bool(address.hostname)
        return has_host and address.port != 0 and " " not in url
    except ValueError:  # `port` raises it for a port that is not a number or too large
        return False
