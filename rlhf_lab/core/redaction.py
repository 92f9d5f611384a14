"""Secrets in settings, commands and files: how they are recognised, and how texts are redacted.

A secret is recognised by its form (`FORMS`), by the name of its setting (`api_key=…`), or because it is the value of an
environment variable whose name marks it as secret. Everything that stores or displays user input calls `redacted`.
Everything that is published is searched by `secrets_in`. Both use the same table of forms.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

HIDDEN = "…"
"""Replacement for a secret."""

Scope = Literal["anywhere", "texts", "published"]
"""Texts in which a form is searched for. `anywhere`: in all texts. `texts`: not in vocabularies, because a word of a
vocabulary may look like the secret by chance. `published`: only in published files, because the digest of a commit or
the path of a run may have the same form; matches are reported to the user, but never replaced in stored files that
rlhf_lab reads again."""


def _is_always(match: re.Match[str]) -> bool:
    return True


@dataclass(frozen=True)
class SecretForm:
    """Form of one kind of secret.

    Attributes:
        kind: name of the kind, for messages.
        pattern: form of the secret, including required preceding text.
        scope: texts in which it is searched for.
        is_secret: function that decides whether a match is a secret.
    """

    kind: str
    pattern: re.Pattern[str]
    scope: Scope = "anywhere"
    is_secret: Callable[[re.Match[str]], bool] = _is_always

    def hide(self, match: re.Match[str]) -> str:
        return HIDDEN if self.is_secret(match) else match[0]


DIGEST_WORDS = re.compile(
    r"(?i:commit|revision|\brev\b|\bsha|\bref\b|digest|hash|\bhead\b|fingerprint|checksum|etag|blob|tree|resolve|snapshot|git)"
    r"(?s:.{0,40})$|[@#]$"
)
"""Text that, directly before 40 hexadecimal digits, marks them as a digest and not as a key."""
LETTERS_IN_A_ROW = re.compile(r"[a-z]{7}|[A-Z]{9}|(?i:[a-z]{12})")
"""As many letters in a row as a word or a name has. One in a hundred random texts of 40 characters matches by
chance."""


def _is_no_digest(match: re.Match[str]) -> bool:
    """Return True if 40 hexadecimal digits may be a key: no text before them marks them as a digest."""
    is_random = len(set(match[0])) > 5  # fewer distinct digits mean a placeholder, as in an example
    return is_random and not DIGEST_WORDS.search(match.string[max(0, match.start() - 60) : match.start()])


def _is_random(match: re.Match[str]) -> bool:
    """Return True if 40 base64 characters are as mixed as a key, so are not a digest, a path or a name."""
    text = match[0]
    kinds = (r"[A-Z]", r"[a-z]", r"[0-9]")
    is_mixed = all(len(re.findall(kind, text)) >= 3 for kind in kinds)
    return is_mixed and text.count("/") <= 3 and not LETTERS_IN_A_ROW.search(text)


def _has_value(match: re.Match[str]) -> bool:
    """Return True if a header has a value and not a placeholder such as $TOKEN."""
    return len(match[0]) >= SHORTEST_SECRET and any(character.isdigit() for character in match[0])


# Look-aheads are bounded, e.g. by {0,200}, so that a long text is not scanned again from every position.
FORMS = (
    SecretForm("a Hugging Face token", re.compile(r"\bhf_[A-Za-z0-9]{30,}")),
    SecretForm(
        "an API key", re.compile(r"\b(?:sk|pk|rk)-(?=[A-Za-z_-]{0,200}\d)(?=[\d_-]{0,200}[A-Za-z])[A-Za-z0-9_-]{20,}")
    ),
    SecretForm(
        "a key of a service",
        re.compile(
            r"\b(?:(?:sk|rk)_live_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{40,}|tvly-[\w-]{16,}|"
            r"glpat-[\w-]{20,}|npm_[A-Za-z0-9]{36}|pypi-AgE[\w-]{50,})"
        ),
    ),
    SecretForm("a Replicate token", re.compile(r"\br8_[A-Za-z0-9]{30,}")),
    SecretForm("a SendGrid key", re.compile(r"\bSG\.[\w-]{16,32}\.[\w-]{32,64}")),
    SecretForm("a Telegram token", re.compile(r"(?<![\d:])\d{8,10}:AA[\w-]{32,33}(?![\w-])")),
    SecretForm("a Twilio key", re.compile(r"\b(?:SK|AC)[0-9a-f]{32}\b")),
    SecretForm("an AWS key", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    SecretForm("a Google key", re.compile(r"\bAIza[\w-]{35}|\bya29\.[\w-]{20,}|\bGOCSPX-[\w-]{20,}")),
    SecretForm("a W&B key", re.compile(r"\bwandb_v\d_\w{20,}")),
    SecretForm("a JSON web token", re.compile(r"\beyJ[\w-]{8,1000}\.eyJ[\w-]{8,}\.[\w-]{8,}")),
    SecretForm(
        "an Azure key",
        re.compile(
            r"(?<=AccountKey=)[A-Za-z0-9+/]{86}==|\b[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{26}\b|"
            r"(?<![\w~.-])[\w~.-]{3}8Q~[\w~.-]{31,34}|(?<=[?&]sig=)[\w%+/-]{40,}"
        ),
    ),
    SecretForm(
        "a Discord token or webhook",
        re.compile(r"discord(?:app)?\.com/api/(?:v\d+/)?webhooks/\d+/[\w-]+|\b[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}"),
    ),
    SecretForm("a GitHub token", re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{40,})")),
    SecretForm("a Slack token or webhook", re.compile(r"\bxox[abprs]-[\w-]{10,}|hooks\.slack\.com/services/[\w/]+")),
    # Without the words before them, the first is the digest of a commit, and the second any base64 text.
    SecretForm("a W&B key", re.compile(r"(?i:wandb|api\.wandb\.ai)[^\n]{0,60}?\b[0-9a-f]{40}\b"), "texts"),
    SecretForm(
        "an AWS secret key",
        re.compile(r"(?i:aws|secret_?access_?key)[^\n]{0,40}?(?<![\w/+])[A-Za-z0-9/+]{40}(?![\w/+=])"),
        "texts",
    ),
    SecretForm("an Azure key", re.compile(r"(?i:azure|ocp-apim|cognitive)[^\n]{0,40}?\b[0-9a-f]{32}\b"), "texts"),
    # The entire block. A block without its end marker is hidden up to the end of the text.
    SecretForm(
        "a private key",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----(?s:.*?-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|.*)"
        ),
        "texts",
    ),
    SecretForm("a URL with a password", re.compile(r"\b\w+://[^\s/:@]+:[^\s/@]+@"), "texts"),
    SecretForm("a header with a token", re.compile(r"(?<=(?i:bearer) )[\w.~+/=-]+"), "texts", _has_value),
    SecretForm("what may be a W&B key", re.compile(r"\b[0-9a-f]{40}\b"), "published", _is_no_digest),
    SecretForm(
        "what may be an AWS secret key",
        re.compile(r"(?<![\w/+=.-])[A-Za-z0-9/+]{40}(?![\w/+=-])"),
        "published",
        _is_random,
    ),
)
SECRET_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|WEBHOOK\w*)$")
"""Ends of the names of environment variables whose values are secret."""
SHORTEST_SECRET = 12
"""Minimum characters of a secret value: shorter values, such as `true`, may occur in a text by chance."""
LAST_WORDS = {"token", "key", "apikey", "secret", "password", "passwd", "pw", "credential", "auth", "authorization"}
"""Last words, in the singular, of the names of secret settings."""
PLAIN_NAMES = {"allowed_tokens"}
"""Settings whose name has the form of a secret's, although their values are texts of a vocabulary."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""One word of a name in snake_case, kebab-case or camelCase."""
OPTION = re.compile(r"--?[A-Za-z][\w-]*")
"""Option of a command; its value is the next word."""
LOGIN = re.compile(r"(?<=://)(?:[^/:@\s]*:\S*|[^/@\s]+)@")
"""Name and password in a URL; the password may contain / and @."""
UP_TO_AT = re.compile(r"(?<!\S)\S+@")
"""A word up to its last @, the only text that can contain a login. LOGIN alone would rescan the text from every URL."""
QUERY = re.compile(r"(?<=[?&;])([^?&;=\s]+)=([^&;#\s]+)")
"""A name and its value in the query of a URL."""
HEADER = re.compile(
    r"(?i:\b((?:(?:proxy-)?authorization|api-key|x-(?:[a-z]+-)*(?:key|token|secret))"
    r"\\?[\"']?\s*:\s*\\?[\"']?(?:(?:bearer|basic|digest|token|negotiate|api-?key)\s+)?))[^\s\"'\\,{}\[\]]+"
)
"""HTTP header with a secret value, as typed for curl or written in a mapping; its name and scheme are not redacted."""
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
"""Escaped character in a quoted string of JSON or Python."""
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
ITEM = re.compile(r"(?<=[{,])(\s*['\"]?[\w.-]+['\"]?\s*:\s*)([^,{}\[\]\s]+)")
"""A name and its value in a mapping typed on a command line."""


