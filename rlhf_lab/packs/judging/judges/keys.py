"""API keys: read from the environment, sent to the service, and never printed or stored."""

from __future__ import annotations

import os
import re

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.judging.judges.address import is_private
from rlhf_lab.packs.judging.judges.backends.settings import Service

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
