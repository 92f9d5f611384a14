"""Settings of rewards that come from elsewhere: a Python file or package, a service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, NotEmpty
from rlhf_lab.rewards.term import TermSettings


@register("reward", "callable")
@dataclass(frozen=True)
class PythonCallable(TermSettings):
    """A Python function of the user: in a file, or in an installed package that declares it as an entry point.

    It is called with (prompts, responses), two lists of text, and returns a number or None (unscored) for each. Further
    parameters are columns of the data, by name: `def score(prompts, responses, *, answer)`; `**columns` takes them all.
    TRL's signatures, `(completions, **kwargs)` and `(prompts, completions, **kwargs)`, are called by name. The function
    is called on two rows of the data before anything is built.

    Args:
        function: FILE.py:NAME, the file relative to the working directory.
        name: of an entry point in the group `rlhf_lab.rewards`.
    """

    requires: ClassVar[Requirements] = ()

    function: str = ""
    name: str = ""

    def rules(self) -> tuple[Rule, ...]:
        file, colon, name = self.function.rpartition(":")
        return (
            *super().rules(),
            (
                not (self.function and self.name),
                f"function={self.function} and name={self.name} are two rewards; write one of them",
            ),
            (
                bool(self.function or self.name),
                "function is not set; write reward.terms.callable.function=my_rewards.py:brevity, or the name of an "
                "entry point in the group rlhf_lab.rewards as reward.terms.callable.name=brevity",
            ),
            (
                not self.function or (bool(colon) and file.endswith(".py") and name.isidentifier()),
                f"function={self.function} is not FILE.py:NAME, such as my_rewards.py:brevity",
            ),
        )


@register("reward", "remote")
@dataclass(frozen=True)
class Remote(TermSettings):
    """A reward served over HTTP: POST {"prompts": […], "responses": […]} is answered by {"rewards": [number or null]}.

    Args:
        url: of the service.
        batch_size: replies per request.
        retries: further attempts after a failed one, each waiting twice as long as the one before.
        request_timeout_s: an attempt that takes longer has failed; 0 waits. `timeout_s` bounds a call of the term, all
            its requests and retries together.
        send_references: the request also has "references": for each prompt the answer key's answer, or else the first
            chosen reply to it; null for a prompt that is not in the data.
        version: declared version of the service; change it when the service changes its answers, so that stored
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
                f"url={self.url} is not an http address; write the whole of it, such as http://127.0.0.1:8000/reward",
            ),
        )


def _is_http(url: str) -> bool:
    """Whether it is an address with a scheme, a host and, where one is written, a valid port."""
    try:
        address = urlsplit(url)
        has_host = address.scheme in ("http", "https") and bool(address.hostname)
        return has_host and address.port != 0 and " " not in url
    except ValueError:  # of `port`, when it is no number or too large
        return False
