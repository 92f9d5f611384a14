"""Settings of rewards that come from elsewhere: a Python package, a service."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from rlhf_lab.errors import require
from rlhf_lab.registry import register
from rlhf_lab.rewards.settings.term import TermSettings


@register("reward", "callable")
@dataclass(frozen=True)
class PythonCallable(TermSettings):
    """A Python function of another package, found by the name of its entry point in the group `rlhf_lab.rewards`.

    It is called with (prompts, responses), two lists of text, and returns a number or None (unscored) for each.

    Args:
        name: of the entry point.
    """

    name: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require((bool(self.name), "name is not set; write the entry point's name in the group rlhf_lab.rewards"))


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
        send_references: the question also has "references": for each prompt what the data answer, the answer key's
            answer or else the first chosen reply to it, null for a prompt that is not among the data.
    """

    url: str = ""
    batch_size: int = 64
    retries: int = 2
    request_timeout_s: float = 60.0
    send_references: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (_is_http(self.url), f"url={self.url} is not an http address; write e.g. http://localhost:8000/score"),
            (self.batch_size >= 1, f"batch_size={self.batch_size} must be at least 1"),
            (self.retries >= 0, f"retries={self.retries} must be 0 or above"),
            (self.request_timeout_s >= 0, f"request_timeout_s={self.request_timeout_s} must be 0 (wait) or above"),
        )


def _is_http(url: str) -> bool:
    """Whether it is an address with a scheme, a host and, where there is one, a port that exists."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and " " not in url
    except ValueError:
        return False
