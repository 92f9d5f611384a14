"""Access to a service: its address, its API key and the name of its model.

A key is read from the environment, sent to the service, and never printed or stored. A missing model name is an error,
because the model determines the answers. For a self-hosted server the error lists the models it serves. The list never
becomes a default: which run this is must not depend on whether the server answers while the run is planned.
"""

from __future__ import annotations

import os
import re
from http.client import HTTPException
from ipaddress import ip_address
from urllib.parse import urlsplit

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.http_client import ExchangeLimits, RefuseRedirects, build_opener
from rlhf_lab.packs.judging.judges.backends.settings import Service


def url_of(settings: Service) -> str:
    """Return the URL of a service: the configured one, or the vendor's own."""
    return settings.base_url or settings.default_url


def is_private(settings: Service) -> bool:
    """Return True if the service is on this machine or in its network: then it is free and needs no key."""
    # loopback and private addresses, and names that resolve only locally
    host = urlsplit(url_of(settings)).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost" or "." not in host or host.endswith((".local", ".internal", ".localhost"))
    return address.is_private or address.is_loopback


HIDDEN = "[key]"
"""Text that replaces a key."""
LOOKS_LIKE_KEY = re.compile(r"\b(?:sk|pk|rk|key)-[A-Za-z0-9_\-*.]{6,}|(?i:bearer)\s+[A-Za-z0-9_\-.=+/]{6,}")
"""Pattern of API keys, of any service, and of headers with a bearer token."""
NO_KEY = "none"
"""Placeholder for a self-hosted server without a key: the SDKs refuse to start without a key."""


def missing_key(settings: Service) -> str:
    """Return how to provide a missing key; "" if there is one or none is needed."""
    # a self-hosted server needs a key only if a variable is named
    variable = settings.api_key_env or settings.default_key_env
    if os.environ.get(variable, "").strip() or (not settings.api_key_env and is_private(settings)):
        return ""
    return f"judge.api_key_env: the environment variable {variable} has no key; set it (export {variable}=…)"


def read_key(settings: Service) -> str:
    """Return the key of a service. Raises ConfigError if it is needed but missing."""
    problem = missing_key(settings)
    if problem:
        raise ConfigError(problem)
    if not settings.api_key_env and is_private(settings):
        return NO_KEY  # never send another vendor's key from the environment to a self-hosted server
    return os.environ[settings.api_key_env or settings.default_key_env].strip()


def scrub(text: str, key: str) -> str:
    """Return a text of the service without the key and without anything that looks like a key."""
    if key and key != NO_KEY:
        text = text.replace(key, HIDDEN)
    return LOOKS_LIKE_KEY.sub(HIDDEN, text)


def without_key(text: str, key: str) -> str:
    """Return an answer without the key. Other text that looks like a key stays: it may belong to the answer."""
    if key and key != NO_KEY:
        return text.replace(key, HIDDEN)
    return text


LIMITS = ExchangeLimits(seconds=3.0, max_bytes=2**20)
"""Limits of the request for a server's list of models."""
SHOWN = 5
"""Maximum number of model names in the error."""


def missing_model(settings: Service, *, may_ask: bool = True) -> str:
    """Return how to name a missing model; "" if one is named. `may_ask`: a self-hosted server may be asked."""
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
