"""Check of the model name of a service. A missing name is an error, because the model determines the answers.

For a self-hosted server the error lists the models it serves. The list never becomes a default: which run this is must
not depend on whether the server answers while the run is planned.
"""

from __future__ import annotations

from http.client import HTTPException

from rlhf_lab.core.files import parse_json
from rlhf_lab.core.http_client import ExchangeLimits, RefuseRedirects, build_opener
from rlhf_lab.packs.judging.judges.address import is_private, url_of
from rlhf_lab.packs.judging.judges.backends.settings import Service

LIMITS = ExchangeLimits(seconds=3.0, max_bytes=2**20)
"""Limits of the request for a server's list of models."""
SHOWN = 5
"""Maximum number of model names in the error."""


def missing_model(settings: Service, *, may_ask: bool = True) -> str:
    """Return how to name a missing model; "" if one is named.

    Args:
        may_ask: True to request the list of models from a self-hosted server.
    """
    if settings.model:
        return ""
    # an explicit key means that the server may require one, and none is sent here
    served = served_models(settings) if may_ask and is_private(settings) and not settings.api_key_env else []
    if not served:
        return (
            f"judge.model is not set; write the model's name at {url_of(settings)}, judge.model=NAME (GET …/models "
            "lists the names)"
        )
    names = ", ".join(served[:SHOWN]) + (", …" if len(served) > SHOWN else "")
    return f"judge.model is not set; {url_of(settings)} serves {names}: write judge.model={served[0]}"


def served_models(settings: Service) -> list[str]:
    """Return the models that a server lists at `/models`; empty if it does not answer. No key is sent."""
    # the server is on this machine or in its network, so no proxy is used
    opener = build_opener(RefuseRedirects(), LIMITS, proxies={})
    try:
        with opener.open(f"{url_of(settings).rstrip('/')}/models") as response:
            listed = parse_json(response.read())
        return [str(entry["id"]) for entry in listed["data"]]
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        return []