def secrets_in(text: str, *, is_vocabulary: bool = False) -> Iterator[str]:
    """Yield the kinds of secrets in a text, in words.

    Args:
        is_vocabulary: True if the text is a vocabulary; forms that a word may have by chance are then skipped.
    """
    for variable, value in _secret_variables():
        if value in text:
            yield f"the value of the environment variable {variable}"
    # Unescape twice, because a JSON text may be quoted inside another JSON text.
    texts = {text, unescaped(text), unescaped(unescaped(text))}
    kinds = (
        form.kind
        for form in FORMS
        if (form.scope == "anywhere" or not is_vocabulary)
        and any(form.is_secret(match) for known in texts for match in form.pattern.finditer(known))
    )
    yield from dict.fromkeys(kinds)


def unescaped(text: str) -> str:
    """Return a text with the escapes of JSON and Python replaced by their characters: `\\u002d`, `\\"`, `\\n`."""
    return ESCAPE.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    if match[3]:
        return ESCAPED.get(match[3], match[3])
    character = chr(int(match[1] or match[2], 16))
    return match[0] if "\ud800" <= character <= "\udfff" else character  # half of a surrogate pair is no character


def redacted(value: Any) -> Any:
    """Return JSON-like values with all secrets replaced by “…”."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if _is_secret(str(key), item) else redacted(item) for key, item in value.items()}
    if isinstance(value, list):
        # In a command line, `--name` and the next argument belong together.
        is_command = all(isinstance(item, str) for item in value)
        return redacted_arguments(value) if is_command else [redacted(item) for item in value]
    return _redacted_text(value) if isinstance(value, str) else value


def redacted_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line without secrets. The names in `name=value` and `--name value` are treated like settings."""
    words = []
    previous = ""
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if separator and _is_secret(name, value):
            words.append(f"{name}={HIDDEN}")
        elif OPTION.fullmatch(previous) and not argument.startswith("-") and _is_secret(previous, argument):
            words.append(HIDDEN)
        else:
            words.append(_redacted_text(argument))
        previous = argument
    return words


