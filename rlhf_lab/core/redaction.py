"""Secrets in settings, commands and files: how they are known, and texts without them.

A secret is known by its form (`SECRETS`), by the name of its setting (`api_key=…`), or because an environment variable
whose name says that it is secret holds it. Whatever stores or shows what was typed goes through `redacted`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HIDDEN = "…"
SECRETS = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "an API key": re.compile(r"\b(?:sk|pk|rk)-(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z0-9_-]{20,}"),
    "a key of a service": re.compile(
        r"\b(?:(?:sk|rk)_live_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{40,}|tvly-[\w-]{16,}|"
        r"glpat-[\w-]{20,}|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{50,})"
    ),
    "an AWS key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a Google key": re.compile(r"\bAIza[\w-]{35}|\bya29\.[\w-]{20,}|\bGOCSPX-[\w-]{20,}"),
    "a W&B key": re.compile(r"\bwandb_v\d_\w{20,}"),
    "a JSON web token": re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    "an Azure key": re.compile(
        r"(?<=AccountKey=)[A-Za-z0-9+/]{86}==|\b[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{26}\b|"
        r"(?<![\w~.-])[\w~.-]{3}8Q~[\w~.-]{31,34}|(?<=[?&]sig=)[\w%+/-]{40,}"
    ),
    "a Discord token or webhook": re.compile(
        r"discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d+/[\w-]+|\b[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}"
    ),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{40,})"),
    "a Slack token or webhook": re.compile(r"\bxox[abprs]-[\w-]{10,}|hooks\.slack\.com/services/[\w/]+"),
}
"""Kind → its form, which no other text has."""
SECRETS_IN_CONTEXT = {
    # without the words before them, the first is the digest of a commit, and the second any text in base64
    "a W&B key": re.compile(r"(?i:wandb|api\.wandb\.ai)[^\n]{0,60}?\b[0-9a-f]{40}\b"),
    "an AWS secret key": re.compile(r"(?i:aws|secret_?access_?key)[^\n]{0,40}?(?<![\w/+])[A-Za-z0-9/+]{40}(?![\w/+=])"),
    "an Azure key": re.compile(r"(?i:azure|ocp-apim|cognitive)[^\n]{0,40}?\b[0-9a-f]{32}\b"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a URL with a password": re.compile(r"\w+://[^\s/:@]+:[^\s/@]+@"),
}
"""Kind → its form with what stands before it. Words of a vocabulary may look like that by chance."""
SECRET_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|WEBHOOK\w*)$")
"""Ends of the names of environment variables whose values are secret."""
SHORTEST_SECRET = 12
"""Characters: shorter values, such as `true`, may stand in a text by chance."""
LAST_WORDS = {"token", "key", "apikey", "secret", "password", "passwd", "pw", "credential", "auth", "authorization"}
"""Last word, in the singular, of the name of a setting that is secret."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
LOGIN = re.compile(r"(?<=://)(?:[^/:@\s]*:\S*|[^/@\s]+)@")
"""Name and password in an address; a password may have / and @ in it."""
QUERY = re.compile(r"(?<=[?&;])([^?&;=\s]+)=([^&;#\s]+)")
"""A name and its value behind the ? of an address."""
ITEM = re.compile(r"(?<=[{,])(\s*['\"]?[\w.-]+['\"]?\s*:\s*)([^,{}\[\]\s]+)")
"""A name and its value in a mapping that is typed on a command line."""


def secrets_in(text: str, *, is_vocabulary: bool = False) -> Iterator[str]:
    """The kinds of secrets in a text, in words.

    Args:
        is_vocabulary: its words come from texts, so that only forms count that are no word by chance.
    """
    for variable, value in _secret_variables():
        if value in text:
            yield f"the value of the environment variable {variable}"
    for forms in (SECRETS,) if is_vocabulary else (SECRETS, SECRETS_IN_CONTEXT):
        for kind, form in forms.items():
            if form.search(text):
                yield kind


def redacted(value: Any) -> Any:
    """Plain values in which secrets are replaced by “…”, wherever they stand."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if _is_secret(str(key), item) else redacted(item) for key, item in value.items()}
    if isinstance(value, list):
        return [redacted(item) for item in value]
    return _redacted_text(value) if isinstance(value, str) else value


def redacted_arguments(arguments: Sequence[str]) -> list[str]:
    """The words of a command line without secrets: `name=value` goes by its name as settings do."""
    words = []
    for argument in arguments:
        name, separator, value = argument.partition("=")
        is_secret = separator and _is_secret(name, value)
        words.append(f"{name}={HIDDEN}" if is_secret else _redacted_text(argument))
    return words


def _redacted_text(text: str) -> str:
    for _, value in _secret_variables():
        text = text.replace(value, HIDDEN)
    # an address may carry a login or a key
    text = QUERY.sub(_redact_query, LOGIN.sub(f"{HIDDEN}@", text))
    text = ITEM.sub(_redact_item, text)
    for form in (*SECRETS.values(), *SECRETS_IN_CONTEXT.values()):
        text = form.sub(HIDDEN, text)
    return text


def _secret_variables() -> Iterator[tuple[str, str]]:
    """Environment variables that hold a secret, and their values."""
    for variable, value in os.environ.items():
        if SECRET_NAMES.search(variable) and len(value) >= SHORTEST_SECRET:
            yield variable, value


def _is_secret(name: str, value: Any) -> bool:
    """Whether api_key, api-key, apiKey, Authorization, … holds something; numbers of tokens or keys are counts."""
    last_word = (WORD.findall(name) or [""])[-1].lower()
    if last_word in LAST_WORDS:
        return bool(value)
    is_plural = last_word.endswith("s") and last_word.removesuffix("s") in LAST_WORDS
    return bool(value) and is_plural and not _is_number(value)


def _is_number(value: Any) -> bool:
    """Whether a value is a number, also as it is typed."""
    if isinstance(value, str):
        return re.fullmatch(r"[\d.,\[\]\s_]+", value) is not None
    return isinstance(value, int | float)


def _redact_query(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    # in an address a number may be a key
    last_word = (WORD.findall(name) or [""])[-1].lower()
    return f"{name}={HIDDEN}" if last_word.removesuffix("s") in LAST_WORDS and value else match[0]


def _redact_item(match: re.Match[str]) -> str:
    name = match[1].strip(" \t'\":")
    return f"{match[1]}{HIDDEN}" if _is_secret(name, match[2]) else match[0]
