"""Keys of services: read from the environment, sent to the service, and never shown or stored."""

from __future__ import annotations

import os
import re

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.judging.judges.address import is_private
from rlhf_lab.packs.judging.judges.backends.settings import Service

HIDDEN = "[key]"
LOOKS_LIKE_KEY = re.compile(r"\b(?:sk|pk|rk|key)-[A-Za-z0-9_\-*.]{6,}|(?i:bearer)\s+[A-Za-z0-9_\-.=+/]{6,}")
"""Keys of services, also those that are not ours, and headers that carry one."""
NO_KEY = "none"
"""Sent to a server of one's own that asks for no key: the SDK sends none without one."""


def missing_key(settings: Service) -> str:
    """What to do about a key that is needed and not there; "" where there is one or none is needed."""
    variable = settings.api_key_env or settings.default_key_env
    if os.environ.get(variable, "").strip() or (not settings.api_key_env and is_private(settings)):
        return ""
    return f"judge.api_key_env: the environment variable {variable} has no key; set it (export {variable}=…)"


def read_key(settings: Service) -> str:
    """The key of a service. Raises ConfigError where it is needed and not there."""
    problem = missing_key(settings)
    if problem:
        raise ConfigError(problem)
    if not settings.api_key_env and is_private(settings):
        return NO_KEY  # a key that the environment holds for someone else is not given to a server of one's own
    return os.environ[settings.api_key_env or settings.default_key_env].strip()


def scrub(text: str, key: str) -> str:
    """A text of a service without the key, and without anything that looks like one."""
    if key and key != NO_KEY:
        text = text.replace(key, HIDDEN)
    return LOOKS_LIKE_KEY.sub(HIDDEN, text)


def without_key(text: str, key: str) -> str:
    """An answer without the key; what else it says stays."""
    return text.replace(key, HIDDEN) if key and key != NO_KEY else text