def _redacted_text(text: str) -> str:
    for _, value in _secret_variables():
        text = text.replace(value, HIDDEN)
    # A URL may contain a login or a key. The order matters: logins are removed first, then values of the query.
    text = QUERY.sub(_redact_query, UP_TO_AT.sub(_redact_logins, text))
    text = HEADER.sub(rf"\1{HIDDEN}", text)
    text = ITEM.sub(_redact_item, text)
    text = _without_forms(text)
    # Secrets may be hidden by escapes. If unescaping reveals one, the result is the unescaped text without it.
    once = unescaped(text)
    for simple in (once, unescaped(once)):
        if (hidden := _without_forms(simple)) != simple:
            return hidden
    return text


def _without_forms(text: str) -> str:
    """Return a text without secrets that are recognised by form; forms searched in published files only are kept."""
    for form in FORMS:
        if form.scope != "published":
            text = form.pattern.sub(form.hide, text)
    return text


def _secret_variables() -> Iterator[tuple[str, str]]:
    """Yield (name, value) of the environment variables that hold a secret."""
    for variable, value in os.environ.items():
        if SECRET_NAMES.search(variable) and len(value) >= SHORTEST_SECRET:
            yield variable, value


def _is_secret(name: str, value: Any) -> bool:
    """Return True if a secret setting (api_key, apiKey, Authorization, …) has a value. Plural names may be counts."""
    last_word = (WORD.findall(name) or [""])[-1].lower()
    if last_word in LAST_WORDS:
        return bool(value)
    if name.rpartition(".")[2] in PLAIN_NAMES:
        return False
    # `api_keys` is secret, but `max_tokens=512` is a number of tokens.
    is_plural = last_word.endswith("s") and last_word.removesuffix("s") in LAST_WORDS
    return bool(value) and is_plural and not _is_number(value)


def _is_number(value: Any) -> bool:
    """Return True for a number, also if it is written as text."""
    if isinstance(value, str):
        return re.fullmatch(r"[\d.,\[\]\s_]+", value) is not None
    return isinstance(value, int | float)


def _redact_logins(match: re.Match[str]) -> str:
    return LOGIN.sub(f"{HIDDEN}@", match[0])


def _redact_query(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    # in a URL even a number may be a key
    last_word = (WORD.findall(name) or [""])[-1].lower()
    return f"{name}={HIDDEN}" if last_word.removesuffix("s") in LAST_WORDS and value else match[0]


def _redact_item(match: re.Match[str]) -> str:
    name = match[1].strip(" \t'\":")
    return f"{match[1]}{HIDDEN}" if _is_secret(name, match[2]) else match[0]
