"""The name of a service's model, which decides its answers: refused where it is missing, and never guessed.

A server of one's own lists its models, so that the refusal can say what to write. The list is not a default: whether a
server answers while a run is planned must not decide which run it is.
"""

from __future__ import annotations

import json
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

from rlhf_lab.packs.judging.judges.address import is_private, url_of
from rlhf_lab.packs.judging.judges.backends.settings import Service

WAIT_S = 3.0
"""Longest wait for a server's list."""
MAX_BYTES = 2**20
SHOWN = 5
"""Names that a refusal lists at most."""


def missing_model(settings: Service, *, may_ask: bool = True) -> str:
    """What to do about a model that is not named; "" where one is named.

    Args:
        may_ask: whether a server of one's own is asked for the names of its models.
    """
    if settings.model:
        return ""
    served = served_models(settings) if may_ask and is_private(settings) and not settings.api_key_env else []
    if not served:
        return (
            f"judge.model is not set; write the name that {url_of(settings)} has for the model, judge.model=NAME "
            "(GET …/models lists the names)"
        )
    names = ", ".join(served[:SHOWN]) + (", …" if len(served) > SHOWN else "")
    return f"judge.model is not set; {url_of(settings)} serves {names}: write judge.model={served[0]}"


def served_models(settings: Service) -> list[str]:
    """Names of the models that a server lists at `/models`; none where it does not answer. No key is sent."""
    opener = build_opener(ProxyHandler({}))  # the server is on this machine or in its network
    try:
        with opener.open(f"{url_of(settings).rstrip('/')}/models", timeout=WAIT_S) as response:
            listed = json.loads(response.read(MAX_BYTES))
        return [str(entry["id"]) for entry in listed["data"]]
    except (OSError, HTTPException, ValueError, LookupError, TypeError, RecursionError):
        return []
